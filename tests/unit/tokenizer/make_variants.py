#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes variants.json: small tokenizer.json files that between them use every supported component, and the ids they give.

    python make_variants.py
"""
import json
import os

import tokenizers
from hostile_strings import hostile_strings
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """Once there was a small program that cut words into pieces. It began with single letters and joined the pair that came
together most often, again and again, until nothing was left to join. "Why do you join them?" asked a reader. "Because short
lists are easier to learn," it said; "and because I can't help it." In 1994 it was written for files, in 2016 for words.
Die Katze läuft über die Straße. Le garçon mange une pêche. Мама мыла раму. 日本語の文章です。  Two spaces,   three spaces.
"""
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
          ).replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^", "'(?i:[sdmt]|ll|ve|re)|[^").replace("]?\\p{L}+", "]?+\\p{L}+")
SPECIAL = ["<s>", "</s>", "<|eot_id|>"]


def train(normalizer=None, pre_tokenizer=None, byte_level=False, byte_fallback=False, **model):
    bytes_as_tokens = [f"<0x{i:02X}>" for i in range(256)] if byte_fallback else []
    unknown = model.get("unk_token")
    tokenizer = Tokenizer(models.BPE(byte_fallback=byte_fallback, **model))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    special = ([unknown] if unknown else []) + SPECIAL + bytes_as_tokens
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=len(special) + 420, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else []))
    if not byte_fallback:
        return tokenizer
    # The trainer makes the bytes special tokens; a real model has them in its vocabulary only.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(state))


def variants():
    byte_level = pre_tokenizers.ByteLevel
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    yield "gpt2", train(pre_tokenizer=byte_level(add_prefix_space=False), byte_level=True)

    prefixed = train(pre_tokenizer=byte_level(add_prefix_space=True), byte_level=True)
    prefixed.add_tokens([AddedToken("left", lstrip=True), AddedToken("right", rstrip=True), AddedToken("one", single_word=True), AddedToken("learn", normalized=False),
                         AddedToken("<0x41>", lstrip=True, rstrip=True)])
    prefixed.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    yield "prefix space and added tokens", prefixed

    llama = train(normalizer=legacy, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    llama.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    yield "llama legacy", llama
    normalized = train(normalizer=legacy, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    normalized.add_tokens([AddedToken("x y", normalized=True), AddedToken("word", normalized=True)])
    yield "added tokens after normalising", normalized
    for scheme, split in (("first", False), ("always", True), ("never", False)):
        yield f"metaspace {scheme}", train(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split), unk_token="<unk>", fuse_unk=split,
                                           byte_fallback=scheme == "first")

    qwen = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), "isolated"), byte_level(add_prefix_space=False, use_regex=False)])
    yield "qwen2", train(normalizer=normalizers.NFC(), pre_tokenizer=qwen, byte_level=True)
    yield "nfkd and ignore_merges", train(normalizer=normalizers.NFKD(), pre_tokenizer=qwen, byte_level=True, ignore_merges=True)
    yield "nfkc and replace", train(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex("[aeiou]{2}"), "äö")]), unk_token="<unk>",
                                    pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_next"))
    yield "nfd", train(normalizer=normalizers.NFD(), pre_tokenizer=byte_level(add_prefix_space=False), byte_level=True)

    llama3 = train(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level(add_prefix_space=False, use_regex=False)]),
                   byte_level=True, ignore_merges=True)
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])])
    yield "llama3", llama3

    for behavior in ("removed", "contiguous", "merged_with_previous", "merged_with_next"):
        cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\s|[,.]"), behavior), byte_level(add_prefix_space=False, use_regex=False)])
        yield f"split {behavior}", train(pre_tokenizer=cut, byte_level=True)
    inverted = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\w+"), "removed", invert=True), pre_tokenizers.Digits(individual_digits=True)])
    yield "split inverted, digits", train(pre_tokenizer=inverted, unk_token="<unk>")
    yield "digits together", train(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Digits(), byte_level(add_prefix_space=False)]), byte_level=True)

    gemma = train(normalizer=normalizers.Replace(" ", "▁"), pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
                  byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    gemma.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    yield "gemma", gemma
    bloom = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(BLOOM), "isolated"), byte_level(add_prefix_space=False, use_regex=False)])
    yield "bloom", train(pre_tokenizer=bloom, byte_level=True)
    # what follows ByteLevel sees the letters that stand for bytes, some of which are digits
    falcon = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), byte_level(add_prefix_space=False), pre_tokenizers.Digits(),
                                      pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    yield "falcon", train(pre_tokenizer=falcon, byte_level=True)
    yield "punctuation", train(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), byte_level(add_prefix_space=True)]), byte_level=True)
    cohere = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(add_prefix_space=False)])
    yield "cohere", train(normalizer=normalizers.NFC(), pre_tokenizer=cohere, byte_level=True)
    olmo2 = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K), "isolated"), byte_level(add_prefix_space=False, use_regex=False)])
    yield "olmo2", train(pre_tokenizer=olmo2, byte_level=True)
    neox = train(normalizer=normalizers.NFC(), pre_tokenizer=byte_level(add_prefix_space=False), byte_level=True)
    neox.add_tokens([AddedToken(" " * count, normalized=True) for count in (4, 3, 2)])
    yield "gpt_neox", neox


def rulers():
    """A tokenizer trained on pages with long rulers of dashes, which become tokens of more than 1,024 bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(["Title\n" + "-" * 3000 + "\n"] * 3, trainers.BpeTrainer(vocab_size=40, show_progress=False))
    strings = [b"-" * count for count in (1, 2, 1023, 1024, 1025, 3000, 3001, 4096)]
    return tokenizer, strings + [b"Title\n" + strings[5] + b"\nTitle", b"e" + strings[4] + b" " + strings[3]]


def main():
    extra = ["left right  left", " right   x", "one oneone one, x_one one", "learnlearn", "x y word words", "aeiou oe ui", "cafe\u0301 ﬁ Å Ω", "a<0x41> b <0x41>c"]
    strings = [string for string in hostile_strings() if len(string) <= 48][:230:2] + [text.encode("utf-8") for text in extra]
    result = {"made_with": {"tokenizers": tokenizers.__version__}, "strings": [string.hex() for string in strings], "variants": []}
    for name, tokenizer in variants():
        ids = [tokenizer.encode(string.decode("utf-8", errors="replace")).ids for string in strings]
        result["variants"].append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "ids": ids})
        print(name, sum(map(len, ids)))
    tokenizer, strings = rulers()
    assert max(map(len, tokenizer.get_vocab())) > 1024
    result["variants"].append({"name": "tokens of more than 1,024 bytes", "tokenizer": json.loads(tokenizer.to_str()),
                               "strings": [string.hex() for string in strings],
                               "ids": [tokenizer.encode(string.decode()).ids for string in strings]})
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "variants.json"), "w", encoding="utf-8") as out:
        json.dump(result, out, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
