#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checkpoints with FP8 weights: every command reads them, and prune writes them in BF16.
. "$2/tests/cli/common.sh"

models="qwen3-fp8 qwen3-fp8-ragged qwen3_moe-fp8 phi3-fp8 llama-fp8-tensor llama-fp8-rows"
# shellcheck disable=SC2086
python3 - "$source/tests/fixtures/model" $models <<'PYTHON' || exit 1
import json, os, random, shutil, sys

byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
             "decoder": byte_level, "model": {"type": "BPE", "merges": [["t", "h"]], "vocab": {
                 symbol: index for index, symbol in enumerate([*"abcdefghijklmnopqrstuvwxyz\u0120\u010a.", "th"])}}}
for name in sys.argv[2:]:
    shutil.copytree(os.path.join(sys.argv[1], name), name)
    with open(os.path.join(name, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)
generator = random.Random(1)
words = "the a then other with his her weight zero keep small large error model".split()
with open("words.txt", "w") as file:
    for _ in range(60):
        file.write(" ".join(generator.choice(words) for _ in range(20)) + ".\n")
shutil.copytree("qwen3-fp8", "gptq")
with open("gptq/config.json") as file:
    config = json.load(file)
config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
with open("gptq/config.json", "w") as file:
    json.dump(config, file)
PYTHON

if ! ${FP_PYTHON:-python3} -c "import torch, transformers" 2>/dev/null; then
	! part transformers || skip "FP_PYTHON, an interpreter with torch and transformers, is not there"
fi
said="d['stored_as'].startswith('FP8 (F8_E4M3) with a scale for each ') and d['stored_as'].endswith(', read and written as BF16')"
run="--calibration words.txt --samples 8 --sequence-length 24 --threads 1"
for model in $models; do
	expect_json "$said and d['dtype'] == 'BF16' and not any('scale' in t['name'] for t in d['tensors'])" inspect "$model"
	expect_json "$said and 1 < d['perplexity'] < 1e6" eval "$model" --text words.txt --sequence-length 24 --threads 1
	# shellcheck disable=SC2086
	expect_json "$said and d['sparsity'] == 0.5" prune "$model" -o "$model-pruned" $run --pattern 2:4
	expect_json "'stored_as' not in d and d['violations'] == 0 and d['dtype'] == 'BF16'" inspect "$model-pruned" --pattern 2:4
	grep -q '"stored_as": "FP8' "$model-pruned/pruning_report.json" || complain "$model: the report does not say it"
	! grep -q quantization_config "$model-pruned/config.json" || complain "$model: the config still says it"
	expect_json "1 < d['perplexity'] < 1e6 and d['kl'] > 0" eval "$model-pruned" --reference "$model" --text words.txt \
		--sequence-length 24 --threads 1
done
# operators that are left alone are written as they were read
# shellcheck disable=SC2086
expect 0 "" prune qwen3-fp8 -o some $run --method wanda --only layers.1
expect_json "d['kl'] > 0" eval some --reference qwen3-fp8 --text words.txt --sequence-length 24 --threads 1
python3 - <<'PYTHON' || complain "other tensors changed"
import json, struct

def tensors(folder):
    with open(folder + "/model.safetensors", "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {n: (t["dtype"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for n, t in header.items()}

before, after = tensors("qwen3-fp8"), tensors("some")
assert set(after) == {name for name in before if not name.endswith("_scale_inv")}
for name, (dtype, data) in after.items():
    assert dtype == "BF16", name
    if before[name][0] == "BF16":
        assert before[name][1] == data, name
PYTHON
# shellcheck disable=SC2086
expect 0 "" prune qwen3-fp8 -o reported $run --method wanda --report page.html
grep -q "stored as FP8 (F8_E4M3)" page.html || complain "the page does not say it"
expect_json "$said and d['results'][0]['tokens'] > 0" generate qwen3-fp8 --prompt the --max-tokens 4 --threads 1
expect_output "^stored as +FP8 .*block of 8 x 8" inspect qwen3-fp8
# shellcheck disable=SC2086
expect_json "$said and len(d['rows']) == 2" compare qwen3-fp8 $run --text words.txt --methods wanda --patterns 2:4
expect 3 "quantised by 'gptq', which is not supported; supported are fp8" eval gptq --text words.txt
# shellcheck disable=SC2086
expect 3 "quantised by 'gptq'" prune gptq -o out $run
expect_json "'gptq' in d['note'] and 'stored_as' not in d" inspect gptq

if part transformers; then
	# shellcheck disable=SC2086
	${FP_PYTHON:-python3} "$source/tests/cli/open_in_transformers.py" "$program" words.txt $models >"$work/out" 2>"$work/err" ||
		complain "transformers: $(tail -3 "$work/out")"
	cat "$work/out"
	finish
fi
finish
