#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune --calibration self, and without any text: the model writes the calibration windows.
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1
model=$source/models/llama-demo
flags="--preset fast --basis none --samples 8 --sequence-length 64 --threads 1"

# prune FOLDER ARGUMENT...
prune() {
	folder=$1
	shift
	# shellcheck disable=SC2086 # the flags are words
	"$program" prune "$model" -o "$folder" $flags "$@" >"$work/out" 2>"$work/err" </dev/null
}

prune word --calibration self || complain "--calibration self fails"
grep -q "calibration self: 8 windows of 64 tokens.*texts.*distinct.*perplexity" "$work/err" || complain "it does not say what it did"
grep -Eq "^calibration +its own text: 8 windows of 64 tokens" "$work/out" || complain "the result does not say what it did"
prune nothing --report nothing.html || complain "prune without a text fails"
grep -q "no --calibration FILE: .* writes the calibration text" "$work/err" || complain "nothing is said of the text"
grep -q "calibration texts that the model wrote</th><td>[0-9]" nothing.html || complain "the page does not say what it did"
diff -r word nothing >/dev/null || complain "two runs differ"
prune seed --seed 2 || complain "--seed fails"
cmp -s word/model.safetensors seed/model.safetensors && complain "another seed gives the same weights"
python3 - word/pruning_report.json <<'PYTHON' || complain "the report lacks the text's figures"
import json, sys
d = json.load(open(sys.argv[1]))
t = d["own_text"]
assert d["calibration_windows"] == 8 and t["texts"] >= 8 and 0.5 <= t["least_distinct"] <= t["distinct"] <= 1, t
assert 1 < t["perplexity"] < 30 and t["drawn_tokens"] >= 8 * 63 and t["temperature"] >= 1 and "seconds" not in t, t
PYTHON
prune checked --check --json || complain "--check fails"
python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
assert 0 < d['check']['kl'] < 1 and d['check']['windows'] == 1024 and d['own_text']['seconds'] > 0, d['check']
assert d['own_text']['texts'] < 100, d['own_text'] # of the 8 windows, not of the check's" "$work/out" ||
	complain "--check measures nothing"

# what cannot be is said before the text is written
expect 2 "--layers '9-9': must be" prune "$source/models/llama-demo" -o wrong --layers 9-9 --samples 4 --sequence-length 64
grep -q "calibration self" "$work/err" && complain "the text is written before the layers are looked at"

# a plan draws nothing
prune plan --dry-run --verbose || complain "--dry-run fails"
grep -q "calibration self: 8" "$work/err" && complain "--dry-run draws the text"
grep -Eq "^tokens +512$" "$work/out" || complain "--dry-run does not count the tokens"

# a resumed run has the windows of the run that was stopped
# shellcheck disable=SC2086
"$program" prune "$model" -o stopped $flags >"$work/out" 2>"$work/err" </dev/null &
child=$!
while kill -0 $child 2>/dev/null && [ ! -e ".stopped.partial/layer-00000" ]; do sleep 0.02; done
kill -TERM $child 2>/dev/null || complain "the run was over before the signal came"
wait $child
cp -r .stopped.partial kept
prune stopped && complain "an unfinished run is overwritten"
grep -q "drawn again" "$work/err" && complain "the text is drawn before an unfinished run is noticed"
prune stopped --resume || complain "--resume fails"
grep -q "windows of the unfinished run are used" "$work/err" || complain "the text is drawn again"
diff -r word stopped >/dev/null || complain "a resumed run differs"
# damaged or missing: drawn again, which gives the same
rm -r stopped
cp -r kept .stopped.partial
printf 'x' | dd of=.stopped.partial/own-text bs=1 seek=300 conv=notrunc 2>/dev/null
prune stopped --resume || complain "--resume with damaged windows fails"
grep -q "drawn again" "$work/err" || complain "damaged windows are used"
diff -r word stopped >/dev/null || complain "a run that was resumed with damaged windows differs"
rm -r stopped
cp -r kept .stopped.partial
expect 2 "setting seed '0'.*'3'" prune "$model" -o stopped --preset fast --basis none --samples 8 --sequence-length 64 --threads 1 \
	--resume --seed 3
expect 2 "another calibration text" prune "$model" -o stopped --preset fast --basis none --samples 8 --sequence-length 64 --threads 1 \
	--resume --calibration "$source/models/calibration.jsonl"

# compare draws the same text
flags="--pattern 2:4 --samples 8 --sequence-length 64 --threads 1"
prune wanda --method wanda --json || complain "Wanda with the model's own text fails"
for text in "" "--calibration self"; do
	rm -rf rows
	# shellcheck disable=SC2086 # the flags are words
	"$program" compare "$model" --text documents.jsonl --methods wanda --patterns 2:4 --samples 8 --sequence-length 64 --threads 1 \
		--work rows --json $text >"$work/rows" 2>"$work/err" || complain "compare with the model's own text fails"
	grep -q "the model writes the calibration text" "$work/err" || complain "compare does not say whose text it is"
	python3 -c "
import json, sys
alone, compared = (json.load(open(path)) for path in sys.argv[1:])
row = [row for row in compared['rows'] if row['method'] == 'wanda'][0]
assert row['relative_error'] == alone['relative_error'] and compared['calibration'] == ['self'], row" "$work/out" "$work/rows" ||
		complain "compare has another text than prune"
done
expect 2 "cannot be mixed with files" compare "$model" --text documents.jsonl --calibration self --calibration documents.jsonl
expect 2 "samples 0.*no end" compare "$model" --text documents.jsonl --samples-list 0 --work none

# bad input
expect 2 "cannot be mixed with files" prune "$model" -o bad --calibration self --calibration documents.jsonl
expect 2 "samples 0.*no end" prune "$model" -o bad --samples 0
expect 4 "give --calibration FILE.*whole model must be in memory" prune "$model" -o bad --memory 1M
expect 2 "exists already" prune "$model" -o word
cp -r good startless
python3 - startless <<'PYTHON'
import json, sys
path = sys.argv[1] + "/config.json"
config = json.load(open(path))
config.pop("bos_token_id")
config.pop("eos_token_id")
json.dump(config, open(path, "w"))
tokenizer = json.load(open(sys.argv[1] + "/tokenizer.json"))
tokenizer["post_processor"] = None
json.dump(tokenizer, open(sys.argv[1] + "/tokenizer.json", "w"))
PYTHON
rm -f startless/tokenizer_config.json startless/special_tokens_map.json startless/generation_config.json
expect 3 "no token that begins a text.*--calibration FILE" prune startless -o bad
sed 's/^{/{"bos_token_id": 4294967296, /' startless/config.json >far.json && mv far.json startless/config.json
expect 3 "no token that begins a text.*--calibration FILE" prune startless -o bad
[ -e bad ] && complain "a failed run left its output"
# the method that needs no text gets none
"$program" prune "$model" -o magnitude --method magnitude >"$work/out" 2>"$work/err" || complain "magnitude fails"
grep -q "calibration self" "$work/err" && complain "magnitude draws a text"
finish
