#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several ranks under mpirun: they write the same bytes as one rank, whether they divide the layers or share the windows
# of each, and resume after SIGKILL; a failing rank ends the job with its message.
. "$2/tests/cli/common.sh"
command -v mpirun >/dev/null || skip "there is no mpirun"
[ -e "$(dirname "$program")/libfistapruner_mpi.so" ] || skip "the program was built without MPI"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
text=$source/models/calibration.jsonl

# prune MODEL RANKS FOLDER ARGUMENT...: few steps, because what ranks divide does not depend on their number
prune() {
	model=$1
	ranks=$2
	folder=$3
	shift 3
	launcher=
	[ "$ranks" -gt 1 ] && launcher="mpirun --allow-run-as-root --oversubscribe -n $ranks"
	steps="--set basis_steps=8"
	case "$*" in *--method* | *paper*) ;; *) steps="$steps --set search_steps=8 --set refit_steps=8" ;; esac
	# shellcheck disable=SC2086 # the launcher and the steps are words
	$launcher "$program" prune "$model" -o "$folder" --calibration "$text" --samples 8 --sequence-length 64 --preset fast --threads 1 \
		--device cpu $steps "$@" >"$work/out" 2>"$work/err" </dev/null
}

# Layers that depend on each other: ranks share the windows and the solves.
models=$source/models
same_bytes() {
	name=$1
	counts=$2
	shift 2
	rm -rf alone
	prune "$models/$name" 1 alone "$@" || complain "one rank fails: $name $*"
	for ranks in $counts; do
		rm -rf shared
		prune "$models/$name" "$ranks" shared "$@" || complain "$ranks ranks fail: $name $*"
		diff -r alone shared >/dev/null || complain "$ranks ranks give other bytes than one: $name $*"
		[ -e .shared.partial ] && complain "the working folder of $ranks ranks stays: $name $*"
	done
}

if part shared; then
	models=$source/../shared/models
	[ -d "$models/stories15M" ] || skip "there are no shared models"
	text=$source/../shared/data/tinystories-calibration.jsonl
	for name in stories15M opt-stories-26m; do
		same_bytes $name "2 3" --method sparsegpt --pattern 2:4 --samples 16 --sequence-length 128
	done
	# wide enough for ranks to share the turns of the basis
	same_bytes stories15M 3 --basis full --pattern 2:4 --samples 4 --sequence-length 64 --layers 0-0 --set basis_steps=4
	# the head multiplies 500 rows at once: where products are rounded, those that are left over may be too few for it
	same_bytes opt-stories-26m 2 --basis local --pattern 2:4 --samples 8 --sequence-length 64 --layers 0-0 --precision bf16 --set basis_steps=4
	finish
fi

for model in "$source/models/llama-demo" "$source/models/opt-demo"; do
	for flags in "--correction intra" "--preset best --set fit_steps=4 --correction intra" \
		"--correction none --preset paper --set iterations=4" "--preset best --set fit_steps=4 --correction none" "--layers 2-4 --correction intra" "--correction intra --quantize int4"; do
		rm -rf alone shared
		# shellcheck disable=SC2086
		prune "$model" 1 alone $flags || complain "one rank fails: $flags"
		counts="2 3"
		[ "$flags" != "--correction intra" ] || counts="2 3 8" # also more ranks than layers
		for ranks in $counts; do
			rm -rf shared
			# shellcheck disable=SC2086
			prune "$model" $ranks shared $flags --json --metrics "lines-$ranks" || complain "$ranks ranks fail: $flags"
			diff -r alone shared >/dev/null || complain "$ranks ranks give other bytes than one: $flags"
			python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
lines = [json.loads(line)['name'] for line in open(sys.argv[2])]
assert d['ranks'] == $ranks and [o['name'] for o in d['operators']] == lines, d['ranks']
" "$work/out" "lines-$ranks" || complain "the document or the metrics of $ranks ranks"
			[ -e .shared.partial ] && complain "the working folder of $ranks ranks stays"
		done
		[ "$model" = "$source/models/opt-demo" ] && break
	done
done

same_bytes llama-demo "2 3 4"
same_bytes llama-demo "2 3" --preset best --pattern 2:4 --set fit_steps=4
same_bytes llama-demo "2 4" --method sparsegpt
same_bytes llama-demo 3 --method wanda
same_bytes opt-demo 4
same_bytes opt-demo 3 --method sparsegpt
same_bytes opt-demo 3 --preset best --basis none --set fit_steps=4 --adapt 0.005
same_bytes moe-demo 2 --preset best --set fit_steps=4
same_bytes llama-demo 3 --preset fast --basis none --pattern 2:4 --quantize int4
same_bytes moe-demo 2 --preset best --basis none --set fit_steps=2 --quantize fp8
same_bytes moe-demo 2 --method alps --memory 30M
same_bytes llama-demo 3 --method admm --layers 1-2
same_bytes llama-demo 2 --basis none --set allocate=0.2
same_bytes llama-demo 5 --basis none --samples 2 # more ranks than windows
same_bytes llama-demo "2 4" --basis none --pattern 2:4 --precision bf16 # where the processor can, small products are not rounded

