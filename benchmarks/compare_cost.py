#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the cost of `compare` with 4 methods x 2 patterns with that of separate prune and eval runs.

    compare_cost.py PROGRAM MODEL CALIBRATION TEXT SAMPLES PRESET [FLAG...]

Flags go to every command, such as --sequence-length 256 --threads 1. Costs are CPU seconds (user and
system), which depend little on other load.
"""
import os
import resource
import subprocess
import sys
import tempfile

program, model, calibration, text, samples, preset, *flags = sys.argv[1:]
os.environ.setdefault("OMP_NUM_THREADS", "1")
METHODS = ["magnitude", "wanda", "sparsegpt", "fista"]
PATTERNS = ["50%", "2:4"]


def cost(*words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([program, *words, *flags], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


with tempfile.TemporaryDirectory() as work:
    calibrated = ["--calibration", calibration, "--samples", samples]
    comparison = cost("compare", model, *calibrated, "--text", text, "--work", f"{work}/kept", "--presets", preset,
                      "--methods", ",".join(METHODS), "--patterns", ",".join(PATTERNS))
    print(f"compare, {len(METHODS)} methods x {len(PATTERNS)} patterns and dense: {comparison:.2f} s", flush=True)
    runs = {}
    for pattern in PATTERNS:
        for method in METHODS:
            output = f"{work}/{method}{pattern[0]}"
            prune = cost("prune", model, *calibrated, "-o", output, "--pattern", pattern, "--method", method,
                         "--preset", preset)
            evaluation = cost("eval", output, "--text", text)
            runs[method, pattern] = prune + evaluation
            print(f"separate, {method} at {pattern}: prune {prune:.2f} s, eval {evaluation:.2f} s", flush=True)
    mean = sum(runs.values()) / len(runs)
    fista = max(runs["fista", pattern] for pattern in PATTERNS)
    print(f"compare / one separate run of fista: {comparison / fista:.2f}")
    print(f"compare / mean of the {len(runs)} separate runs: {comparison / mean:.2f}")
