#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexities of several methods, patterns and models in one table.

    methods.py --calibration FILE --text FILE [--methods LIST] [--presets LIST] MODEL... [-- FLAG...]

Runs `compare` on every model and prints a Markdown table: a row for each method or preset, a column for
each model and pattern, and means over the seeds. Finished cells are saved in --work. Flags after -- go to
`compare`, such as --threads 1.
"""
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

import model_options


def rows_of(options, model):
    """(method or preset, pattern) -> perplexities of all seeds; the dense model is ("dense", None)"""
    folder = pathlib.Path(options.work) / pathlib.Path(model).resolve().name
    folder.mkdir(parents=True, exist_ok=True)
    command = [options.program, "compare", model, "--calibration", options.calibration, "--text", options.text, "--methods",
               options.methods + ",fista", "--presets", options.presets, "--patterns", options.patterns, "--seeds",
               options.seeds, "--samples", str(options.samples), "--sequence-length", str(options.length), "--work",
               str(folder), "--json", *options.flags]
    print(shlex.join(command), file=sys.stderr, flush=True)
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["rows"]
    cells = {}
    for row in rows:
        cells.setdefault((row["preset"] or row["method"], row["pattern"]), []).append(row["perplexity"])
    return cells


def main():
    parser = model_options.parser_for(__doc__, seeds="0", work="methods")
    parser.add_argument("--methods", default="magnitude,wanda,sparsegpt,admm,alps", help="[%(default)s]")
    parser.add_argument("--presets", default="paper,fast,best", help="presets of the method fista [%(default)s]")
    options = model_options.parse(parser)
    patterns = options.patterns.split(",")
    models = {pathlib.Path(model).resolve().name: rows_of(options, model) for model in options.models}
    print("| | " + " | ".join(f"{name} {pattern}" for name in models for pattern in patterns) + " |")
    print("|" + " --- |" * (1 + len(models) * len(patterns)))
    print("| dense | " + " | ".join(f"{cells['dense', None][0]:.3f}" for cells in models.values() for _ in patterns) + " |")
    for name in options.methods.split(",") + options.presets.split(","):
        means = [statistics.mean(cells[name, pattern]) for cells in models.values() for pattern in patterns]
        print(f"| {name} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |", flush=True)


main()
