#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens NAME-pruned with transformers and compares its perplexity with that of `eval`.

    open_in_transformers.py PROGRAM TEXT NAME…
"""
import json
import math
import subprocess
import sys

import torch
import transformers
from tokenizers import Tokenizer

LENGTH = 24


def perplexity(folder, text):
    """As `eval` computes it: windows of LENGTH tokens one after the other, each by itself."""
    attention = "sdpa" if "falcon-rw" in folder else "eager"  # as in tests/fixtures/model/generate.py
    with open(folder + "/config.json") as file:
        model_class = getattr(transformers, json.load(file)["architectures"][0])
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    ids = torch.tensor(Tokenizer.from_file(folder + "/tokenizer.json").encode(text, add_special_tokens=False).ids)
    windows = ids[:len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
    with torch.no_grad():
        logits = model(windows).logits[:, :-1].double()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), windows[:, 1:].reshape(-1))
    return math.exp(loss.item())


def main():
    program, path = sys.argv[1:3]
    with open(path) as file:
        text = file.read()
    print("transformers", transformers.__version__, "torch", torch.__version__)
    failed = False
    for name in sys.argv[3:]:
        folder = name + "-pruned"
        command = [program, "eval", folder, "--text", path, "--sequence-length", str(LENGTH), "--threads", "1", "--json"]
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["perplexity"]
        theirs = perplexity(folder, text)
        same = abs(ours / theirs - 1) < 1e-4
        failed = failed or not same
        print(f"{name:24} perplexity {ours:.6g} here, {theirs:.6g} there{'' if same else ': DIFFERENT'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
