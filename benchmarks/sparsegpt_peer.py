#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times SparseGPT in PyTorch on the operators of one decoder layer, for comparison with this program.

    sparsegpt_peer.py [llama-2-7b|llama-3-8b|opt-125m] [--samples 128] [--length 2048] [--layers 32] [--device cuda]

Written from the published algorithm (Frantar and Alistarh, 2023), as its authors run it: one Hessian per
operator, summed in float over the calibration windows one by one; damping of 1% of the mean diagonal; the
Cholesky factor of the inverse; blocks of 128 columns, processed one column at a time, with 2:4 groups
chosen when the sweep reaches them. Weights and inputs are random; there is no model, file or forward pass.
"""
import argparse
import time

import torch

# hidden, inner, width of keys, with a gate
SHAPES = {"llama-2-7b": (4096, 11008, 4096, True), "llama-3-8b": (4096, 14336, 1024, True), "opt-125m": (768, 3072, 768, False)}


def hessian(inputs, samples, length, seed, device):
    """2/N · Σ xxᵀ in float over random windows."""
    generator = torch.Generator(device=device).manual_seed(seed)
    H = torch.zeros(inputs, inputs, device=device)
    kind = torch.float16 if device == "cuda" else torch.float32  # a CPU's generator is slow in float16
    for _ in range(samples):
        x = torch.randn(length, inputs, device=device, generator=generator, dtype=kind).float()
        H += x.t() @ x
    return H * (2.0 / (samples * length))


def prune(W, H, kept=2, group=4, block=128, damping=0.01):
    n = W.shape[1]
    dead = torch.diag(H) == 0
    H[dead, dead] = 1
    W[:, dead] = 0
    H.diagonal().add_(damping * torch.diag(H).mean())
    U = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(H)), upper=True)
    for begin in range(0, n, block):
        end = min(begin + block, n)
        part, errors = W[:, begin:end].clone(), torch.zeros_like(W[:, begin:end])
        own = U[begin:end, begin:end]
        keep = torch.ones_like(part, dtype=torch.bool)
        for i in range(end - begin):
            if i % group == 0:
                score = part[:, i : i + group] ** 2 / torch.diag(own)[i : i + group] ** 2
                keep[:, i : i + group].scatter_(1, score.topk(group - kept, dim=1, largest=False)[1], False)
            value = torch.where(keep[:, i], part[:, i], 0)
            error = (part[:, i] - value) / own[i, i]
            part[:, i:] -= error[:, None] * own[i, i:][None, :]
            part[:, i] = value
            errors[:, i] = error
        W[:, begin:end] = part
        W[:, end:] -= errors @ U[begin:end, end:]
    return W


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", nargs="?", default="llama-2-7b", choices=SHAPES)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--threads", type=int, help="of a CPU")
    arguments = parser.parse_args()
    device = arguments.device
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    hidden, inner, keys, gated = SHAPES[arguments.shape]
    operators = [("q", hidden, hidden), ("k", keys, hidden), ("v", keys, hidden), ("o", hidden, hidden),
                 ("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)]
    if not gated:
        del operators[4]
    prune(torch.randn(256, 256, device=device), torch.eye(256, device=device))  # warm-up: loads handles and kernels
    total = [0.0, 0.0]
    for seed, (name, outputs, inputs) in enumerate(operators):
        wait()
        start = time.perf_counter()
        H = hessian(inputs, arguments.samples, arguments.length, seed, device)
        wait()
        middle = time.perf_counter()
        W = prune(torch.randn(outputs, inputs, device=device), H)
        wait()
        end = time.perf_counter()
        zeros = (W == 0).float().mean().item()
        total[0] += middle - start
        total[1] += end - middle
        print(f"{name:5} {outputs:6} x {inputs:6}  hessian {middle - start:6.2f} s  prune {end - middle:6.2f} s  zeros {zeros:.4f}", flush=True)
    print(f"one layer: hessians {total[0]:.2f} s, prune {total[1]:.2f} s; {arguments.layers} layers: {arguments.layers * sum(total):.0f} s")


if __name__ == "__main__":
    main()
