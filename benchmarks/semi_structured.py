#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads the operators of a 2:4-pruned checkpoint as PyTorch's semi-structured sparse tensors and times them.

    semi_structured.py DIR [--layer 0] [--columns 64 1024 4096 16384] [--dtype bfloat16]

For every operator of one decoder layer of DIR (safetensors; needs a GPU of compute capability 8.0 or
later), checks that each four entries of a row have at least two zeros, that
`torch.sparse.to_sparse_semi_structured` accepts the matrix and that its product equals the dense one. Times
both products for each number of columns on the right, with cuSPARSELt and CUTLASS if PyTorch has them.
Exits with 1 if a check fails.

Each time is given twice: as called from Python, where the host's overhead can exceed the product's time
(cuSPARSELt plans each call anew, about 0.6 ms), and on the device, from calls recorded in a CUDA graph. If
recording fails, the second one is the sum of the kernels' times from the profiler; "-": neither worked.
"searched" is the product with the algorithm that cuSPARSELt's search finds fastest.
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
    """Of one call from Python."""
    for _ in range(5):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def graph_milliseconds(work, calls=20):
    """Of one call in a CUDA graph of several."""
    side = torch.cuda.Stream()  # recording needs a stream of its own, and a warm-up
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return milliseconds(graph.replay, 5) / calls


def kernel_milliseconds(work, repeats=10):
    """Of a call's kernels, from PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    micros = sum(getattr(event, "self_device_time_total", getattr(event, "self_cuda_time_total", 0)) for event in profiler.key_averages())
    return micros / 1000 / repeats or None


def device_milliseconds(work, notes):
    """On the device; None if neither way works. Adds what went wrong to the set `notes`."""
    for way in (graph_milliseconds, kernel_milliseconds):
        try:
            return way(work)
        except Exception as error:  # private parts of PyTorch may raise anything
            notes.add(f"{way.__name__}: {first_line(error)}")
            try:
                torch.cuda.synchronize()
            except Exception as sticky:
                notes.add(f"the device is lost: {first_line(sticky)}")
                return None
    return None


def searched(S, x, notes):
    """A function for the product with the algorithm that cuSPARSELt's search finds; None if PyTorch lacks it."""
    search, multiply = getattr(torch, "_cslt_sparse_mm_search", None), getattr(torch, "_cslt_sparse_mm", None)
    packed = getattr(S, "packed", None)
    if search is None or multiply is None or packed is None:
        notes.add("this PyTorch has no search for cuSPARSELt's algorithms")
        return None
    try:
        found = int(search(packed, x))
        multiply(packed, x, alg_id=found)
        torch.cuda.synchronize()
        return lambda: multiply(packed, x, alg_id=found)
    except Exception as error:
        notes.add(f"the search for an algorithm: {first_line(error)}")
        return None


def faster(slow, fast):
    return f"{slow / fast:.2f}x" if slow and fast else "-"


def spell(time):
    return f"{time:.3f} ms" if time else "-"


def measure(label, W, S, count, kind, notes):
    """Prints a line for a product with `count` columns on the right; True if the product is correct."""
    x = torch.randn(W.shape[1], count, device="cuda", dtype=W.dtype)
    dense, right = (lambda: W @ x), True
    expected = dense().float()
    ways = {kind: lambda: torch.mm(S, x)}
    quick = searched(S, x, notes) if kind == "cusparselt" else None
    if quick:
        ways["searched"] = quick
    slow, slow_device = milliseconds(dense), device_milliseconds(dense, notes)
    for way, work in ways.items():
        off = ((work().float() - expected).norm() / expected.norm()).item()
        right = right and off < 1e-2
        fast, fast_device = milliseconds(work), device_milliseconds(work, notes)
        print(f"{label}  {count:6} columns  {way:10}  as called: dense {spell(slow)}, sparse {spell(fast)}, {faster(slow, fast)}  "
              f"on the device: dense {spell(slow_device)}, sparse {spell(fast_device)}, {faster(slow_device, fast_device)}  "
              f"difference {off:.1e}", flush=True)
    return right


def check(name, W, columns, kinds, notes):
    kept = (W.reshape(-1, 4) != 0).sum(1).max().item()
    if kept > 2:
        print(f"{name}: a group of four has {kept} non-zeros")
        return False
    right, taken = True, False
    for kind in kinds:
        SparseSemiStructuredTensor._FORCE_CUTLASS = kind == "cutlass"
        try:
            S = to_sparse_semi_structured(W)
            torch.mm(S, torch.zeros(W.shape[1], 64, device="cuda", dtype=W.dtype))
        except (RuntimeError, ValueError) as error:  # not in this PyTorch, or not for this GPU
            print(f"{name}: {kind}: {first_line(error)}")
            continue
        taken = True
        for count in columns:
            label = f"{name.split('.')[-2]:10} {W.shape[0]:6} x {W.shape[1]:6}"
            right = measure(label, W, S, count, kind, notes) and right
    return right and taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--columns", type=int, nargs="+", default=[64, 1024, 4096, 16384])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kinds", nargs="+", default=["cusparselt", "cutlass"])
    options = parser.parse_args()
    found, right, notes = 0, True, set()
    for name, W in operators(options.folder, options.layer):
        found += 1
        right = check(name, W.to(device="cuda", dtype=getattr(torch, options.dtype)), options.columns, options.kinds, notes) and right
    for note in sorted(notes):
        print(f"note: {note}")
    print(f"{found} operators")
    return 0 if right and found > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
