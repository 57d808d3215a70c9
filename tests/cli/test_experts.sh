#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A mixture of experts: the order of the methods by their divergence, what reports say of experts, and a run that is
# stopped, limited in memory, limited to some experts, or given shares of zeros of their own.
. "$2/tests/cli/common.sh"
model=$source/models/moe-demo
[ -d "$model" ] || skip "models/moe-demo is not there"
text=$source/models/calibration.jsonl
few="--calibration $text --samples 16 --sequence-length 128 --threads 1 --set basis_steps=12"
head -n 60 "$source/models/evaluation.jsonl" >held-out.jsonl

# kl FOLDER PATTERN ARGUMENT...: prints the divergence of a pruned model from the dense one.
kl() {
	folder=$1
	pattern=$2
	shift 2
	# shellcheck disable=SC2086
	"$program" prune "$model" -o "$folder" $few --pattern "$pattern" "$@" >"$work/out" 2>"$work/err" </dev/null &&
		"$program" eval "$folder" --text held-out.jsonl --protocol documents --sequence-length 128 \
			--reference "$model" --json 2>"$work/err" | python3 -c "import json, sys; print(json.load(sys.stdin)['kl'])"
}

for pattern in 50% 2:4; do
	last=0
	for method in "--preset fast" "--preset paper" "--method sparsegpt" "--method wanda"; do
		rm -rf out
		# shellcheck disable=SC2086
		now=$(kl out "$pattern" $method)
		python3 -c "import sys; sys.exit(0 if float(sys.argv[1]) < float(sys.argv[2]) else 1)" "$last" "${now:-0}" ||
			complain "$pattern: the divergence of '$method' is ${now:-unknown}, that of the better method $last"
		last=$now
	done
done

# experts are reported with their tokens; 16 windows of 128 tokens are few for some
# shellcheck disable=SC2086
expect_json "sum(o['tokens'] for o in d['operators'] if o['layer'] == 0 and o['operator'] == 'up') == 2 * 16 * 128 and
	d['experts']['pruned'] == 32 and 'tokens' not in d['operators'][0]" prune "$model" -o report $few --preset fast --basis none --report page.html
grep -q "<h3>Experts</h3>" page.html || complain "the report has no table of experts"
# shellcheck disable=SC2086
expect 0 "experts were read by fewer than 4 tokens per input" prune "$model" -o warned --calibration "$text" --samples 2 \
	--sequence-length 64 --threads 1 --preset fast --basis none

# some experts only
# shellcheck disable=SC2086
expect_json "{o['expert'] for o in d['operators']} == {0, 3}" prune "$model" -o some $few --only 'experts\.[03]\.' --preset fast
# shellcheck disable=SC2086
expect 0 "" prune "$model" -o shares $few --preset fast --set allocate=0.1 --basis none
expect_json "d['violations'] == 0" inspect warned --pattern 50%

# a run that is stopped and continued writes the same bytes
# shellcheck disable=SC2086
{
	expect 0 "" prune "$model" -o whole $few --preset fast --pattern 2:4 --basis none
	"$program" prune "$model" -o stopped $few --preset fast --pattern 2:4 --basis none >"$work/out" 2>"$work/err" </dev/null &
	run=$!
	while kill -0 "$run" 2>/dev/null && ! grep -q "^layer 0 of" "$work/err"; do sleep 0.02; done
	kill -INT "$run" 2>/dev/null
	wait "$run"
	[ -d stopped ] || expect 0 "" prune "$model" -o stopped $few --preset fast --pattern 2:4 --basis none --resume
}
cmp -s whole/model.safetensors stopped/model.safetensors || complain "a resumed run gives other bytes"

# little memory
bound="d['peak_memory_bytes'] < 50 * 2**20"
! sanitized || bound=True # such a build takes memory that the program does not count
# shellcheck disable=SC2086
expect_json "$bound" prune "$model" -o little $few --preset paper --memory 50M
finish
