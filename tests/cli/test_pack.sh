#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pack and unpack: the same files again, and packed directories in every other command.
. "$2/tests/cli/common.sh"
run="--calibration documents.jsonl --samples 8 --sequence-length 32 --threads 1"

# sums FOLDER: the digest of each of its files.
sums() {
	(cd "$1" && find . -type f | sort | xargs sha256sum)
}

# same_again FOLDER: packs, unpacks and compares all files.
same_again() {
	rm -rf "$1-packed" "$1-again"
	expect 0 "" pack "$1" -o "$1-packed"
	expect 0 "" unpack "$1-packed" -o "$1-again"
	[ "$(sums "$1")" = "$(sums "$1-again")" ] || complain "$1: other files: $(sums "$1" | diff - "$1-again" | head -3)"
}

# the last argument of each line: how many matrices have each form
for line in "half 50% (42,0)" "pairs 2:4 (0,42)"; do
	# shellcheck disable=SC2086
	set -- $line
	expect 0 "" prune "$source/models/llama-demo" -o "demo-$1" --method wanda --pattern "$2" \
		--calibration "$source/models/calibration.jsonl" --samples 4 --sequence-length 64 --threads 1
	same_again "demo-$1"
	expect_json "d['packed_bytes'] <= 0.57 * d['matrix_bytes'] and d['packed_total'] < d['unpacked_total'] and \
(d['by_mask'], d['as_2_4']) == $3" pack "demo-$1" -o "demo-$1-json"
	one=$("$program" eval "demo-$1" --text documents.jsonl --json 2>/dev/null | grep '"perplexity"')
	two=$("$program" eval "demo-$1-packed" --text documents.jsonl --json 2>/dev/null | grep '"perplexity"')
	[ "$one" = "$two" ] && [ -n "$one" ] || complain "a packed model evaluates to $two, not $one"
done
expect_json "d['violations'] == 0 and d['stored_as'].startswith('packed: 42 matrices as 2:4, 0 by mask')" inspect demo-pairs-packed --pattern 2:4
expect_json "d['kl'] == 0" eval demo-pairs --reference demo-pairs-packed --text documents.jsonl

expect 0 "no matrix was packed" pack good -o good-not-packed

# F32, sharded, tied and other models, sparse or not
for model in good pruned; do
	same_again $model
done
for model in llama-sharded llama-tied opt-plain phi3-plain qwen3-fp8; do
	cp -r "$source/tests/fixtures/model/$model" .
	rm -f $model/captures.bin $model/expected.bin
	cp good/tokenizer.json $model
	same_again $model
done
expect_json "d['stored_as'].startswith('FP8')" inspect qwen3-fp8-packed

# an embedding with zeros is packed, too; generate reads it for every token
cp -r pruned zeros
python3 - <<'PYTHON' || complain "the zeros"
import json, struct
with open("zeros/model.safetensors", "r+b") as file:
    size = struct.unpack("<Q", file.read(8))[0]
    tensor = json.loads(file.read(size))["model.embed_tokens.weight"]
    rows, columns = tensor["shape"]
    file.seek(8 + size + tensor["data_offsets"][0])
    file.write(struct.pack("<%df" % (rows * columns), *[0.1 * (i % 7) if i % 3 == 0 else 0.0 for i in range(rows * columns)]))
PYTHON
same_again zeros
expect_json "any(t['name'] == 'model.embed_tokens.weight' and t['sparsity'] > 0.6 for t in d['tensors'])" inspect zeros-packed
for command in "eval NAME --text documents.jsonl" "generate NAME --prompt once --max-tokens 12"; do
	for name in zeros zeros-packed; do
		# shellcheck disable=SC2046
		"$program" $(echo "$command" | sed "s/NAME/$name/") --json -q 2>"$work/err" |
			grep -E '"(perplexity|kl|text|ids)"' >"$name.result"
	done
	[ -s zeros.result ] && cmp -s zeros.result zeros-packed.result || complain "'$command' differs for the packed model"
done

# what is made of a packed model is what is made of the model
for model in good pruned; do
	# shellcheck disable=SC2086
	expect 0 "" prune $model -o $model-one $run --method wanda --pattern 1:4
	# shellcheck disable=SC2086
	expect 0 "" prune $model-packed -o $model-two $run --method wanda --pattern 1:4
	cmp -s $model-one/model.safetensors $model-two/model.safetensors && cmp -s $model-one/config.json $model-two/config.json ||
		complain "$model: pruning the packed model gives something else"
done
# shellcheck disable=SC2086
expect_json "len(d['rows']) == 2 and d['stored_as'].startswith('packed')" compare pruned-packed $run --text documents.jsonl \
	--methods magnitude --patterns 2:4
expect_output "^packed +14 of 20 tensors: 14 as 2:4, 0 by mask$" pack pruned -o rendered
expect_output "^matrices .*: 0\.5[0-9]+$" unpack rendered -o rendered-again

# requests and files that are refused; nothing stays behind
expect 2 "-o DIR" pack good
expect 2 "is packed already" pack pruned-packed -o out
expect 2 "is not packed" unpack good -o out
expect 2 "exists already" pack good -o pruned
expect 3 "no-such" pack no-such -o out
expect 2 "only safetensors" pack "$source/tests/fixtures/model/llama-bin" -o out
cp -r pruned-packed damaged
python3 - <<'PYTHON' || complain "the damage"
with open("damaged/model.packed.safetensors", "r+b") as file:
    file.seek(-1, 2)
    last = file.read(1)[0]
    file.seek(-1, 2)
    file.write(bytes([last ^ 3]))
PYTHON
expect 3 "positions' is damaged|it is damaged" unpack damaged -o out
head -c 30000 pruned-packed/model.packed.safetensors >damaged/model.packed.safetensors
expect 3 "model.packed.safetensors: is truncated" unpack damaged -o out
expect 3 "is truncated" eval damaged --text documents.jsonl
[ -e out ] || [ -e .out.partial ] && complain "a refused request left something"

if part transformers; then
	${FP_PYTHON:-python3} -c "import torch, transformers" 2>/dev/null ||
		skip "FP_PYTHON, an interpreter with torch and transformers, is not there"
	# it must not load a packed directory as a model with random weights
	${FP_PYTHON:-python3} - demo-pairs-packed demo-pairs-again >"$work/out" 2>"$work/err" <<'PYTHON' || complain "transformers"
import sys, transformers
try:
    transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
    sys.exit("it loads a packed directory")
except OSError as error:
    print(error)
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2])
PYTHON
	finish
fi
finish
