# SPDX-License-Identifier: Apache-2.0
"""Makes malicious models: make_hostile.py FOLDER. Standard library only.

Writes FOLDER/cases, one line per case: MODEL <tab> COMMANDS (i: inspect, p: prune) <tab> EXIT CODE <tab> a regular
expression for the message. If a name points outside the model's directory, its target exists and is valid, so that
only the rule itself stops the program.
"""
import io, json, os, struct, sys, zipfile, zlib
from make_material import CONFIG, LAYERS, VOCABULARY, model, safetensors, tokenizer, weights, write

cases = []


def case(root, name, pattern, files=None, config=CONFIG, commands="ip", code=3):
    """A model with these files instead of model.safetensors; a value None makes a symlink loop, a string begins a link."""
    folder = model(root, name, None, config)
    for file, content in (files if files is not None else {"model.safetensors": safetensors(weights())}).items():
        path = os.path.join(folder, file)
        if os.path.lexists(path):
            os.remove(path)
        if content is None:
            os.symlink(file, path)
        elif isinstance(content, str) and content.startswith("->"):
            os.symlink(content[2:], path)
        elif content == "fifo":
            os.mkfifo(path)
        elif content == "folder":
            os.makedirs(path)
        else:
            write(path, content)
    cases.append((name, commands, str(code), pattern))
    return folder


def index(shard):
    return json.dumps({"weight_map": {name: shard for name in weights()}})


def shard_names(root):
    whole = safetensors(weights())
    outside = os.path.join(root, "outside")
    os.makedirs(outside)
    write(os.path.join(outside, "model.safetensors"), whole)
    rule = "must be the name of a file in the same directory"
    names = {"parent": "../outside/model.safetensors", "absolute": os.path.join(outside, "model.safetensors"),
             "folder": "below/model.safetensors", "dots": "..", "hidden": ".hidden.safetensors", "empty": "",
             "backslash": "..\\outside\\model.safetensors", "long": "a" * 300 + ".safetensors",
             "zero": "model.safetensors\0.json", "report": "pruning_report.json", "companion": "tokenizer.json",
             "newline": "model\n.safetensors"}
    for short, name in names.items():
        folder = case(root, "shard-" + short, "index.json.*(" + rule + "|line 1)", {"model.safetensors.index.json": index(name)})
        if short in ("hidden", "report", "companion", "newline"):
            write(os.path.join(folder, name), whole)
        if short == "folder":
            os.makedirs(os.path.join(folder, "below"))
            write(os.path.join(folder, name), whole)
    case(root, "shard-number", "index.json.*" + rule, {"model.safetensors.index.json": index(7)})
    case(root, "shard-missing", "model-1.safetensors", {"model.safetensors.index.json": index("model-1.safetensors")})
    # two archives that would be one file of the output
    half = list(weights())
    names = {"pytorch_a.bin": half[:9], "a.bin": half[9:]}
    files = {file: archive(weights(), some) for file, some in names.items()}
    files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": {n: f for f, some in names.items() for n in some}})
    case(root, "shard-same-output", "a.bin.*a.safetensors", files, commands="p")


def links(root):
    whole = {"model.safetensors": safetensors(weights())}
    os.symlink("loop-model", os.path.join(root, "loop-model"))
    cases.append(("loop-model", "ip", "3", "loop-model"))
    case(root, "loop-weights", "model.safetensors", {"model.safetensors": None})
    case(root, "loop-config", "config.json", {**whole, "config.json": None})
    case(root, "loop-tokenizer", "tokenizer.json", {**whole, "tokenizer.json": None}, commands="p")
    case(root, "loop-companion", "generation_config.json", {**whole, "generation_config.json": None}, commands="p")
    shard = "model-1.safetensors"
    for short, content in {"loop": None, "fifo": "fifo", "folder": "folder", "device": "->/dev/zero"}.items():
        case(root, "special-" + short, shard, {"model.safetensors.index.json": index(shard), shard: content})
    case(root, "special-config", "config.json", {**whole, "config.json": "->/dev/zero"})
    case(root, "special-tokenizer", "tokenizer.json", {**whole, "tokenizer.json": "->/dev/zero"}, commands="p")


