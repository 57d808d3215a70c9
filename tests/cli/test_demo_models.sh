#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demo models give the perplexity that transformers gave when they were made (models/train_log.json).
set -eu
program=$1
models=$2/models

number() { # number KEY: the value of a numeric key in the JSON on standard input
	tr ',{}' '\n\n\n' | sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\([0-9.eE+-]*\).*/\1/p"
}

check() { # check MODEL PERPLEXITY WINDOWS
	result=$("$program" eval "$models/$1" --text "$models/evaluation.jsonl" --protocol documents \
		--sequence-length 256 --json)
	perplexity=$(echo "$result" | number perplexity)
	windows=$(echo "$result" | number windows)
	echo "$1: perplexity $perplexity over $windows windows (expected $2 over $3)"
	[ "$windows" = "$3" ] || exit 1
	awk -v a="$perplexity" -v b="$2" 'BEGIN { exit !(a > 0 && a / b < 1.001 && a / b > 0.999) }'
}

check llama-demo 3.3557 153
check opt-demo 3.2683 169
check moe-demo 3.4572 153
