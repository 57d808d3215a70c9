#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the fuzz targets tokenizer and jsonl start from: corpus/tokenizer/ and corpus/jsonl/.    python3 make_tokenizer_seeds.py"""
import base64
import gzip
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def put(target, name, kind, data):
    with open(os.path.join(HERE, "corpus", target, name), "wb") as out:
        out.write(bytes([kind]) + data)


def tokenizer_json(normalizer, pre_tokenizer, post_processor=None, **model):
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "▁": 5, "▁a": 6, "<unk>": 7, "<s>": 8, "Ġ": 9, "<0x41>": 10}
    return json.dumps({
        "added_tokens": [{"id": 8, "content": "<s>", "special": True, "lstrip": True}, {"id": 11, "content": "x y", "normalized": True, "single_word": True}],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
        "model": dict({"type": "BPE", "vocab": vocabulary, "merges": ["a b", ["ab", "c"], "▁ a"]}, **model)}).encode()


def unigram_json(normalizer, pre_tokenizer, decoder=None, **model):
    vocabulary = [["<unk>", 0.0], ["<s>", 0.0], ["▁", -2.5], ["a", -3], ["b", -3.5], ["ab", -3.25], ["▁abc", -4.5], ["日", -5.0], ["日本", -9.5], ["<0x41>", -9.0]]
    return json.dumps({
        "added_tokens": [{"id": 1, "content": "<s>", "special": True}, {"id": 10, "content": "x y", "normalized": True}], "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": dict({"type": "Unigram", "unk_id": 0, "vocab": vocabulary}, **model)}).encode()


def character_map(rules):
    """A precompiled_charsmap: the double array of sentencepiece with the first free offsets, and the replacements."""
    texts, units, used = b"", {0: 0}, {0}
    values = {}
    for key, value in rules.items():
        values[key.encode()] = len(texts)
        texts += value.encode() + b"\0"
    queue = [(b"", 0)]
    while queue:
        prefix, position = queue.pop(0)
        labels = sorted({key[len(prefix)] if len(key) > len(prefix) else 0 for key in values if key.startswith(prefix)})
        base = next(b for b in range(1, 1 << 20) if not any(b ^ label in used for label in labels))
        units[position] = units[position] & 0xFF | (0x100 if 0 in labels else 0) | (position ^ base) << 10
        for label in labels:
            used.add(base ^ label)
            units[base ^ label] = label or 0x80000000 | values[prefix]
            if label:
                queue.append((prefix + bytes([label]), base ^ label))
    count = max(units) + 1
    return struct.pack(f"<I{count}I", 4 * count, *(units.get(i, 0) for i in range(count))) + texts


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece():
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<0x41>", 0.0, 6), ("ab", -1.0, 1), ("▁a", -2.0, 1), ("abc", -3.0, 1), ("a", -4.0, 1),
              ("b", -5.0, 1), ("c", -6.0, 1), ("▁", -7.0, 1), ("<u>", 0.0, 4)]
    out = b"".join(field(1, field(1, text.encode()) + field(2, score) + field(3, kind)) for text, score, kind in pieces)
    return out + field(2, field(3, 2) + field(35, 1) + field(41, 1)) + field(3, field(1, b"identity") + field(3, 1) + field(4, 0))


def sentencepiece_unigram(charsmap):
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<0x41>", 0.0, 6), ("▁", -2.5, 1), ("a", -3.0, 1), ("b", -3.5, 1), ("ab", -3.25, 1), ("▁abc", -4.5, 1),
              ("日本", 0.0, 4), ("x", -5.0, 1)]
    out = b"".join(field(1, field(1, text.encode()) + field(2, score) + field(3, kind)) for text, score, kind in pieces)
    return out + field(2, field(3, 1) + field(35, 1) + field(41, 1)) + field(3, field(2, charsmap) + field(3, 1) + field(4, 1) + field(5, 1))


rules = character_map({"\t": " ", "ﬁ": "fi", "①": "1", "e\u0301": "é", "¨": " \u0308", "\u200b": "", "か\u3099": "が"})
precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()}
spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [8]}}}
llama = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
split = {"type": "Split", "pattern": {"Regex": "(?i:'s)|[^\\r\\n\\p{L}]?\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": False}
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
put("tokenizer", "gpt2", 0, tokenizer_json(None, byte_level, template))
put("tokenizer", "llama", 0, tokenizer_json(llama, None, template, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
put("tokenizer", "qwen", 0, tokenizer_json({"type": "NFC"}, {"type": "Sequence", "pretokenizers": [split, dict(byte_level, use_regex=False)]}, ignore_merges=True))
put("tokenizer", "metaspace", 0, tokenizer_json({"type": "NFKD"}, metaspace, unk_token="<unk>"))
put("tokenizer", "digits", 0, tokenizer_json(None, {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, dict(split, behavior="MergedWithNext")]}))
put("tokenizer", "sentencepiece", 1, sentencepiece())
put("tokenizer", "unigram", 0, unigram_json({"type": "Sequence", "normalizers": [precompiled, spaces]}, {"type": "Sequence", "pretokenizers": [
    {"type": "WhitespaceSplit"}, dict(metaspace, prepend_scheme="always")]}, {"type": "Metaspace", "prepend_scheme": "always"}))
put("tokenizer", "unigram_bytes", 0, unigram_json({"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Nmt"},
                                                                                     {"type": "Lowercase"}]}, metaspace, {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
                                                  byte_fallback=True))
put("tokenizer", "sentencepiece_unigram", 1, sentencepiece_unigram(rules))
put("tokenizer", "merges", 2, b"#version: 0.2\na b\nab c\n")
put("tokenizer", "config", 3, json.dumps({"add_bos_token": True, "bos_token": "</s>", "pad_token": {"content": "<pad>", "rstrip": True},
                                          "added_tokens_decoder": {"8": {"content": "x", "normalized": True}}}).encode())
lines = b'{"text": "one"}\n\n{"text": "t\\u0000w\\u00e9o", "n": 12345678901234567890}\r\n'
put("jsonl", "lines", 1, lines)
put("jsonl", "plain", 0, b"plain \xff text\n")
put("jsonl", "gzip", 1, gzip.compress(lines, mtime=0))
put("jsonl", "zstd", 0, b"\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello")
