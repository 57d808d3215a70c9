#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune --quantize: every format is written as compressed-tensors, read back by every command and by transformers; what cannot
# be written is refused.
. "$2/tests/cli/common.sh"
demo=$source/models
fixtures=$source/tests/fixtures/model
run="--calibration $demo/calibration.jsonl --samples 8 --sequence-length 64 --method wanda --threads 1"
formats="int4 int4-g32 int4-asym int4-asym-g32 int8 fp8"
! sanitized || formats="int4 int4-asym-g32 int8 fp8" # such a build is several times slower
python3 -c "
import json, sys
texts = [json.loads(line)['text'] for line in open(sys.argv[1])]
open('text.txt', 'w').write('\n\n'.join(texts[:24]))
open('words.txt', 'w').write('the other weight then small error model with keep.\n' * 40)
byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': False, 'use_regex': True}
vocabulary = {symbol: index for index, symbol in enumerate([*'abcdefghijklmnopqrstuvwxyz\u0120\u010a.', 'th'])}
json.dump({'version': '1.0', 'added_tokens': [], 'normalizer': None, 'pre_tokenizer': byte_level, 'post_processor': None,
           'decoder': byte_level, 'model': {'type': 'BPE', 'merges': [['t', 'h']], 'vocab': vocabulary}},
          open('tokenizer.json', 'w'))" "$demo/evaluation.jsonl" || exit 1

# plain FOLDER: FOLDER-quantised as this program reads it, in FOLDER-plain.
plain() {
	"$program" prune "$1-quantised" -o "$1-plain" --method magnitude --pattern 0% --threads 1 >"$work/out" 2>"$work/err" ||
		complain "$1-quantised cannot be read back"
}

if ! ${FP_PYTHON:-python3} -c "import torch, transformers, compressed_tensors" 2>/dev/null; then
	for name in transformers shared others; do
		! part $name || skip "FP_PYTHON, an interpreter with torch, transformers and compressed-tensors, is not there"
	done
fi

# The models that this program ships, and a mixture of experts.
if part transformers; then
	names=
	fixed=
	for model in llama-demo opt-demo moe-demo; do
		for format in $formats; do
			[ "$model" != moe-demo ] || [ "$format" = fp8 ] || continue
			# shellcheck disable=SC2086
			expect 0 "" prune "$demo/$model" -o "$model-$format-quantised" $run --pattern 2:4 --quantize $format
			plain "$model-$format"
			names="$names $model-$format"
		done
	done
	# with a basis the head is no longer the embedding; a fit changes norms and biases
	for model in llama-demo opt-demo; do
		expect 0 "" prune "$demo/$model" -o "$model-best-quantised" --calibration "$demo/calibration.jsonl" --samples 8 \
			--sequence-length 64 --set fit_steps=4 --set basis_steps=4 --quantize int4 --threads 1
		plain "$model-best"
		names="$names $model-best"
	done
	# several operators in one tensor; experts
	for model in phi3-plain gpt_neox-plain bloom-plain falcon-40b mixtral-plain qwen3_moe-plain; do
		cp -r "$fixtures/$model" "$model"
		cp tokenizer.json "$model"
		format=int4
		case $model in falcon* | qwen3_moe*) format=fp8 ;; esac
		expect 0 "" prune "$model" -o "$model-quantised" --method magnitude --quantize $format --threads 1
		plain "$model"
		fixed="$fixed $model"
	done
	# some operators are left alone
	# shellcheck disable=SC2086
	expect 0 "" prune "$demo/llama-demo" -o some-quantised $run --quantize int4-asym --only "mlp|layers.1" --skip "layers.3.mlp.up"
	plain some
	# shellcheck disable=SC2086
	${FP_PYTHON:-python3} "$source/tests/cli/open_quantised.py" "$program" text.txt 64 $names some >"$work/out" 2>"$work/err" ||
		complain "transformers: $(grep DIFFERENT "$work/out")"
	cat "$work/out"
	# shellcheck disable=SC2086
	${FP_PYTHON:-python3} "$source/tests/cli/open_quantised.py" "$program" words.txt 24 $fixed >"$work/out" 2>"$work/err" ||
		complain "transformers: $(grep DIFFERENT "$work/out")"
	cat "$work/out"
	finish
fi

# F16 with groups that do not divide every row, and F32 with rows that no group divides.
if part shared; then
	shared=$source/../shared/models
	[ -d "$shared/stories15M" ] || skip "there are no shared models"
	names=
	for model in stories15M stories260K; do
		for format in $formats; do
			# shellcheck disable=SC2086
			expect 0 "" prune "$shared/$model" -o "$model-$format-quantised" $run --quantize $format
			plain "$model-$format"
			# docs/quantised.md: transformers 5.23 does not read zero points where groups have several sizes
			grep -q group_1 "$model-$format-quantised/config.json" && [ "${format#*asym}" != "$format" ] && continue
			names="$names $model-$format"
		done
	done
	# shellcheck disable=SC2086
	${FP_PYTHON:-python3} "$source/tests/cli/open_quantised.py" "$program" text.txt 64 $names >"$work/out" 2>"$work/err" ||
		complain "transformers: $(grep DIFFERENT "$work/out")"
	cat "$work/out"
	finish