def headers(root):
    good = weights()
    whole = safetensors(good)
    norm = "model.norm.weight"

    def entry(name, pattern, **changes):
        def change(_, header):
            header[norm].update(changes)
            return json.dumps(header)
        case(root, "header-" + name, "model.safetensors.*" + pattern, {"model.safetensors": safetensors(good, change)})

    for name, length in {"top": 2**64 - 1, "sign": 2**63, "wrap": 2**64 - 8, "whole": len(whole), "most": 10**8}.items():
        case(root, "length-" + name, "model.safetensors.*header", {"model.safetensors": struct.pack("<Q", length) + whole[8:]})
    entry("offset-64", "header", data_offsets=[2**64, 2**64 + 64])
    entry("offset-63", "bytes|offset|truncated", data_offsets=[2**63 - 65, 2**63 - 1])
    entry("offset-negative", "whole numbers", data_offsets=[-64, 0])
    entry("offset-order", "in order", data_offsets=[64, 0])
    entry("offset-real", "whole numbers", data_offsets=[0.0, 64.0])
    entry("shape-wrap-to-zero", "does not give a valid number of bytes", shape=[2**32, 2**32], data_offsets=[0, 0])
    entry("shape-wrap-to-size", "does not give a valid number of bytes", shape=[2**62, 4, 16])
    entry("shape-bits", "does not give a valid number of bytes", shape=[2**61])
    entry("shape-empty", "bytes|shape", shape=[0, 2**63 - 1])
    entry("shape-negative", "size", shape=[-16])
    entry("shape-rank", "at most", shape=[1] * 1000 + [16])
    entry("shape-nested", "size|valid", shape=[[16]])
    entry("dtype-number", "dtype", dtype=7)
    nested = '{"__metadata__": ' + "[" * 1000000 + "]" * 1000000 + "}"
    case(root, "header-nested", "model.safetensors.*header.*depth", {"model.safetensors": struct.pack("<Q", len(nested)) + nested.encode()})
    # a file of 8 TiB that takes no room: more than can be mapped within the limit
    folder = case(root, "sparse", "model.safetensors.*mapped", {"model.safetensors": struct.pack("<Q", 2**40) + b"{"}, code=4)
    os.truncate(os.path.join(folder, "model.safetensors"), 2**43)


def pickle(tensors, storage_elements=None, shape=None, stride=None, first=0):
    """What torch.save() writes for a dict of float tensors, each with a storage of its own."""
    def number(value):
        return b"J" + struct.pack("<i", value) if -2**31 <= value < 2**31 else b"\x8a\x09" + value.to_bytes(9, "little", signed=True)

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    out = b"\x80\x02}("
    for key, (name, (_, sizes, _)) in enumerate(tensors.items()):
        sizes = shape or sizes
        count = 1
        strides = []
        for size in reversed(sizes):
            strides.insert(0, count)
            count *= size
        strides = stride or strides
        out += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\nFloatStorage\n"
        out += text(str(key)) + text("cpu") + number(storage_elements or count) + b"tQ" + number(first)
        out += b"(" + b"".join(map(number, sizes)) + b"t(" + b"".join(map(number, strides)) + b"t"
        out += b"\x89ccollections\nOrderedDict\n)RtR"
    return out + b"u."


def archive(tensors, names=None, pickled=None, method=zipfile.ZIP_STORED):
    chosen = {name: tensors[name] for name in names or tensors}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as packed:
        packed.writestr("archive/data.pkl", pickled if pickled is not None else pickle(chosen))
        for key, (_, _, content) in enumerate(chosen.values()):
            packed.writestr(f"archive/data/{key}", content)
    return file.getvalue()


