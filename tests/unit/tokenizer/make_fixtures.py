#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes hostile.json: what Hugging Face's tokenizers make of hostile_strings.py, and counts and hashes for the shared texts.

    python make_fixtures.py ../../../../shared
"""
import json
import os
import sys

import sentencepiece
import tokenizers
import transformers
from hostile_strings import hostile_strings
from oracle_tokenizers import ORACLES, open_oracle

FILES = ["data/wikitext2-test.raw", "data/c4-sample.jsonl"]


def fnv64(numbers):
    value = 0xCBF29CE484222325
    for number in numbers:
        for byte in number.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def documents(path):
    if path.endswith(".jsonl"):
        with open(path, encoding="utf-8", newline="\n") as lines:
            return [json.loads(line)["text"] for line in lines]
    with open(path, "rb") as file:
        return [file.read().decode("utf-8", errors="replace")]


def main():
    shared = sys.argv[1]
    strings = hostile_strings()
    result = {
        "made_with": {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__, "transformers": transformers.__version__},
        "strings": [string.hex() for string in strings],
        "tokenizers": [],
    }
    for name, folder in ORACLES.items():
        oracle = open_oracle(shared, folder)
        files = []
        for file in FILES:
            ids = [number for text in documents(os.path.join(shared, file)) for number in oracle.encode(text).ids]
            files.append({"file": file, "count": len(ids), "fnv64": f"{fnv64(ids):016x}"})
        ids = []
        for string in strings:
            numbers = oracle.encode(string.decode("utf-8", errors="replace")).ids
            ids.append(numbers if len(numbers) <= 100 else {"count": len(numbers), "fnv64": f"{fnv64(numbers):016x}"})
        result["tokenizers"].append({"name": name, "folder": folder, "files": files, "ids": ids})
        print(name, files)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile.json"), "w", encoding="utf-8") as out:
        json.dump(result, out, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