fi

# Checkpoints that compressed-tensors has written.
if part others; then
	${FP_PYTHON:-python3} "$source/tests/cli/make_quantised.py" "$demo/llama-demo" w4 w4-asym w8a16 w8a8 w8a8-tensor fp8 \
		>"$work/out" 2>"$work/err" || complain "compressed-tensors writes nothing: $(tail -3 "$work/err")"
	for name in w4 w4-asym w8a16 w8a8 w8a8-tensor fp8; do plain $name; done
	${FP_PYTHON:-python3} "$source/tests/cli/open_quantised.py" "$program" text.txt 64 w4 w4-asym w8a16 w8a8 w8a8-tensor fp8 \
		>"$work/out" 2>"$work/err" || complain "transformers: $(grep DIFFERENT "$work/out")"
	cat "$work/out"
	finish
fi

for format in $formats; do
	bits=4
	said="d['stored_as'].startswith('4-bit integers with a scale')"
	case $format in
	*asym*) said="d['stored_as'].startswith('4-bit integers with a scale and a zero point for each')" ;;
	int8) bits=8 said="d['stored_as'] == '8-bit integers with a scale for each row, read and written as F16'" ;;
	fp8) bits=8 said="d['stored_as'] == 'FP8 (F8_E4M3) with a scale for each row, read and written as F16'" ;;
	esac
	# shellcheck disable=SC2086
	expect_json "d['quantized']['format'] == '$format' and d['quantized']['bits'] == $bits and d['sparsity'] >= 0.5 and \
		all(o['group'] in (32, 128, 384) for o in d['operators'])" \
		prune "$demo/llama-demo" -o "$format" $run --pattern 2:4 --quantize $format
	expect_json "$said and d['violations'] == 0 and d['negative_zeros'] == 0 and d['dtype'] == 'F16' and \
		not any('weight_' in t['name'] for t in d['tensors']) and \
		sum(t.get('bits') == $bits for t in d['tensors']) == 42" inspect "$format" --pattern 2:4
	expect_json "$said and 1 < d['perplexity'] < 1e4 and d['kl'] > 0" eval "$format" --text text.txt --sequence-length 64 \
		--threads 1 --reference "$demo/llama-demo"
	expect_json "$said and d['results'][0]['tokens'] > 0" generate "$format" --prompt Once --max-tokens 4 --threads 1
	# shellcheck disable=SC2086
	expect_json "$said and d['dry_run']" prune "$format" -o none --dry-run $run
	grep -q '"quantized"' "$format/pruning_report.json" || complain "$format: the report does not say it"
done
expect_output "4-bit" inspect int4
expect_json "len(d['rows']) == 2 and d['quantized']['format'] == 'int4'" compare int8 --calibration "$demo/calibration.jsonl" \
	--samples 8 --sequence-length 64 --threads 1 --text text.txt --methods wanda --patterns 2:4 --quantize int4

# zeros save memory with `pack` only
for format in int8 fp8; do
	expect_json "d['as_2_4'] == 42 and d['packed_bytes'] == 0.625 * d['matrix_bytes']" pack $format -o $format-packed
	expect_json "'; packed: 42 matrices as 2:4' in d['stored_as'] and d['violations'] == 0" inspect $format-packed --pattern 2:4
	expect_json "d['kl'] == 0" eval $format-packed --text text.txt --sequence-length 64 --threads 1 --reference $format
	expect 0 "" unpack $format-packed -o $format-again
	diff -r $format $format-again >/dev/null || complain "$format: unpack gives other bytes"
done
expect_json "d['as_2_4'] == 0 and d['by_mask'] == 0" pack int4 -o int4-packed

# nothing is pruned: 8 bits change little
expect 0 "" prune "$demo/opt-demo" -o all --method magnitude --pattern 0% --quantize int8 --threads 1
expect_json "d['kl'] < 0.001" eval all --text text.txt --sequence-length 64 --threads 1 --reference "$demo/opt-demo"

# a checkpoint that is already sparse: its zeros stay zeros, whatever rounds the others, and survive pack and unpack
expect 0 "" prune "$demo/llama-demo" -o sparse-quantised --method magnitude --pattern 2:4 --threads 1
text="--calibration $demo/calibration.jsonl --samples 4 --sequence-length 64 --threads 1"
for format in $formats; do
	for flags in "--preset fast" "--preset fast --set quantizer=nearest" "--method sparsegpt"; do
		kept=kept-$format$(echo "$flags" | tr -d ' =-')
		# shellcheck disable=SC2086
		expect 0 "" prune sparse-quantised -o "$kept-quantised" $text $flags --pattern 0% --quantize "$format"
		plain "$kept"
	done