def stored(entries, count=None, directory=None):
    """An archive by hand: (name, content, what the directory says: size, packed size, offset, method) and lies at will."""
    out, records = b"", b""
    for name, content, lies in entries:
        name, at = name.encode(), len(out)
        size = lies.get("size", len(content))
        crc = zlib.crc32(content)
        out += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0, crc, len(content), len(content), len(name), 0) + name
        out += content
        extra = b""
        values = [size, lies.get("packed", size), lies.get("offset", at)]
        if max(values) > 0xFFFFFFFE:
            extra = struct.pack("<HHQQQ", 1, 24, *[value % 2**64 for value in values])
            values = [0xFFFFFFFF] * 3
        records += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, lies.get("method", 0), 0, 0, crc, values[1],
                               values[0], len(name), len(extra), 0, 0, 0, 0, values[2]) + name + extra
    at = len(out)
    out += records
    count = count if count is not None else len(entries)
    return out + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, len(records), directory or at, 0)


def archives(root):
    good = weights()
    one = {"model.norm.weight": good["model.norm.weight"]}

    def bin_case(name, pattern, content):
        case(root, "bin-" + name, "pytorch_model.bin.*" + pattern, {"pytorch_model.bin": content})

    def entries(**lies):
        return [("archive/data.pkl", pickle(one), {}), ("archive/data/0", one["model.norm.weight"][2], lies)]

    bomb = pickle(one) + b"\0" * 50000000  # 50 MB in 50 KB
    bin_case("deflated-bomb", "compressed", archive(good, pickled=bomb, method=zipfile.ZIP_DEFLATED))
    bin_case("claims-stored", "sizes are damaged", stored(entries(packed=10**9)))
    bin_case("size-32", "is not inside the file", stored(entries(size=2**32 - 2)))
    bin_case("size-64", "is not inside the file", stored(entries(size=2**64 - 1)))
    bin_case("size-wraps", "is not inside the file", stored(entries(size=2**64 - 100)))
    bin_case("offset-64", "is not inside the file", stored(entries(offset=2**64 - 20)))
    bin_case("offset-end", "is not inside the file", stored(entries(offset=2**33)))
    bin_case("count", "directory", stored(entries(), count=65535))
    bin_case("directory", "directory", stored(entries(), directory=2**32 - 2))
    bin_case("overlapping", "overlap", quoted(one))
    inner = archive(good)
    bin_case("nested", "pickle", stored([("archive/data.pkl", inner, {})]))
    wide = {"model.norm.weight": good["model.norm.weight"]}
    for name, changes in {"elements-wrap": {"storage_elements": 2**62}, "elements-negative": {"storage_elements": -16},
                          "shape-wrap": {"shape": [2**32, 2**32, 16]}, "shape-negative": {"shape": [-16]},
                          "first": {"first": 2**63 - 8}, "first-negative": {"first": -8}, "stride": {"stride": [2**62]},
                          "first-beyond": {"first": 8}}.items():
        shape = changes.get("shape")
        if shape or "stride" in changes:
            changes["storage_elements"] = 16
        bin_case(name, "storage|contiguous|pickle", archive(wide, pickled=pickle(wide, **changes)))
    memo = b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b"."
    bin_case("memo", "memo", archive(wide, pickled=memo))
    bin_case("text", "pickle", archive(wide, pickled=b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"a."))
    laughs = b"\x80\x02}q\0" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(200)) + b"."
    bin_case("laughs", "state dict", archive(wide, pickled=laughs))
    bin_case("deep", "more than [0-9]+ values", archive(wide, pickled=b"\x80\x02" + b"]" * 2000000 + b"a" * 1999999 + b"."))
    bin_case("marks", "more than [0-9]+ values", archive(wide, pickled=b"\x80\x02" + b"(" * 2000000 + b"."))


def quoted(one):
    """Every entry begins in the one before: the way in which a small archive holds much."""
    content = one["model.norm.weight"][2]
    entries = [("archive/data.pkl", pickle(one), {}), ("archive/data/0", content, {})]
    header = 30 + len("archive/data/1")
    entries[1] = ("archive/data/0", content, {"size": len(content) + header + len(content)})
    return stored(entries + [("archive/data/1", content, {})])


