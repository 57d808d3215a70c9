#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench: figures of the machine, and of a model with its zeros and without them.
. "$2/tests/cli/common.sh"

expect_json "d['read_bytes_per_second'] > 1e8 and d['sgemm_flops'] > 1e7 and 'rates' not in d and 'cpu' in d['device']" \
	bench --device cpu
expect_output "^memory +[0-9.]+ GB/s read$" bench --device cpu --threads 1

"$program" prune "$source/models/llama-demo" -o "$work/pruned" --method magnitude --pattern 2:4 --basis none -q >"$work/out" 2>"$work/err" ||
	complain "pruning fails"
expect_json "[r['held'] for r in d['rates']] == ['dense', 'without zeros'] and \
[[w['form'] for w in r['weights']] for r in d['rates']] == [['dense'], ['2:4']] and d['speedup'] > 0 and \
all(r['tokens_per_second'] > 0 and r['prompt_tokens_per_second'] > 0 and r['bandwidth_share'] > 0 and r['sgemm_share'] > 0 for r in d['rates']) and \
d['rates'][1]['bytes_per_token'] < d['rates'][0]['bytes_per_token']" bench "$work/pruned" --device cpu
expect_output "^without zeros: [0-9]+ 2:4, " bench "$work/pruned" --device cpu
expect_output "no operator has enough zeros" bench "$source/models/llama-demo" --device cpu

expect 2 "unexpected argument 'b'" bench a b
expect 3 "nowhere" bench nowhere --device cpu
expect 4 "whole model must be in memory" bench "$source/models/llama-demo" --device cpu --memory 1M
expect 2 "has no flag --prompt" bench --prompt x
finish
