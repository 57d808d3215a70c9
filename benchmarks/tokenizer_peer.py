#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the encoding speed of Hugging Face's tokenizers with ours, on one thread.

    python tokenizer_peer.py build/default/benchmarks/bench_tokenizer TEXT MODEL...

Needs transformers, tokenizers, sentencepiece and protobuf. Both encode the file's documents one by one;
the best of five passes counts.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import json
import re
import subprocess
import sys
import time

from transformers import AutoTokenizer


def documents(path):
    if path.endswith((".jsonl", ".json")):
        with open(path, encoding="utf-8", newline="\n") as lines:
            return [json.loads(line)["text"] for line in lines if line.strip()]
    with open(path, "rb") as file:
        return [file.read().decode("utf-8", errors="replace")]


def peer_speed(model, texts):
    tokenizer = AutoTokenizer.from_pretrained(model).backend_tokenizer
    size = sum(len(text.encode("utf-8")) for text in texts)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        tokenizer.encode_batch_fast(texts)  # the variant without offsets
        best = max(best, size / 1e6 / (time.perf_counter() - start))
    return best


def main():
    program, text, models = sys.argv[1], sys.argv[2], sys.argv[3:]
    texts = documents(text)
    for model in models:
        line = subprocess.run([program, text, model], check=True, stdout=subprocess.PIPE, text=True).stdout
        first, best = (float(number) for number in re.search(r"first pass +([0-9.]+) MB/s +best +([0-9.]+)", line).groups())
        peer = peer_speed(model, texts)
        print(f"{os.path.basename(text)} {os.path.basename(model.rstrip('/'))}: ours {best:.1f} MB/s (first pass {first:.1f}), tokenizers {peer:.1f} MB/s, ratio {best / peer:.1f}")


if __name__ == "__main__":
    main()