def configs(root):
    def config(name, pattern, commands="p", **changes):
        case(root, "config-" + name, "config.json.*" + pattern, None, {**CONFIG, **changes}, commands)

    case(root, "config-nested", "config.json.*depth", None, '{"a": ' + "[" * 1000000 + "]" * 1000000 + "}")
    case(root, "config-deep-objects", "config.json.*depth", None, '{"a": ' * 100000 + "1" + "}" * 100000)
    case(root, "config-long-number", "config.json.*(big|real)", None, '{"hidden_size": ' + "9" * 1000000 + "}")
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
                "vocab_size", "max_position_embeddings"):
        for short, value in {"63": 2**63 - 1, "negative": -1, "zero": 0, "real": 1.5, "text": "16", "32": 2**32}.items():
            config(f"{key}-{short}", key, **{key: value})
        case(root, f"config-{key}-64", "config.json.*(big|real)", None, json.dumps({**CONFIG, key: 2**64}))
    largest = 2**31 - 1
    case(root, "config-hidden-largest", "hidden|shape|embed", None, {**CONFIG, "hidden_size": largest - 1, "num_attention_heads": 2}, "p")
    case(root, "config-heads-disagree", "q_proj.*shape|head", None, {**CONFIG, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}, "p")
    case(root, "config-head-dim", "head_dim", None, {**CONFIG, "head_dim": largest - 1}, "p")
    case(root, "config-layers-most", "layers|missing", None, {**CONFIG, "num_hidden_layers": 100000}, "p")
    case(root, "config-layers-one-more", f"layers.{LAYERS}.*missing", None, {**CONFIG, "num_hidden_layers": LAYERS + 1}, "p")
    case(root, "config-vocabulary", "embed_tokens.*shape", None, {**CONFIG, "vocab_size": VOCABULARY + 1}, "p")
    case(root, "config-inner", "proj.*shape", None, {**CONFIG, "intermediate_size": 25}, "p")
    case(root, "config-kv-heads", "num_key_value_heads", None, {**CONFIG, "num_key_value_heads": 4}, "p")
    case(root, "config-untied", "lm_head.*missing", None, {**CONFIG, "tie_word_embeddings": False}, "p")


def tokenizers(root):
    whole = {"model.safetensors": safetensors(weights())}

    def change(name, pattern, edit):
        content = tokenizer()
        text = edit(content) or json.dumps(content)
        case(root, "tokenizer-" + name, "(tokenizer.json|tokenizer).*(" + pattern + ")", {**whole, "tokenizer.json": text}, commands="p")

    def vocabulary(number):
        return lambda content: content["model"]["vocab"].update({"xy": number})

    change("nested", "depth", lambda _: '{"model": ' + "[" * 1000000 + "]" * 1000000 + "}")
    change("id-large", "id|number", vocabulary(2**31 - 1))
    change("id-64", "id|number|big", vocabulary(2**63 - 1))
    change("id-negative", "id|number", vocabulary(-1))
    change("id-beyond", "id|vocab|embed", lambda content: [content["model"]["vocab"].update({"the": 300, "th": 301}),
                                                          content["model"].update({"merges": ["t h", "th e"]})][2:])
    change("added-large", "id|number", lambda content: content["added_tokens"].append(
        {**content["added_tokens"][0], "id": 2**31 - 1, "content": "fox"}))
    change("merge-unknown", "merge", lambda content: content["model"].update({"merges": ["not there"]}))
    change("regex-broken", "regular|pattern|regex", lambda content: content.update({"pre_tokenizer": {
        "type": "Split", "pattern": {"Regex": "(" * 100000}, "behavior": "Isolated", "invert": False}}))
    # each step of the match has two ways: without a limit it would not end
    change("regex-slow", "regular|pattern|regex|limit", lambda content: content.update({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?:(?:[a-z ]+)+)+[0-9]"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}}))


if __name__ == "__main__":
    target = sys.argv[1]
    os.makedirs(target)
    for part in (shard_names, links, headers, archives, configs, tokenizers):
        part(target)
    write(os.path.join(target, "cases"), "".join("\t".join(line) + "\n" for line in cases))
