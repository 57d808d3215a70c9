#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""oracle_basis.py PROGRAM SOURCE_FOLDER WORK_FOLDER

Loads outputs of `prune --basis full` with transformers. Pruned models must have the perplexity that `eval` gives, and
models of which the pattern removes next to nothing must predict what their originals predict. Needs torch and
transformers.
"""
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import transformers

transformers.utils.logging.disable_progress_bar()
PROGRAM, SOURCE, WORK = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
LENGTH = 24
# name, and whether its head is tied
FIXTURES = [("llama-tied", True), ("llama-gqa", False), ("llama-bare-names", True), ("qwen2-tied", True), ("qwen3-bias-tied", True),
            ("qwen3-plain", False), ("mistral-plain", False), ("opt-plain", True), ("opt-untied", False), ("opt-bin", True),
            ("glm4_moe-plain", False), ("ernie4_5_moe-plain", False), ("granitemoe-plain", False),
            ("granitemoehybrid-dense", False), ("dots1-plain", False), ("minimax_m2-plain", False), ("llama-demo", True), ("opt-demo", True)]
failures = 0


def complain(text):
    global failures
    failures += 1
    print("FAILED:", text)


def tokenizer(vocabulary=40):
    """One token for each of the first letters, so that every fixture can read text."""
    symbols = "abcdefghijklmnopqrstuvwxyz.,"
    entries = {symbol: index for index, symbol in enumerate(symbols)}
    entries["\u0120"] = len(symbols)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": vocabulary - 1, "content": "</s>", **special}], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": entries, "merges": []}}


def run(*arguments):
    result = subprocess.run([PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {result.stderr}")
    return result.stdout


def prepare(name):
    folder = WORK / name
    if name.endswith("-demo"):
        return shutil.copytree(SOURCE / "models" / name, folder)
    shutil.copytree(SOURCE / "tests/fixtures/model" / name, folder)
    for extra in ["expected.bin", "captures.bin"]:
        (folder / extra).unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return folder


def texts():
    words = "the a then other with his her weight zero keep small large error model".split()
    generator = torch.Generator().manual_seed(1)

    def line():
        return " ".join(words[i] for i in torch.randint(len(words), (20,), generator=generator)) + ".\n"
    for name, lines in [("calibration.txt", 200), ("evaluation.txt", 60)]:
        (WORK / name).write_text("".join(line() for _ in range(lines)))


def load(folder):
    # eager attention as the program has it; float32, whatever the checkpoint's type
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                      output_loading_info=True)
    for key in ["missing_keys", "unexpected_keys", "mismatched_keys"]:
        if report.get(key):
            complain(f"{folder.name}: {key}: {sorted(report[key])[:4]}")
    return model.eval()


def evaluate(model, ids):
    """Log probabilities of windows of LENGTH tokens, and the perplexity of their tokens but the first."""
    with torch.no_grad():
        logits = model(ids).logits.double()
    log_p = torch.log_softmax(logits, -1)
    losses = -log_p[:, :-1].gather(-1, ids[:, 1:, None])
    return log_p, math.exp(losses.mean().item())


def windows(folder):
    ids = json.loads(run("tokenize", folder, "--text", WORK / "evaluation.txt", "--json"))["ids"]
    count = len(ids) // LENGTH
    return torch.tensor(ids[:count * LENGTH]).view(count, LENGTH)


def prune(source, target, pattern, *flags):
    run("prune", source, "-o", target, "--calibration", WORK / "calibration.txt", "--samples", 32, "--sequence-length", LENGTH,
        "--pattern", pattern, "--basis", "full", "--set", "basis_steps=60", "--threads", 1, "--device", "cpu", *flags)


def check(name, tied):
    folder = prepare(name)
    ids = windows(folder)
    dense = load(folder)
    before, dense_perplexity = evaluate(dense, ids)
    # the smallest weight of each operator is removed: the model is the dense one in the new basis
    prune(folder, WORK / f"{name}-dense", "0.2%", "--method", "wanda")
    turned = load(WORK / f"{name}-dense")
    after, turned_perplexity = evaluate(turned, ids)
    kl = (before.exp() * (before - after)).sum(-1).mean().item()
    moved = (dense.get_input_embeddings().weight - turned.get_input_embeddings().weight).abs().max().item()
    if (dense.get_output_embeddings().weight.data_ptr() == dense.get_input_embeddings().weight.data_ptr()) != tied:
        complain(f"{name}: not the fixture that it was")
    same_head = turned.get_output_embeddings().weight.data_ptr() == turned.get_input_embeddings().weight.data_ptr()
    # rounding to f16 and bf16, as tests/unit/model/test_basis.c has it
    exact = json.loads((folder / "config.json").read_text())
    most = 2e-3 if "bfloat16" in (exact.get("dtype"), exact.get("torch_dtype")) else 1e-4
    print(f"{name}: dense {dense_perplexity:.4f}, in the new basis {turned_perplexity:.4f}, KL {kl:.1e}, embeddings moved by "
          f"{moved:.2f}")
    # the fixtures have random weights and perplexities of thousands, which small differences move by much
    if not (-1e-9 < kl < most and abs(turned_perplexity / dense_perplexity - 1) < 5e-3):
        complain(f"{name}: the model in the new basis is another one")
    if moved < 1e-2 or same_head:
        complain(f"{name}: nothing was turned, or the head is still tied")
    prune(folder, WORK / f"{name}-pruned", "2:4", "--preset", "fast")
    pruned = load(WORK / f"{name}-pruned")
    theirs = evaluate(pruned, ids)[1]
    ours = json.loads(run("eval", WORK / f"{name}-pruned", "--text", WORK / "evaluation.txt",
                          "--sequence-length", LENGTH, "--threads", 1, "--device", "cpu", "--json"))
    print(f"{name}: pruned: ours {ours['perplexity']:.5f}, theirs {theirs:.5f}")
    if ours["windows"] != len(ids):
        complain(f"{name}: {ours['windows']} windows, not {len(ids)}")
    if not abs(ours["perplexity"] / theirs - 1) < 1e-3:
        complain(f"{name}: perplexities differ")


def main():
    WORK.mkdir(parents=True)
    texts()
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name, tied in FIXTURES:
        check(name, tied)
    sys.exit(1 if failures else 0)


main()
