#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The forward pass beside transformers, in one run: tokens/s with the head and the loss, on a CPU.

    forward_peers.py build/default/benchmarks [--shape opt-125m] [--layers N] [--precision fp32,bf16] [--windows 4]
                     [--length 2048] [--threads 2] [--rounds 3] [--clock wall]

Writes a checkpoint of the shape with random weights (make_checkpoint), then runs bench_forward and transformers on it by
turns; the best round of each counts. Both read the same BF16 weights; with `fp32` both compute in float. bench_forward's
time includes reading the weights from the file, layer by layer; transformers has them in memory, and its model computes
the logits of one window at a time. `--clock cpu` compares processor seconds, for machines that are never quiet: with one
thread they are what a quiet machine would take.

In a virtual machine that hides the sizes of AMX's tiles, PyTorch cannot use AMX; cpuid_tiles.c supplies them, if there is a
C compiler.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

PRELOADED = "FP_CPUID_TILES"


def supply_tiles(folder):
    """Starts this program again with cpuid_tiles.c, if the processor has AMX."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    with open("/proc/cpuinfo") as file:
        if PRELOADED in os.environ or not compiler or "amx_bf16" not in file.read():
            return
    library = os.path.join(folder, "cpuid_tiles.so")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpuid_tiles.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", source, "-o", library], check=True)
    environment = dict(os.environ, LD_PRELOAD=library, **{PRELOADED: folder})
    code = subprocess.run([sys.executable] + sys.argv, env=environment).returncode
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


class Ours:
    def __init__(self, programs, model, given):
        self.command = [os.path.join(programs, "bench_forward"), model, str(given.length), str(given.windows), str(given.threads)]
        self.clock = given.clock
        self.environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}

    def seconds(self, precision):
        done = subprocess.run(self.command + [precision], capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            sys.exit(done.stderr)
        line = "end to end" if self.clock == "wall" else "processor seconds"
        return float(re.search(rf"^{line} +([\d.]+)", done.stdout, re.M).group(1))


class Transformers:
    def __init__(self, model, given, precisions):
        import torch
        import transformers
        torch.set_num_threads(given.threads)
        self.torch, self.name = torch, f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
        self.clock = time.perf_counter if given.clock == "wall" else time.process_time
        types = {"fp32": torch.float32, "bf16": torch.bfloat16}
        self.models = {p: transformers.AutoModelForCausalLM.from_pretrained(model, dtype=types[p]).eval() for p in precisions}
        words = next(iter(self.models.values())).config.vocab_size
        generator = torch.Generator().manual_seed(1)
        self.windows = torch.randint(0, words, (given.windows, given.length), generator=generator)
        for model in self.models.values():  # the first pass prepares
            self.run(model, self.windows[:1])

    def run(self, model, windows):
        with self.torch.inference_mode():
            for window in windows:
                model(input_ids=window[None], labels=window[None])

    def seconds(self, precision):
        start = self.clock()
        self.run(self.models[precision], self.windows)
        return self.clock() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", help="folder of bench_forward and make_checkpoint")
    parser.add_argument("--shape", default="opt-125m")
    parser.add_argument("--layers", type=int, help="make so many layers only")
    parser.add_argument("--precision", default="fp32,bf16")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    given = parser.parse_args()
    folder = os.environ.get(PRELOADED) or tempfile.mkdtemp()
    try:
        supply_tiles(folder)
        model, precisions = os.path.join(folder, "model"), given.precision.split(",")
        layers = ["--layers", str(given.layers)] if given.layers else []
        make = os.path.join(given.programs, "make_checkpoint")
        subprocess.run([make, given.shape, "--output", model, "--dtype", "bf16"] + layers, check=True)
        ours, theirs = Ours(given.programs, model, given), Transformers(model, given, precisions)
        best = {}
        for _ in range(given.rounds):
            for precision in precisions:
                for who, peer in (("ours", ours), ("theirs", theirs)):
                    best[precision, who] = min(peer.seconds(precision), best.get((precision, who), float("inf")))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tokens = given.windows * given.length
    kind = "seconds" if given.clock == "wall" else "processor seconds"
    print(f"forward pass of {given.shape}{f', {given.layers} layers' if given.layers else ''}, {given.windows} windows of "
          f"{given.length} tokens, {given.threads} threads, best of {given.rounds} rounds; {theirs.name}")
    for precision in precisions:
        a, b = best[precision, "ours"], best[precision, "theirs"]
        print(f"{precision:5} ours {a:8.2f} {kind}, {tokens / a:8.0f} tokens/s; transformers {b:8.2f}, {tokens / b:8.0f} tokens/s; "
              f"ratio {b / a:.2f}")


if __name__ == "__main__":
    main()
