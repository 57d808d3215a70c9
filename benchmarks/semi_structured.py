#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Operators of a 2:4-pruned checkpoint as PyTorch's semi-structured sparse tensors: accepted, right, and how fast.

    semi_structured.py DIR [--layer 0] [--columns 64 1024 4096 16384] [--dtype bfloat16]

For every operator of one decoder layer of DIR (safetensors, on a GPU of compute capability 8.0 or later): each four entries of a row have two
zeros at least, `torch.sparse.to_sparse_semi_structured` takes the matrix, its product agrees with the dense one, and the times of both products
with so many columns on the right, by cuSPARSELt and by CUTLASS where PyTorch has them. Ends with 1 where something does not hold.
"""
import argparse
import glob
import sys

import torch
from safetensors import safe_open
from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured


def operators(folder, layer):
    for path in sorted(glob.glob(folder + "/*.safetensors")):
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():
                if f"layers.{layer}." in name and name.endswith(".weight") and len(tensors.get_slice(name).get_shape()) == 2:
                    yield name, tensors.get_tensor(name)


def milliseconds(work, repeats=30):
    for _ in range(5):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def check(name, W, columns, kinds):
    kept = (W.reshape(-1, 4) != 0).sum(1).max().item()
    if kept > 2:
        print(f"{name}: a group of four has {kept} entries")
        return False
    right, taken = True, False
    for kind in kinds:
        SparseSemiStructuredTensor._FORCE_CUTLASS = kind == "cutlass"
        try:
            S = to_sparse_semi_structured(W)
            torch.mm(S, torch.zeros(W.shape[1], 64, device="cuda", dtype=W.dtype))
        except (RuntimeError, ValueError) as error:  # not in this PyTorch, or not for this GPU
            print(f"{name}: {kind}: {str(error).splitlines()[0]}")
            continue
        taken = True
        for count in columns:
            x = torch.randn(W.shape[1], count, device="cuda", dtype=W.dtype)
            dense, sparse = W @ x, torch.mm(S, x)
            off = ((sparse.float() - dense.float()).norm() / dense.float().norm()).item()
            right = right and off < 1e-2
            slow, fast = milliseconds(lambda: W @ x), milliseconds(lambda: torch.mm(S, x))
            print(f"{name.split('.')[-2]:10} {W.shape[0]:6} x {W.shape[1]:6}  {count:6} columns  {kind:10}  dense {slow:.3f} ms  "
                  f"sparse {fast:.3f} ms  {slow / fast:.2f}x  differ by {off:.1e}", flush=True)
    return right and taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--columns", type=int, nargs="+", default=[64, 1024, 4096, 16384])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kinds", nargs="+", default=["cusparselt", "cutlass"])
    options = parser.parse_args()
    found, right = 0, True
    for name, W in operators(options.folder, options.layer):
        found += 1
        right = check(name, W.to(device="cuda", dtype=getattr(torch, options.dtype)), options.columns, options.kinds) and right
    print(f"{found} operators")
    return 0 if right and found > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
