#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes decodes.json: the text that Hugging Face's tokenizers (for tokenizer.model: sentencepiece) make of ids, without special
tokens. The ids are those of variants.json and hostile.json, and for byte-level tokenizers also random ones (seed 1), which end
within characters.

    python make_decodes.py ../../../../shared
"""
import json
import os
import random
import sys

import sentencepiece
import tokenizers
import transformers
from oracle_tokenizers import ORACLES
from tokenizers import Tokenizer, decoders
from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))


def decoder_of(state):
    """The decoder that belongs to a tokenizer of variants.json; None: there is none."""
    text = json.dumps([state["pre_tokenizer"], state["normalizer"]])
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if "ByteLevel" in text:
        return decoders.ByteLevel()
    if "Metaspace" in text:
        return decoders.Sequence(spaces + ([] if '"never"' in text else [decoders.Strip(" ", 1, 0)]))
    if "Prepend" in text:
        return decoders.Sequence(spaces + [decoders.Strip(" ", 1, 0)])
    return decoders.Sequence(spaces) if '\\u2581' in text else None


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def main():
    shared = sys.argv[1]
    generator = random.Random(1)
    result = {"made_with": {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__,
                            "transformers": transformers.__version__}, "variants": [], "shared": []}
    for variant in load("variants.json")["variants"]:
        decoder = decoder_of(variant["tokenizer"])
        if decoder is None or "strings" in variant:
            continue
        tokenizer = Tokenizer.from_str(json.dumps(variant["tokenizer"]))
        tokenizer.decoder = decoder
        lists = variant["ids"]
        if tokenizer.decoder and "ByteLevel" in str(decoder):
            lists = lists + [[generator.randrange(tokenizer.get_vocab_size()) for _ in range(20)] for _ in range(20)]
        result["variants"].append({"name": variant["name"], "ids": lists[len(variant["ids"]):],
                                   "texts": [tokenizer.decode(ids).encode().hex() for ids in lists]})
    for entry in load("hostile.json")["tokenizers"]:
        folder = os.path.join(shared, ORACLES[entry["name"]])
        if os.path.exists(os.path.join(folder, "tokenizer.model")):
            model = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
            decode = lambda ids: model.decode([i for i in ids if not model.is_unknown(i)])
        else:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        # long lists have a hash in place of their ids
        texts = [decode(ids).encode().hex() if isinstance(ids, list) else None for ids in entry["ids"]]
        result["shared"].append({"name": entry["name"], "texts": texts})
    with open(os.path.join(HERE, "decodes.json"), "w", encoding="utf-8") as out:
        json.dump(result, out, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