rm -rf shared
prune "$source/models/llama-demo" 3 shared --json --metrics lines --method sparsegpt --samples 4
python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
lines = [json.loads(line)['name'] for line in open('lines')]
assert d['ranks'] == 3 and [o['name'] for o in d['operators']] == lines and len(lines) == 42, d['ranks']
" "$work/out" || complain "the document or the metrics of ranks that share windows"
prune "$source/models/llama-demo" 2 alone --correction intra
[ $? -eq 2 ] && [ "$(grep -c "exists already" "$work/err")" -eq 1 ] || complain "an output that exists, told once"
prune nan-weights 2 failed --correction intra --sequence-length 32
code=$?
[ $code -eq 3 ] && grep -q "rank . of 2: .*contains NaN" "$work/err" || complain "a failing rank ($code)"
prune nan-weights 2 failed --method wanda --sequence-length 32
code=$?
[ $code -eq 3 ] && grep -q "rank . of 2: .*contain.* NaN" "$work/err" || complain "a failing rank of those that share windows ($code)"
[ -e failed ] && complain "a failed job left its output"

# One layer in the middle is unfinished, all later ones are finished: no rank waits for hidden states that none needs.
model=$source/models/llama-demo
flags="--calibration $text --samples 8 --sequence-length 64 --preset fast --set basis_steps=8 --threads 1 --device cpu --correction intra"
# shellcheck disable=SC2086 # the flags are words
{
	"$program" prune "$model" -o gap $flags >"$work/out" 2>"$work/err" &
	child=$!
	while kill -0 $child 2>/dev/null && [ ! -e .gap.partial/layer-00000 ]; do sleep 0.01; done
	mkdir .gap.partial/output/pruning_report.json # makes the last step fail
	wait $child
	rmdir .gap.partial/output/pruning_report.json
	[ -e .gap.partial/layer-00005 ] || complain "a run that fails at its end has not kept its layers"
	rm .gap.partial/layer-00002
	timeout 100 mpirun --allow-run-as-root --oversubscribe -n 3 "$program" prune "$model" -o gap $flags --resume >"$work/out" 2>"$work/err" ||
		complain "three ranks with one open layer"
	expect 0 "" prune "$model" -o no-gap $flags
}
diff -r no-gap gap >/dev/null || complain "three ranks with one open layer give other bytes"

python3 "$source/tests/cli/kill_and_resume.py" "$program" "$source" 5 2 || complain "kill_and_resume.py with two ranks"
python3 "$source/tests/cli/kill_and_resume.py" "$program" "$source" 5 1,2,3 0 cross ||
	complain "kill_and_resume.py with ranks that share windows"
python3 "$source/tests/cli/kill_and_resume.py" "$program" "$source" 5 1,2,3 0 best ||
	complain "kill_and_resume.py with ranks that share rows"

# With OpenBLAS's kernels for AVX2 the bits of a row depend on how many others a call has, and on the threads.
if grep -qw avx2 /proc/cpuinfo; then
	export OPENBLAS_CORETYPE=Haswell
	same_bytes llama-demo "2 3" --pattern 2:4 --threads 2
	same_bytes opt-demo 3
fi
# ranks whose kernels differ, as on machines with different processors, divide rows alike and learn the same basis
if grep -qw avx512bw /proc/cpuinfo; then
	rm -rf alone shared
	set -- "$program" prune "$source/models/llama-demo" --calibration "$text" --samples 16 --sequence-length 64 --pattern 2:4 --threads 1 \
		--device cpu --preset fast --basis full --layers 0-0 --json
	"$@" -o alone >"$work/alone" 2>"$work/err" </dev/null || complain "one rank fails"
	mpirun --allow-run-as-root --oversubscribe -n 1 env OPENBLAS_CORETYPE=Nehalem "$@" -o shared : \
		-n 2 env OPENBLAS_CORETYPE=SkylakeX "$@" -o shared >"$work/out" 2>"$work/err" </dev/null || complain "ranks with different kernels fail"
	python3 -c "
import json, sys
alone, shared = (json.load(open(path))['basis']['removed'][1] for path in sys.argv[1:])
assert shared < 1.05 * alone, (alone, shared)" "$work/alone" "$work/out" || complain "ranks with different kernels learn a worse basis"
fi
# so do ranks with different memory, which would take batches of their own
rm -rf shared
set -- "$program" prune "$source/models/llama-demo" -o shared --calibration "$text" --samples 64 --sequence-length 256 --pattern 2:4 --threads 1 \
	--device cpu --preset fast --basis none --correction intra --layers 0-1 --set search_steps=2 --set refit_steps=2
mpirun --allow-run-as-root --oversubscribe -n 1 "$@" --memory 2G : -n 1 "$@" --memory 75M >"$work/out" 2>"$work/err" </dev/null ||
	complain "ranks with different memory fail: $(tail -1 "$work/err")"
finish