done
# shellcheck disable=SC2086
expect 0 "" prune sparse-quantised -o kept-best-quantised $text --preset best --set fit_steps=4 --pattern 0% --quantize int8
plain kept-best
expect_json "d['as_2_4'] == 42" pack kept-best-quantised -o kept-packed
expect 0 "" unpack kept-packed -o kept-unpacked-quantised
plain kept-unpacked
python3 - "$(echo "$formats" | wc -w)" sparse-quantised kept-*-plain <<'PYTHON' || complain "zeros of a sparse input are lost"
import json, struct, sys

def zeros(folder):
    with open(folder + "/model.safetensors", "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, tensor in json.loads(data[8:8 + size]).items():
        if "_proj" in name:
            begin, end = (8 + size + offset for offset in tensor["data_offsets"])
            words = struct.unpack(f"<{(end - begin) // 2}H", data[begin:end])
            out[name] = {i for i, word in enumerate(words) if word == 0}
    return out

sparse = zeros(sys.argv[2])
assert len(sparse) == 42 and len(sys.argv) == 5 + 3 * int(sys.argv[1])
for folder in sys.argv[3:]:
    own = zeros(folder)
    assert all(sparse[name] <= own[name] for name in sparse), folder
PYTHON

# what is left alone has its bytes and is named in the config; the page says what zeros are worth
# shellcheck disable=SC2086
expect 0 "" prune "$demo/llama-demo" -o some $run --quantize int4 --only "layers.1.*(gate|up)_proj" --report page.html
grep -q "Zeros are stored like other numbers" page.html || complain "the page does not say what zeros are worth"
python3 - "$demo/llama-demo" some <<'PYTHON' || complain "other tensors or the config"
import json, struct, sys

def tensors(folder):
    with open(folder + "/model.safetensors", "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for n, t in header.items()}

before, after = tensors(sys.argv[1]), tensors(sys.argv[2])
gone = {"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"}
assert set(before) - set(after) == gone
assert all(before[name] == after[name] for name in before if name not in gone)
assert {n: t[:2] for n, t in after.items() if n not in before} == {
    name + end: form for name in gone for end, form in
    {"_packed": ("I32", [384, 16]), "_scale": ("F16", [384, 1]), "_shape": ("I64", [2])}.items()}
config = [json.load(open(folder + "/config.json")) for folder in sys.argv[1:]]
quantised = config[1].pop("quantization_config")
assert config[0] == config[1]
operators = {n.removesuffix(".weight") for n in before if "_proj." in n and n not in gone}
assert set(quantised["ignore"]) == operators | {"lm_head"}
assert quantised["config_groups"] == {"group_0": {
    "targets": ["Linear"], "input_activations": None, "output_activations": None, "format": "pack-quantized",
    "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False}}}
PYTHON

# shards keep their names and their index names the new tensors
cp -r "$fixtures/qwen3-fp8-ragged" ragged
expect 0 "" prune ragged -o sharded --method magnitude --quantize int4-asym --threads 1
python3 - <<'PYTHON' || complain "the shards of the output"
import json, struct

index = json.load(open("sharded/model.safetensors.index.json"))
found, total = {}, 0
for file in set(index["weight_map"].values()):
    with open("sharded/" + file, "rb") as stream:
        header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    for name, tensor in header.items():
        if name != "__metadata__":
            found[name] = file
            total += tensor["data_offsets"][1] - tensor["data_offsets"][0]
assert found == index["weight_map"] and total == index["metadata"]["total_size"]
assert sum(name.endswith(".weight_zero_point") for name in found) > 0
PYTHON
expect_json "d['violations'] == 0" inspect sharded --pattern 50%

# operators in one tensor are joined with their scales
cp -r "$fixtures/phi3-plain" fused
expect 0 "" prune fused -o fused-int4 --method magnitude --pattern 2:4 --quantize int4-asym --threads 1
expect_json "d['violations'] == 0 and sum(t.get('bits') == 4 for t in d['tensors']) == 8" inspect fused-int4 --pattern 2:4

expect 2 "stores '.*c_attn.weight:q' with its inputs as rows.*--quantize none" prune "$fixtures/gpt2-plain" -o no --method magnitude \
	--quantize int8
expect 2 "weight:k' is left out, but other operators in '.*qkv_proj.weight' are not" prune "$fixtures/phi3-plain" -o no \
	--method magnitude --quantize int4 --skip ":k"
expect 2 "with its inputs as rows.*--quantize none" compare "$fixtures/gpt2-plain" --text documents.jsonl --methods magnitude --patterns 2:4 \
	--quantize int4
expect 2 "does not load Falcon with packed weights; use int8 or fp8" prune "$fixtures/falcon-7b" -o no --method magnitude --quantize int4
expect 2 "experts, such as .*, as int4, int4-g32 and fp8 only" prune "$demo/moe-demo" -o no --method magnitude --quantize int8
expect 2 "groups of one size for all experts.*rows of 80 entries" prune "$demo/moe-demo" -o no --method magnitude --quantize int4
expect 2 "quantize.*none\|int4" prune "$demo/moe-demo" -o no --method magnitude --quantize int3
[ ! -e no ] || complain "a refused run leaves an output"
finish
