#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several ranks under mpirun: they write the same bytes as one rank, resume after SIGKILL, and are refused if layers
# depend on each other; a failing rank ends the job with its message.
. "$2/tests/cli/common.sh"
command -v mpirun >/dev/null || skip "there is no mpirun"
[ -e "$(dirname "$program")/libfistapruner_mpi.so" ] || skip "the program was built without MPI"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
text=$source/models/calibration.jsonl

# prune MODEL RANKS FOLDER ARGUMENT...
prune() {
	model=$1
	ranks=$2
	folder=$3
	shift 3
	launcher=
	[ "$ranks" -gt 1 ] && launcher="mpirun --allow-run-as-root --oversubscribe -n $ranks"
	# shellcheck disable=SC2086 # the launcher is words
	$launcher "$program" prune "$model" -o "$folder" --calibration "$text" --samples 8 --sequence-length 64 --preset fast --threads 1 \
		--device cpu "$@" >"$work/out" 2>"$work/err" </dev/null
}

for model in "$source/models/llama-demo" "$source/models/opt-demo"; do
	for flags in "--correction intra" "--preset best --set fit_steps=4 --correction intra" \
		"--correction none --preset paper --set iterations=4" "--layers 2-4 --correction intra" "--correction intra --quantize int4"; do
		rm -rf alone shared
		# shellcheck disable=SC2086
		prune "$model" 1 alone $flags || complain "one rank fails: $flags"
		for ranks in 2 3 8; do
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

prune "$source/models/llama-demo" 2 crossed
[ $? -eq 2 ] && grep -q -- "--correction intra" "$work/err" || complain "--correction cross on two ranks"
prune "$source/models/llama-demo" 2 sequential --method wanda
[ $? -eq 2 ] && grep -q "one rank" "$work/err" || complain "--method wanda on two ranks"
prune "$source/models/llama-demo" 2 alone --correction intra
[ $? -eq 2 ] && [ "$(grep -c "exists already" "$work/err")" -eq 1 ] || complain "an output that exists, told once"
prune nan-weights 2 failed --correction intra --sequence-length 32
code=$?
[ $code -eq 3 ] && grep -q "rank . of 2: .*contains NaN" "$work/err" || complain "a failing rank ($code)"
[ -e failed ] && complain "a failed job left its output"

# One layer in the middle is unfinished, all later ones are finished: no rank waits for hidden states that none needs.
model=$source/models/llama-demo
"$program" prune "$model" -o gap --calibration "$text" --samples 8 --sequence-length 64 --preset fast --threads 1 --device cpu \
	--correction intra >"$work/out" 2>"$work/err" &
child=$!
while kill -0 $child 2>/dev/null && [ ! -e .gap.partial/layer-00000 ]; do sleep 0.01; done
mkdir .gap.partial/output/pruning_report.json # makes the last step fail
wait $child
rmdir .gap.partial/output/pruning_report.json
[ -e .gap.partial/layer-00005 ] || complain "a run that fails at its end has not kept its layers"
rm .gap.partial/layer-00002
timeout 100 mpirun --allow-run-as-root --oversubscribe -n 3 "$program" prune "$model" -o gap --calibration "$text" --samples 8 \
	--sequence-length 64 --preset fast --threads 1 --device cpu --correction intra --resume >"$work/out" 2>"$work/err" ||
	complain "three ranks with one open layer"
rm -rf alone
prune "$model" 1 alone --correction intra
diff -r alone gap >/dev/null || complain "three ranks with one open layer give other bytes"

python3 "$source/tests/cli/kill_and_resume.py" "$program" "$source" 5 2 || complain "kill_and_resume.py with two ranks"
finish
