#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens quantised checkpoints with transformers and compressed-tensors and compares them with this program.

    open_quantised.py PROGRAM TEXT LENGTH NAME…

For each NAME there are NAME-quantised and NAME-plain, the same weights as this program reads them. The weights must be the same
to the bit, so that every zero is a zero there, and so must be the perplexity, to 0.1%. Both are measured without rounding the
inputs of the operators, which `eval` does not do; the perplexity with it is printed too. Checked with transformers 5.23,
compressed-tensors 0.20 and torch 2.15 on a CPU.
"""
import json
import logging
import math
import os
import subprocess
import sys
import warnings

import compressed_tensors
import torch
import transformers

warnings.filterwarnings("ignore")
transformers.utils.logging.disable_progress_bar()
logging.disable(logging.WARNING)


def run(program, *arguments):
    return json.loads(subprocess.run([program, *arguments, "--json"], check=True, capture_output=True, text=True).stdout)


def open_model(folder, **how):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager", **how).eval()


def open_quantised(folder, windows):
    """With floats as weights. dequantize=True of transformers 5.23 takes the first of several group sizes for all operators;
    without it the first pass expands the weights, but neither zero points nor experts are read."""
    with open(os.path.join(folder, "config.json")) as file:
        groups = json.load(file)["quantization_config"]["config_groups"]
    if len(groups) == 1:
        return open_model(folder, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    model = open_model(folder)
    perplexity(model, windows[:1])
    return model


def perplexity(model, windows):
    with torch.no_grad():
        logits = model(windows).logits[:, :-1].double()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), windows[:, 1:].reshape(-1))
    return math.exp(loss.item())


def compare_weights(quantised, plain):
    """The number of tensors, and of those that differ."""
    there, here = quantised.state_dict(), plain.state_dict()
    same = [name in there and there[name].dtype == here[name].dtype and torch.equal(there[name], here[name]) for name in here]
    return len(same), same.count(False)


def main():
    program, text, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print("transformers", transformers.__version__, "compressed-tensors", compressed_tensors.__version__, "torch", torch.__version__)
    failed = False
    for name in sys.argv[4:]:
        folder = name + "-quantised"
        ids = torch.tensor(run(program, "tokenize", folder, "--text", text)["ids"])
        windows = ids[:len(ids) // length * length].reshape(-1, length)
        ours = run(program, "eval", folder, "--text", text, "--sequence-length", str(length))["perplexity"]
        quantised = open_quantised(folder, windows)
        plain = open_model(name + "-plain")
        count, different = compare_weights(quantised, plain)
        rounded = perplexity(torch.nn.Module.float(quantised), windows)
        for module in quantised.modules():
            module.quantization_enabled = False
        theirs = perplexity(quantised, windows)
        good = different == 0 and abs(ours / theirs - 1) < 1e-3
        failed = failed or not good
        print(f"{name:24} {count} tensors, {different} different; perplexity {ours:.6g} here, {theirs:.6g} there, "
              f"{rounded:.6g} with rounded inputs{'' if good else ': DIFFERENT'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
