#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate: the text is on stdout and nothing else; figures and warnings are on stderr; one document with --json.
. "$2/tests/cli/common.sh"
demo=$source/models/llama-demo
greedy=$source/tests/fixtures/generation/greedy.json

# the texts of transformers, for a flag, for standard input and for a batch
python3 - "$greedy" "$work" <<'PYTHON'
import json, sys
for i, entry in enumerate(json.load(open(sys.argv[1]))["own"]["models/llama-demo"]):
    open(f"{sys.argv[2]}/text{i}", "w").write(entry["text"] + "\n")
    open(f"{sys.argv[2]}/prompt{i}", "w").write(entry["prompt"] + "\n")
    open(f"{sys.argv[2]}/prompts.jsonl", "a" if i else "w").write(json.dumps({"id": i, "text" if i == 1 else "prompt": entry["prompt"]}) + "\n\n")
PYTHON
for i in 0 1 2; do
	"$program" generate "$demo" --prompt "$(cat "$work/prompt$i")" --max-tokens 64 >"$work/out" 2>"$work/err" ||
		complain "prompt $i fails"
	cmp -s "$work/out" "$work/text$i" || complain "prompt $i: not the text of transformers"
	"$program" generate "$demo" --max-tokens 64 <"$work/prompt$i" >"$work/out" 2>"$work/err" || complain "stdin $i fails"
	cmp -s "$work/out" "$work/text$i" || complain "prompt $i from stdin: not the text of transformers"
done
grep -Eq "^text +64 tokens, [0-9.]+ per second; ended by --max-tokens" "$work/err" || complain "no tokens per second"
for size in 1 2 8; do
	"$program" generate "$demo" --batch "$work/prompts.jsonl" --batch-size $size --max-tokens 64 >"$work/out" 2>"$work/err" ||
		complain "a batch fails"
	python3 - "$greedy" "$work/out" <<'PYTHON' || complain "the batch of $size is not what transformers writes"
import json, sys
wanted = json.load(open(sys.argv[1]))["own"]["models/llama-demo"]
got = [json.loads(line) for line in open(sys.argv[2])]
sys.exit([(g["prompt"], g["text"], g["ids"]) for g in got] != [(w["prompt"], w["text"], w["ids"]) for w in wanted])
PYTHON
done
expect_json "len(d['results']) == 1 and d['results'][0]['tokens'] == len(d['results'][0]['ids']) == d['tokens'] == 5 and \
d['results'][0]['stop'] == '--max-tokens' and d['tokens_per_second'] > 0 and d['prompt_tokens'] == d['results'][0]['prompt_tokens'] > 1" \
	generate "$demo" --prompt "Once upon a time" --max-tokens 5
expect_json "[r['tokens'] for r in d['results']] == [7, 7, 7]" \
	generate "$demo" --batch "$work/prompts.jsonl" --max-tokens 7

# weights are held without their zeros where that pays, and the text is that of the same weights with them
for pattern in 50% 2:4 70%; do
	"$program" prune "$demo" -o "$work/pruned" --method magnitude --pattern $pattern --basis none -q >"$work/out" 2>"$work/err" ||
		complain "pruning to $pattern fails"
	form=mask
	[ $pattern = 2:4 ] && form=2:4
	expect_json "[(w['form'], w['operators'] > 0, w['bytes'] > 0) for w in d['weights']] == [('$form', True, True)]" \
		generate "$work/pruned" --prompt "One day" --max-tokens 5
	grep -q . "$work/out" || complain "no document"
	"$program" generate "$work/pruned" --prompt "One day" --max-tokens 5 >"$work/out" 2>"$work/err"
	grep -Eq "^weights +[0-9]+ operators $form \(" "$work/err" || complain "$pattern: stderr does not name the form"
	rm -r "$work/pruned"
done
expect_json "[w['form'] for w in d['weights']] == ['dense']" generate "$demo" --prompt "One day" --max-tokens 5

# sampling is reproduced by its seed
sampled() {
	"$program" generate "$demo" --prompt "One day" --max-tokens 40 -q "$@" 2>>"$work/err"
}
one=$(sampled --temperature 1 --seed 3) two=$(sampled --temperature 1 --seed 3) other=$(sampled --temperature 1 --seed 4)
[ "$one" = "$two" ] && [ -n "$one" ] || complain "the same seed gives two texts: $one / $two"
[ "$one" != "$other" ] || complain "two seeds give the same text"
[ "$(sampled)" = "$(sampled --temperature 3 --top-k 1)" ] || complain "top-k 1 is not the most likely token"
[ "$(sampled)" = "$(sampled --temperature 3 --top-p 0)" ] || complain "top-p 0 is not the most likely token"

# what ends a text
stop=$(python3 -c "import json; print(json.load(open('$greedy'))['own']['models/llama-demo'][0]['ids'][9])")
cp -r "$demo" "$work/stops" && chmod -R u+w "$work/stops"
echo "{\"eos_token_id\": [$stop, 3]}" >"$work/stops/generation_config.json"
expect_json "d['results'][0]['ids'][-1] == $stop and d['results'][0]['stop'] == 'a stop token' and d['tokens'] <= 10" \
	generate "$work/stops" --prompt "Once upon a time"
rm "$work/stops/generation_config.json"
python3 - "$work/stops/config.json" <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1]))
config.pop("eos_token_id")
config["max_position_embeddings"] = 12
json.dump(config, open(sys.argv[1], "w"))
PYTHON
expect 0 "name no stop token.*--max-tokens 3" generate "$work/stops" --prompt "Once" --max-tokens 3
expect_json "d['results'][0]['stop'] == \"the model's last position\" and d['results'][0]['prompt_tokens'] + d['tokens'] == 12" \
	generate "$work/stops" --prompt "Once upon a time"

# bad input
expect 2 "prompt has [0-9]+ tokens, but .* 12 positions.* at most 11" \
	generate "$work/stops" --prompt "Once upon a time there was a little girl who had a big red ball in the garden"
expect 2 "prompt is empty" generate "$demo" --prompt ""
expect 2 "prompt is empty" generate "$demo"
expect 2 "exclude each other" generate "$demo" --prompt x --batch "$work/prompts.jsonl"
expect 3 "missing.jsonl" generate "$demo" --batch missing.jsonl
echo '{"prompt": 3}' >"$work/bad.jsonl"
expect 3 "bad.jsonl: line 1: must be an object" generate "$demo" --batch "$work/bad.jsonl"
printf '{"prompt": "a"}\n{"prompt": ' >"$work/bad.jsonl"
expect 3 "bad.jsonl: line 2" generate "$demo" --batch "$work/bad.jsonl"
: >"$work/bad.jsonl"
expect 3 "has no prompts" generate "$demo" --batch "$work/bad.jsonl"
printf '{"prompt": "a"}\n{"prompt": ""}\n' >"$work/bad.jsonl"
expect 2 "prompt 2: the prompt is empty" generate "$demo" --batch "$work/bad.jsonl"
expect 4 "whole model must be in memory" generate "$demo" --prompt x --memory 1M
expect 4 "keys and values of 3 sequences of up to [0-9]+ tokens.*--batch-size" \
	generate "$demo" --batch "$work/prompts.jsonl" --max-tokens 500 --memory 13M
expect 2 "temperature" generate "$demo" --prompt x --temperature -1
expect 2 "did you mean --top-k" generate "$demo" --prompt x --top_kk 3
finish
