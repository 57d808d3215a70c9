#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune --resume: after SIGTERM, after SIGKILL, and when it must be refused.
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1
model=$source/models/llama-demo
text=$source/models/calibration.jsonl
short="--preset fast --threads 1 --sequence-length 64 --set basis_steps=8" # long enough for a signal to come in time

# begin FOLDER SIGNAL ARGUMENT...: starts a run and sends the signal when a layer is finished.
begin() {
	folder=$1
	number=$2
	shift 2
	# shellcheck disable=SC2086 # the flags are words
	"$program" prune "$model" -o "$folder" --calibration "$text" $short "$@" >"$work/out" 2>"$work/err" </dev/null &
	child=$!
	while kill -0 $child 2>/dev/null && [ ! -e ".$folder.partial/layer-00000" ]; do sleep 0.02; done
	kill "-$number" $child 2>/dev/null || complain "the run was over before the signal came"
	wait $child
	code=$?
	[ -e "$folder" ] && complain "an unfinished run has its output under the final name"
}

prune() {
	# shellcheck disable=SC2086 # the flags are words
	"$program" prune "$model" --calibration "$text" $short "$@" >"$work/out" 2>"$work/err" </dev/null
}

# With correction=cross the pruned model's hidden states are computed again; a fit changes other tensors than operators.
# Finished operators that are quantised are decoded from the output.
for flags in "--samples 16" "--samples 16 --preset best --set fit_steps=8" "--samples 128 --method wanda --pattern 2:4" \
	"--samples 16 --preset best --set fit_steps=8 --quantize int4-asym" "--samples 16 --quantize fp8"; do
	rm -rf whole stopped .stopped.partial
	# shellcheck disable=SC2086 # the flags are words
	prune -o whole $flags || complain "prune $flags fails"
	# shellcheck disable=SC2086
	begin stopped TERM $flags
	[ "$code" -eq 130 ] || complain "SIGTERM gave exit code $code"
	grep -q "interrupted" "$work/err" || complain "the interruption is not reported"
	command=$(grep -- " prune --resume " "$work/err")
	[ -n "$command" ] || complain "no command to resume is printed"
	sh -c "$command" >"$work/out" 2>"$work/err" || complain "'$command' fails"
	grep -q "resuming: [1-9]" "$work/err" || complain "nothing was kept"
	diff -r whole stopped >/dev/null || complain "a resumed run differs: $flags"
	[ -e .stopped.partial ] && complain "the working folder stays"
done

# refused MESSAGE MODEL TEXT ARGUMENT...: the run that was killed is not continued like this.
refused() {
	message=$1
	other_model=$2
	other_text=$3
	shift 3
	# shellcheck disable=SC2086 # the flags are words
	expect 2 "$message" prune "$other_model" -o killed --calibration "$other_text" $short --samples 16 "$@"
}

begin killed KILL --samples 16
refused "unfinished run.*--resume" "$model" "$text"
refused "setting samples '16'.*'32'" "$model" "$text" --samples 32 --resume
refused "setting pattern '50%'.*'2:4'" "$model" "$text" --resume --pattern 2:4
refused "another calibration text" "$model" "$source/models/evaluation.jsonl" --resume
cp .killed.partial/run.json run.json
sed 's/"build": "[0-9a-f]*"/"build": "0123456789abcdef"/; s/"commit": "[^"]*"/"commit": "abc123"/' run.json >.killed.partial/run.json
refused "started by fistapruner.*commit abc123, build 0123456789abcdef.*but this is" "$model" "$text" --resume
grep -v '"build"' run.json >.killed.partial/run.json
refused "started by fistapruner.*build unknown.*but this is" "$model" "$text" --resume
cp run.json .killed.partial/run.json
cp -r "$model" other
touch other/model.safetensors
refused "another model: model.safetensors" other "$text" --resume
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
