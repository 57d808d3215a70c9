# SPDX-License-Identifier: Apache-2.0
"""Makes the models and texts for the tests of the command line: make_material.py FOLDER. Standard library only.

`good` is a tiny LLaMA with random weights (seed 0) and a byte-level tokenizer without merges; each of the others is
`good` with one defect.
"""
import gzip, json, os, random, shutil, struct, sys, zipfile

HIDDEN, INNER, HEADS, LAYERS, VOCABULARY, POSITIONS = 16, 24, 2, 2, 258, 64

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 256, "eos_token_id": 257,
}


def weights():
    generator = random.Random(0)
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in "qkvo":
            shapes[prefix + f"self_attn.{name}_proj.weight"] = [HIDDEN, HIDDEN]
        shapes[prefix + "mlp.gate_proj.weight"] = shapes[prefix + "mlp.up_proj.weight"] = [INNER, HIDDEN]
        shapes[prefix + "mlp.down_proj.weight"] = [HIDDEN, INNER]
        shapes[prefix + "input_layernorm.weight"] = shapes[prefix + "post_attention_layernorm.weight"] = [HIDDEN]
    tensors = {}
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        values = [1.0] * count if "norm" in name else [generator.gauss(0, 0.2) for _ in range(count)]
        tensors[name] = ["F32", shape, struct.pack(f"<{count}f", *values)]
    return tensors


def safetensors(tensors, change_header=None, tail=b""):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header)
    if change_header:
        text = change_header(text, header)
    text = text.encode()
    return struct.pack("<Q", len(text)) + text + data + tail


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            alphabet[byte] = chr(byte)
        else:
            alphabet[byte] = chr(256 + extra)
            extra += 1
    return alphabet


def tokenizer():
    vocabulary = {symbol: byte for byte, symbol in byte_alphabet().items()}
    vocabulary.update({"<s>": 256, "</s>": 257})
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 256, "content": "<s>", **special}, {"id": 257, "content": "</s>", **special}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                  "merges": []},
    }


def write(path, content):
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def model(root, name, weights_file, config=CONFIG):
    folder = os.path.join(root, name)
    os.makedirs(folder)
    write(os.path.join(folder, "config.json"), config if isinstance(config, str) else json.dumps(config))
    write(os.path.join(folder, "tokenizer.json"), json.dumps(tokenizer()))
    write(os.path.join(folder, "tokenizer_config.json"),
          json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}))
    if weights_file is not None:
        write(os.path.join(folder, "model.safetensors"), weights_file)
    return folder


def bad_models(root):
    good = weights()
    first = "model.layers.1.mlp.down_proj.weight"
    whole = safetensors(good)
    model(root, "good", whole)
    model(root, "truncated", whole[:-100])
    model(root, "trailing", safetensors(good, tail=b"\0" * 16))
    model(root, "stub", whole[:5])
    model(root, "huge-header", struct.pack("<Q", 10 * 2**30) + whole[8:])
    model(root, "header-not-json", struct.pack("<Q", 8) + b"{nothing")

    def overlap(_, header):
        header[first]["data_offsets"] = header["model.norm.weight"]["data_offsets"]
        return json.dumps(header)
    model(root, "overlapping", safetensors(good, overlap))
    model(root, "unknown-dtype", safetensors(good, lambda text, _: text.replace('"F32"', '"F33"', 1)))
    model(root, "duplicate-tensor", safetensors(good, lambda text, header: text[:-1] + ", " + json.dumps(
        "model.norm.weight") + ": " + json.dumps(header["model.norm.weight"]) + "}"))
    model(root, "missing-tensor", safetensors({name: good[name] for name in good if name != first}))
    model(root, "wrong-shape", safetensors({**good, first: ["F32", [INNER, HIDDEN], good[first][2]]}))
    model(root, "nan-weights", safetensors({**good, first: ["F32", good[first][1],
                                                          struct.pack("<f", float("nan")) + good[first][2][4:]]}))
    model(root, "integer-weights", safetensors({**good, first: ["I32", good[first][1], good[first][2]]}))
    model(root, "unsupported", whole, {**CONFIG, "architectures": ["MambaForCausalLM"], "model_type": "mamba"})
    model(root, "config-not-json", whole, '{"hidden_size": ')
    model(root, "config-without-sizes", whole, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    model(root, "no-weights", None)
    os.remove(os.path.join(model(root, "no-config", whole), "config.json"))
    os.remove(os.path.join(model(root, "no-tokenizer", whole), "tokenizer.json"))
    os.remove(os.path.join(root, "no-tokenizer", "tokenizer_config.json"))
    write(os.path.join(model(root, "tokenizer-not-json", whole), "tokenizer.json"), '{"model":')
    os.makedirs(os.path.join(root, "empty-folder"))
    rows = ["F32", [VOCABULARY + 1, HIDDEN], good["model.embed_tokens.weight"][2] + b"\0" * 4 * HIDDEN]
    model(root, "large-vocabulary", safetensors({**good, "model.embed_tokens.weight": rows}),
          {**CONFIG, "vocab_size": VOCABULARY + 1})
    write(os.path.join(model(root, "other-tokenizer", whole), "tokenizer.json"),
          json.dumps({**tokenizer(), "post_processor": None}))

    evil = model(root, "forbidden-pickle", None)
    with zipfile.ZipFile(os.path.join(evil, "pytorch_model.bin"), "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02cos\nsystem\nX\x04\0\0\0trueq\0\x85q\1Rq\2.")
        archive.writestr("archive/version", b"3\n")

    pruned = dict(good)
    for name, (dtype, shape, content) in good.items():
        if "_proj" in name:
            values = list(struct.unpack(f"<{len(content) // 4}f", content))
            for i in range(0, len(values), 4):
                values[i] = values[i + 2] = 0.0
            pruned[name] = [dtype, shape, struct.pack(f"<{len(values)}f", *values)]
    model(root, "pruned", safetensors(pruned))
    one_more = bytearray(pruned[first][2])
    one_more[0:4] = struct.pack("<f", 1.0)
    model(root, "nearly-pruned", safetensors({**pruned, first: ["F32", pruned[first][1], bytes(one_more)]}))


def texts(root):
    generator = random.Random(1)
    lines = [" ".join(generator.choice(["the", "fox", "and", "a", "tree"]) for _ in range(12)) for _ in range(60)]
    plain = "\n".join(lines) + "\n"
    jsonl = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    write(os.path.join(root, "plain.txt"), plain)
    write(os.path.join(root, "documents.jsonl"), jsonl)
    packed = gzip.compress(jsonl.encode(), mtime=0)
    write(os.path.join(root, "documents.jsonl.gz"), packed)
    write(os.path.join(root, "corrupt.jsonl.gz"), packed[:60] + b"\xff\xff\xff\xff" + packed[64:])
    write(os.path.join(root, "cut.jsonl.gz"), packed[:len(packed) // 2])
    write(os.path.join(root, "broken.jsonl"), jsonl + '{"text": "unclosed\n')
    write(os.path.join(root, "keyless.jsonl"), '{"body": "no text here"}\n')
    write(os.path.join(root, "empty.txt"), "")
    write(os.path.join(root, "short.txt"), "short")
    write(os.path.join(root, "invalid.txt"), b"caf\xc3 \xff ok")


if __name__ == "__main__":
    target = sys.argv[1]
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    bad_models(target)
    texts(target)
