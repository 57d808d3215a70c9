#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the perplexities after pruning on two devices, or with two sets of flags.

    parity.py --calibration FILE --text FILE [--one "--device cpu"] [--other "--device cuda"] MODEL... [-- FLAG...]

Runs `compare` on every model with the flags of each side and prints a Markdown table. For the dense model
and each preset and pattern it shows the perplexities and their difference for the first seed, for the
mean over all seeds, and the root mean square of the differences of single runs, which is the noise of
one run (docs/research/precision.md, "Noise"). Finished cells are saved in --work. Flags after -- go to
both sides, such as --threads 1.
"""
import json
import math
import pathlib
import shlex
import statistics
import subprocess
import sys

import model_options


def perplexities(options, model, side, flags):
    """(preset, pattern, seed) -> perplexity, with the dense model as (None, None, None)"""
    folder = pathlib.Path(options.work) / pathlib.Path(model).resolve().name / side
    folder.mkdir(parents=True, exist_ok=True)
    command = [options.program, "compare", model, "--calibration", options.calibration, "--text", options.text, "--methods",
               "fista", "--presets", options.presets, "--patterns", options.patterns, "--seeds", options.seeds, "--samples",
               str(options.samples), "--sequence-length", str(options.length), "--work", str(folder), "--json",
               *shlex.split(flags), *options.flags]
    print(shlex.join(command), file=sys.stderr, flush=True)
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["rows"]
    dense = {(None, None, None): row["perplexity"] for row in rows if row["method"] == "dense"}
    return dense | {(row["preset"], row["pattern"], row["seed"]): row["perplexity"] for row in rows if row["method"] != "dense"}


def apart(one, other):
    return 100 * abs(other - one) / one


def compare_model(options, model):
    """Prints the rows of a model."""
    name = pathlib.Path(model).resolve().name
    one = perplexities(options, model, "one", options.one)
    other = perplexities(options, model, "other", options.other)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    key = (None, None, None)
    print(f"| {name} dense | {one[key]:.4f} | {other[key]:.4f} | {apart(one[key], other[key]):.3f}% | | | |", flush=True)
    for preset in options.presets.split(","):
        for pattern in options.patterns.split(","):
            left = [one[preset, pattern, seed] for seed in seeds]
            right = [other[preset, pattern, seed] for seed in seeds]
            means = apart(statistics.mean(left), statistics.mean(right))
            single = math.sqrt(statistics.mean(apart(a, b) ** 2 for a, b in zip(left, right)))
            print(f"| {name} `{preset}` {pattern} | {left[0]:.3f} | {right[0]:.3f} | {apart(left[0], right[0]):.2f}% "
                  f"| {statistics.mean(left):.3f}, {statistics.mean(right):.3f} | {means:.2f}% | {single:.2f}% |", flush=True)


def main():
    parser = model_options.parser_for(__doc__, seeds="0,1,2,3", work="parity")
    parser.add_argument("--one", default="--device cpu", metavar="FLAGS", help="flags of the first side [%(default)s]")
    parser.add_argument("--other", default="--device cuda", metavar="FLAGS", help="flags of the second side [%(default)s]")
    parser.add_argument("--presets", default="paper,fast", help="[%(default)s]")
    options = model_options.parse(parser)
    head = ["", f"`{options.one}`", f"`{options.other}`", "apart", "means over the seeds", "apart", "single runs, rms"]
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for model in options.models:
        compare_model(options, model)


main()
