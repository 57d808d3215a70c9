#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --precision on the CPU: rounded products give a model as good as float's, and a processor without
# them says so and computes in float. Which of the two is tested depends on the processor.
. "$2/tests/cli/common.sh"
head -n 40 "$source/models/evaluation.jsonl" >held-out.jsonl

# prune PRECISION: prunes the demo model; $kl ← its divergence from the dense one.
prune() {
	"$program" prune "$source/models/llama-demo" -o "$work/$1" --calibration "$source/models/calibration.jsonl" \
		--samples 16 --sequence-length 128 --preset paper --pattern 2:4 --device cpu --precision "$1" \
		>"$work/out" 2>"$work/err" </dev/null || complain "--precision $1 fails"
	grep -q "computed in fp32" "$work/err" && : >"$work/in-float-$1"
	"$program" eval "$work/$1" --reference "$source/models/llama-demo" --text held-out.jsonl \
		--device cpu --precision fp32 --json >"$work/out" 2>"$work/err" || complain "eval of --precision $1 fails"
	kl=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["kl"])' "$work/out")
}

prune fp32
exact=$kl
[ -e "$work/in-float-fp32" ] && complain "fp32 is not what the processor lacks"
for precision in bf16x3 bf16; do
	prune $precision
	if [ -e "$work/in-float-$precision" ]; then
		[ "$kl" = "$exact" ] || complain "float gives $exact, but $kl when $precision was asked for"
	else
		# rounding changes the bytes, and the divergence by little: 0.2% to 0.9% were measured
		cmp -s "$work/$precision/model.safetensors" "$work/fp32/model.safetensors" && complain "$precision does not round"
		python3 -c "import sys; sys.exit(not abs(float('$kl') / float('$exact') - 1) < 0.03)" ||
			complain "$precision: a divergence of $kl, but $exact in float"
	fi
	echo "divergence: $exact in fp32, $kl in $precision"
done

# the same bytes for any number of threads, and a narrow model is pruned in float by itself
for threads in 1 3; do
	"$program" prune "$source/models/llama-demo" -o "$work/threads-$threads" --calibration "$source/models/calibration.jsonl" \
		--samples 8 --sequence-length 128 --preset paper --layers 0-1 --device cpu --precision bf16 --threads $threads \
		>"$work/out" 2>"$work/err" </dev/null || complain "--threads $threads fails"
done
cmp "$work/threads-1/model.safetensors" "$work/threads-3/model.safetensors" || complain "threads change the bytes in bf16"
expect 0 "^" prune "$source/models/llama-demo" -o "$work/auto" --calibration "$source/models/calibration.jsonl" \
	--samples 8 --sequence-length 128 --preset paper --layers 0-1 --device cpu
grep -q "precision auto" "$work/err" && complain "auto rounds the products of a narrow model"

finish
