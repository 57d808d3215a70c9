#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# distill: a pruned model comes nearer to the dense one on text that it has not seen, keeps its pattern, and is written
# with the same bytes by every run, also with little memory; what cannot be is refused and leaves nothing.
. "$2/tests/cli/common.sh"
models=$source/models
text=$models/calibration.jsonl
tail -n 40 "$models/evaluation.jsonl" >held-out.jsonl
short="--calibration $text --samples 48 --sequence-length 64 --threads 1 --device cpu --set fit_steps=24 --set fit_tokens=512"
for name in llama-demo opt-demo; do
	expect 0 "" prune "$models/$name" -o "$name-half" --method wanda --pattern 2:4 --calibration "$text" --samples 16 --sequence-length 64 --threads 1 --device cpu
	# shellcheck disable=SC2086 # the flags are words
	expect_json "d['kl_after'] < 0.9 * d['kl_before'] and 0 < d['kept_steps'] <= d['steps'] and d['windows'] == 48" \
		distill "$name-half" --reference "$models/$name" -o "$name-near" $short
	expect_json "d['violations'] == 0 and d['negative_zeros'] == 0" inspect "$name-near" --pattern 2:4
	for model in half near; do
		"$program" eval "$name-$model" --text held-out.jsonl --reference "$models/$name" --sequence-length 64 --threads 1 --device cpu --json \
			>"$model.json" 2>"$work/err" || complain "$name-$model cannot be evaluated"
	done
	python3 -c "
import json
half, near = (json.load(open(name + '.json'))['kl'] for name in ('half', 'near'))
assert near < 0.9 * half, (half, near)" 2>"$work/err" || complain "$name: the divergence on unseen text"
done
# shellcheck disable=SC2086
{
	expect 0 "offloaded: nothing" distill llama-demo-half --reference "$models/llama-demo" -o again --verbose $short
	diff -r llama-demo-near again || complain "two runs differ"
	expect 0 "offloaded: layers" distill llama-demo-half --reference "$models/llama-demo" -o offloaded --memory 32M $short
	diff -r llama-demo-near offloaded || complain "layers that are offloaded give another result"
	# a part of a stored tensor, and a text that has no other windows to judge by
	expect 0 "" prune good -o good-half --method magnitude
	expect 0 "" distill good-half --reference good -o good-near --calibration documents.jsonl --samples 0 --sequence-length 32 --set fit_steps=4 --threads 1

	expect 2 "-o DIR" distill good-half --reference good --calibration documents.jsonl
	expect 2 "--reference DENSE" distill good-half -o out --calibration documents.jsonl
	# the dense model's own text: what prune draws with the same flags, and further windows that judge
	expect_json "d['kl_after'] < d['kl_before'] and d['own_text']['texts'] > 0 and d['windows'] == 8 and d['held_out_windows'] == 32" \
		distill llama-demo-half --reference "$models/llama-demo" -o llama-demo-own --samples 8 --sequence-length 64 --threads 1 --device cpu --set fit_steps=12 --set fit_tokens=256
	# and besides a text, whose last windows judge
	expect_json "d['kl_after'] < d['kl_before'] and d['own_text']['texts'] > 0 and d['windows'] == 40 and d['held_out_windows'] < 32" \
		distill llama-demo-half --reference "$models/llama-demo" -o llama-demo-both --calibration held-out.jsonl --calibration self --samples 40 --sequence-length 256 --threads 1 --device cpu --set fit_steps=12 --set fit_tokens=512
	expect 2 "--samples 0" distill good-half --reference good -o out --samples 0
	expect 3 "different tokenizers" distill good-half --reference "$models/llama-demo" -o out
	expect 3 "no-such" distill good-half --reference no-such -o out --calibration documents.jsonl
	expect 3 "different tokenizers" distill good-half --reference "$models/llama-demo" -o out --calibration documents.jsonl --samples 4 --sequence-length 32
	printf 'a text that has one window of tokens' >one.txt
	expect 2 "2 at least" distill good-half --reference good -o out --calibration one.txt --samples 1 --sequence-length 32
	expect 4 "takes [0-9]+ MiB at least, and 1 MiB may be used.*--samples" distill good-half --reference good -o out --calibration documents.jsonl --samples 4 --sequence-length 32 --memory 1M
	expect 2 "good-half" distill good-half --reference good -o good-half --calibration documents.jsonl
	expect 3 "contains NaN" distill nan-weights --reference good -o out --calibration documents.jsonl --samples 4 --sequence-length 32
}
[ -e out ] || [ -e .out.partial ] && complain "a refused run left its output"
finish
