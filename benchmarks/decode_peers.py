#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoding beside PyTorch and llama.cpp, in one run: the linear operators of one token.

    decode_peers.py build/default/benchmarks/bench_decode [--shape tinyllama-1.1b] [--threads 2] [--rounds 5]
                    [--ggml DIR] [--clock wall]

Runs bench_decode, and before and after it the same products (every operator of every layer and the head, each with
weights of its own, one row of activations) in PyTorch in BF16 and, with the folder of a build of llama.cpp's libggml-base.so
and libggml-cpu.so, in ggml in F16, which is what llama.cpp runs. The best round of each counts, as in bench_decode. With `--threads 1 --clock cpu` all of
them count the processor time of one thread, for machines that are never quiet.
"""
import argparse
import ctypes
import os
import re
import subprocess
import sys
import time

SHAPES = {"tinyllama-1.1b": (2048, 256, 5632, 22, 32000), "llama-2-7b": (4096, 4096, 11008, 32, 32000),
          "llama-3.1-8b": (4096, 1024, 14336, 32, 128256), "small": (512, 128, 1376, 4, 4000)}


def operators(shape):
    """(outputs, inputs) of every operator of a token, the head last."""
    hidden, keys, inner, layers, words = SHAPES[shape]
    layer = [(hidden, hidden), (keys, hidden), (keys, hidden), (hidden, hidden), (inner, hidden), (inner, hidden), (hidden, inner)]
    return layer * layers + [(words, hidden)]


def best(rounds, run, clock):
    times = []
    for _ in range(rounds + 1):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times[1:])  # the first one warms up


class Torch:
    name = "PyTorch BF16"

    def __init__(self, shape, threads):
        import torch
        torch.set_num_threads(threads)
        self.torch, self.name = torch, f"PyTorch {torch.__version__} BF16"
        self.weights = [torch.empty(rows, cols, dtype=torch.bfloat16).uniform_(-1, 1) for rows, cols in operators(shape)]
        self.inputs = {cols: torch.full((1, cols), 0.5, dtype=torch.bfloat16) for _, cols in operators(shape)}

    def token(self):
        with self.torch.inference_mode():
            for weight in self.weights:
                self.torch.nn.functional.linear(self.inputs[weight.shape[1]], weight)


class Ggml:
    """Through its C interface: one graph with all products, computed by the threads of ggml's CPU backend."""
    name = "llama.cpp (ggml) F16"
    F32, F16 = 0, 1

    class Parameters(ctypes.Structure):
        _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    def __init__(self, folder, shape, threads):
        found = {}
        for root, _, files in os.walk(folder):
            for name in files:
                for library in ("libggml-base.so", "libggml-cpu.so"):
                    if name == library:
                        found[library] = os.path.join(root, name)
        base = ctypes.CDLL(found["libggml-base.so"], mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(found["libggml-cpu.so"], mode=ctypes.RTLD_GLOBAL)
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        base.ggml_init.restype, base.ggml_init.argtypes = pointer, [self.Parameters]
        base.ggml_new_tensor_2d.restype, base.ggml_new_tensor_2d.argtypes = pointer, [pointer, ctypes.c_int, count, count]
        base.ggml_mul_mat.restype, base.ggml_mul_mat.argtypes = pointer, [pointer, pointer, pointer]
        base.ggml_new_graph_custom.restype = pointer
        base.ggml_new_graph_custom.argtypes = [pointer, ctypes.c_size_t, ctypes.c_bool]
        base.ggml_build_forward_expand.restype, base.ggml_build_forward_expand.argtypes = None, [pointer, pointer]
        base.ggml_get_data.restype, base.ggml_get_data.argtypes = pointer, [pointer]
        self.cpu.ggml_graph_compute_with_ctx.restype = ctypes.c_int
        self.cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]
        self.cpu.ggml_cpu_init()
        size = sum(rows * cols * 2 for rows, cols in operators(shape))
        self.context = base.ggml_init(self.Parameters(size + (512 << 20), None, False))
        self.graph, self.threads = base.ggml_new_graph_custom(self.context, 2048, False), threads
        inputs = {}
        for rows, cols in operators(shape):
            if cols not in inputs:
                inputs[cols] = base.ggml_new_tensor_2d(self.context, self.F32, cols, 1)
                ctypes.memset(base.ggml_get_data(inputs[cols]), 0x3c, cols * 4)
            weight = base.ggml_new_tensor_2d(self.context, self.F16, cols, rows)
            ctypes.memset(base.ggml_get_data(weight), 0x2c, rows * cols * 2)
            base.ggml_build_forward_expand(self.graph, base.ggml_mul_mat(self.context, weight, inputs[cols]))

    def token(self):
        if self.cpu.ggml_graph_compute_with_ctx(self.context, self.graph, self.threads) != 0:
            raise RuntimeError("ggml failed")


def ours(command, shape, threads, rounds, clock):
    """tokens/s of batch 1 by pattern, and bench_decode's own output."""
    done = subprocess.run([command, "--shape", shape, "--threads", str(threads), "--rounds", str(rounds), "--clock", clock],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    first = done.stdout.split("batch 1\n")[1].split("batch 8")[0]
    rows = re.findall(r"^(\S+) +[\d.]+ +([\d.]+) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+)", first, re.M)
    return {name: float(rate) for name, _, rate in rows}, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench_decode")
    parser.add_argument("--shape", default="tinyllama-1.1b", choices=SHAPES)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ggml", help="folder of a build of llama.cpp with shared libraries")
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    given = parser.parse_args()
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    peers = [Torch(given.shape, given.threads)]
    if given.ggml:
        peers.append(Ggml(given.ggml, given.shape, given.threads))
    seconds = {peer.name: best(given.rounds, peer.token, clock) for peer in peers}
    rates, text = ours(given.bench_decode, given.shape, given.threads, given.rounds, given.clock)
    for peer in peers:
        seconds[peer.name] = min(seconds[peer.name], best(given.rounds, peer.token, clock))
    print(text)
    print(f"tokens/s of {given.shape}, one token at a time, {given.threads} threads: linear operators and head")
    for name, rate in list(rates.items()) + [(name, 1 / time_) for name, time_ in seconds.items()]:
        print(f"{name:24} {rate:8.2f}  {rate / rates['dense']:6.2f} times our dense")


if __name__ == "__main__":
    main()
