#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune, inspect and eval on every family. The checkpoints are those whose logits model.forward
# compares with transformers; here they get a tokenizer like Qwen2's (NFC, its regular expression, byte level).
. "$2/tests/cli/common.sh"

models="opt-plain opt-350m qwen2-plain qwen2-tied qwen2-window qwen3-plain mistral-plain mistral-window llama-smollm
	llama-rope-yarn gemma-plain gemma2-plain gemma3-plain phi3-plain phi3-longrope olmo2-plain gpt_neox-plain
	gpt_neox-sequential gpt2-plain granite-plain granite-bias stablelm-plain stablelm-parallel phi-plain falcon-7b
	falcon-40b falcon-11b falcon-rw bloom-plain cohere-plain gemma3-images-old olmo3-plain cohere2-plain smollm3-plain
	mixtral-plain qwen2_moe-plain qwen2_moe-window qwen3_moe-plain glm-plain glm4-plain seed_oss-plain ernie4_5-bias
	exaone4-plain starcoder2-plain olmoe-plain qwen2_5_vl-old qwen3_vl-plain mistral3-plain ministral3-plain
	olmo-plain glm4_moe-plain glm4_moe-groups ernie4_5_moe-plain ernie4_5_moe-interval
	granitemoe-plain granitemoe-bias granitemoeshared-plain granitemoehybrid-dense granitemoehybrid-experts
	dots1-plain dots1-bias minimax_m2-plain minimax_m2-whole qwen3_vl_moe-plain qwen3_vl_moe-hub
	deepseek_v2-lite deepseek_v2-groups deepseek_v3-dense deepseek_v3-groups glm4_moe_lite-plain minicpm3-plain minicpm3-query"

# shellcheck disable=SC2086
python3 - "$source/tests/fixtures/model" $models <<'PYTHON' || exit 1
import json, os, random, shutil, sys

vocabulary = {symbol: index for index, symbol in enumerate("abcdefghijklmnopqrstuvwxyz\u0120\u010a.,")}
vocabulary.update({"th": 30, "he": 31, "\u0120th": 32})
regex = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": 39, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}, byte_level]},
    "post_processor": byte_level, "decoder": byte_level,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
              "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary,
              "merges": [["t", "h"], ["h", "e"], ["\u0120", "th"]]},
}
for name in sys.argv[2:]:
    os.makedirs(name)
    for file in ["config.json", "model.safetensors"]:
        shutil.copyfile(os.path.join(sys.argv[1], name, file), os.path.join(name, file))
    with open(os.path.join(name, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)
generator = random.Random(1)
words = "the a then other with his her weight zero keep small large error model".split()
with open("words.txt", "w") as file:
    for _ in range(60):
        file.write(" ".join(generator.choice(words) for _ in range(20)) + ".\n")
PYTHON

# biases MODEL: how many operators of its two layers have a bias, by the tensors that the fixture has. Several operators
# may be in one tensor.
biases() {
	python3 - "$1" <<'PYTHON'
import json, struct, sys

with open(sys.argv[1] + "/model.safetensors", "rb") as file:
    names = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
fused = ("qkv_proj.bias", "query_key_value.bias", "c_attn.bias")
plain = ("_proj.bias", "_mqa.bias", "dense.bias", "dense_h_to_4h.bias", "dense_4h_to_h.bias", "fc1.bias", "fc2.bias", "c_fc.bias")
print(sum(3 if n.endswith(fused) else n.endswith(plain) for n in names if "vision" not in n and "visual" not in n))
PYTHON
}

# before the work, which nothing would read
if ! ${FP_PYTHON:-python3} -c "import torch, transformers" 2>/dev/null; then
	! part transformers || skip "FP_PYTHON, an interpreter with torch and transformers, is not there"
fi
run="--calibration words.txt --samples 8 --sequence-length 24 --pattern 2:4 --threads 1 --set fit_steps=10 --set basis_steps=10"
for model in $models; do
	# shellcheck disable=SC2086 # the flags are words
	expect 0 "" prune "$model" -o "$model-pruned" $run --basis none
	expect_json "d['violations'] == 0 and d['negative_zeros'] == 0" inspect "$model-pruned" --pattern 2:4
	expect 5 "" inspect "$model" --pattern 2:4
	# shellcheck disable=SC2086
	expect_json "d.get('biases_updated', 0) == $(biases "$model")" prune "$model" -o "$model-json" $run
	expect_json "1 < d['perplexity'] < 1e6" eval "$model-pruned" --text words.txt --sequence-length 24 --threads 1
	cmp -s "$model/config.json" "$model-pruned/config.json" || complain "$model: config changed"
	# all tensors but operators and their biases (norms, embedding) stay unchanged
	python3 - "$model" "$model-pruned" <<'PYTHON' || complain "$model: other tensors changed"
import json, struct, sys

def tensors(folder):
    with open(folder + "/model.safetensors", "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {n: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]] for n, t in header.items()}

before, after = tensors(sys.argv[1]), tensors(sys.argv[2])
changed = {name for name in before if before[name] != after[name]}
operators = ("_proj", "_with_mqa", "query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "fc1", "fc2", "c_attn", "c_fc", ".w1", ".w2", ".w3", "input_linear",
             "output_linear")
wanted = {name for name in before if not ("vision" in name or "visual" in name) and name.endswith(tuple(o + k for o in operators for k in (".weight", ".bias", "")))}
assert before.keys() == after.keys() and changed == wanted, changed ^ wanted
PYTHON
done
if [ -n "${FP_KEEP:-}" ]; then # keeps the results for other tools
	cp -r . "$FP_KEEP"
fi

if part transformers; then
	# shellcheck disable=SC2086
	${FP_PYTHON:-python3} "$source/tests/cli/open_in_transformers.py" "$program" words.txt $models >"$work/out" 2>"$work/err" ||
		complain "transformers: $(tail -3 "$work/out")"
	finish
fi
finish
