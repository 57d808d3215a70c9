#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune --resume: after SIGTERM, after SIGKILL, and when it must be refused.
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1
model=$source/models/llama-demo
text=$source/models/calibration.jsonl

# begin FOLDER SIGNAL ARGUMENT...: starts a run and sends the signal when a layer is finished.
begin() {
	folder=$1
	number=$2
	shift 2
	"$program" prune "$model" -o "$folder" --calibration "$text" --preset fast --threads 1 "$@" >"$work/out" 2>"$work/err" </dev/null &
	child=$!
	while kill -0 $child 2>/dev/null && [ ! -e ".$folder.partial/layer-00000" ]; do sleep 0.02; done
	kill "-$number" $child 2>/dev/null || complain "the run was over before the signal came"
	wait $child
	code=$?
	[ -e "$folder" ] && complain "an unfinished run has its output under the final name"
}

prune() {
	"$program" prune "$model" --calibration "$text" --preset fast --threads 1 "$@" >"$work/out" 2>"$work/err" </dev/null
}

# With correction=cross the pruned model's hidden states are computed again; a fit changes other tensors than operators.
# Finished operators that are quantised are decoded from the output.
for flags in "--samples 16" "--samples 16 --preset best --set fit_steps=8" "--samples 64 --method wanda --pattern 2:4" \
	"--samples 16 --preset best --set fit_steps=8 --quantize int4-asym" "--samples 16 --quantize fp8"; do
	rm -rf whole stopped .stopped.partial
	# shellcheck disable=SC2086 # the flags are words
	prune -o whole $flags || complain "prune $flags fails"
	# shellcheck disable=SC2086
	begin stopped TERM $flags
	[ "$code" -eq 130 ] || complain "SIGTERM gave exit code $code"
	grep -q "interrupted" "$work/err" || complain "the interruption is not reported"
	command=$(grep -- "--resume$" "$work/err")
	[ -n "$command" ] || complain "no command to resume is printed"
	sh -c "$command" >"$work/out" 2>"$work/err" || complain "'$command' fails"
	grep -q "resuming: [1-9]" "$work/err" || complain "nothing was kept"
	diff -r whole stopped >/dev/null || complain "a resumed run differs: $flags"
	[ -e .stopped.partial ] && complain "the working folder stays"
done

begin killed KILL --samples 16
expect 2 "unfinished run.*--resume" prune "$model" -o killed --calibration "$text" --preset fast --threads 1 --samples 16
expect 2 "setting samples '16'.*'32'" prune "$model" -o killed --calibration "$text" --preset fast --threads 1 --samples 32 --resume
expect 2 "setting pattern '50%'.*'2:4'" prune "$model" -o killed --calibration "$text" --preset fast --threads 1 --samples 16 \
	--resume --pattern 2:4
expect 2 "another calibration text" prune "$model" -o killed --calibration "$source/models/evaluation.jsonl" --preset fast --threads 1 \
	--samples 16 --resume
cp .killed.partial/run.json run.json
sed 's/"build": "[0-9a-f]*"/"build": "0123456789abcdef"/; s/"commit": "[^"]*"/"commit": "abc123"/' run.json >.killed.partial/run.json
expect 2 "started by fistapruner.*commit abc123, build 0123456789abcdef.*but this is" prune "$model" -o killed --calibration "$text" \
	--preset fast --threads 1 --samples 16 --resume
grep -v '"build"' run.json >.killed.partial/run.json
expect 2 "started by fistapruner.*build unknown.*but this is" prune "$model" -o killed --calibration "$text" --preset fast --threads 1 \
	--samples 16 --resume
cp run.json .killed.partial/run.json
cp -r "$model" other
touch other/model.safetensors
expect 2 "another model: model.safetensors" prune other -o killed --calibration "$text" --preset fast --threads 1 --samples 16 --resume
printf damaged | dd of=.killed.partial/layer-00000 bs=1 seek=100 conv=notrunc 2>/dev/null
prune -o killed --samples 16 --resume || complain "a resume after refusals fails"
grep -q "layer-00000: is damaged" "$work/err" || complain "a damaged record is not noticed"
prune -o plain --samples 16
diff -r plain killed >/dev/null || complain "the resumed run differs after refusals"

# A directory that is not the working directory of a run is not written to.
ln -s "$work" .linked.partial
expect 1 "is not a folder of this user" prune "$model" -o linked --calibration "$text" --samples 8 --sequence-length 32

kills=10
! sanitized || kills=3 # such a build is several times slower
python3 "$source/tests/cli/kill_and_resume.py" "$program" "$source" $kills || complain "kill_and_resume.py"
finish
