#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity and KL divergence of several methods, bases, patterns and models in one table.

    methods.py --calibration FILE --text FILE [--methods LIST] [--presets LIST] [--basis LIST] MODEL... [-- FLAG...]

Runs `compare` on every model and prints a Markdown table: a row for each method or preset and each basis, a
column for each model and pattern, perplexity and KL divergence from the dense model as means over the seeds.
--tsv FILE writes every run as a line too. Needs only the program, the models and this folder. Finished cells
are saved in --work: the same command continues a stopped run. --jobs N has N of the `compare` at work at once,
which pays for small models on a GPU; then their seconds mean little. Flags after -- go to `compare`, such as
--threads 1. Wanda, SparseGPT, ALPS and the presets in each basis, on a GPU:

    methods.py --methods wanda,sparsegpt,alps --basis none,local,full --device cuda --tsv bases.tsv ...
"""
import concurrent.futures
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

import model_options

COLUMNS = ["model", "method", "basis", "kind", "pattern", "samples", "seed", "perplexity", "kl", "kl_stderr", "top1", "seconds"]


def rows_of(options, model, basis):
    """The rows of `compare`, with the model's name and, as "method", the preset where there is one. "basis" is the one
    that was asked for ("": none was), "kind" the one that was taken."""
    name = pathlib.Path(model).resolve().name
    folder = pathlib.Path(options.work) / name / basis
    folder.mkdir(parents=True, exist_ok=True)
    command = [options.program, "compare", model, "--calibration", options.calibration, "--text", options.text, "--methods",
               options.methods + ",fista", "--presets", options.presets, "--patterns", options.patterns, "--seeds",
               options.seeds, "--samples", str(options.samples), "--sequence-length", str(options.length), "--work",
               str(folder), "--device", options.device, "--json", *(["--basis", basis] if basis else []), *options.flags]
    print(shlex.join(command), file=sys.stderr, flush=True)
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["rows"]
    for row in rows:
        row.update(model=name, method=row["preset"] or row["method"], basis=basis, kind=row.get("basis", {}).get("kind", "none"))
    return rows


def figure(rows, key, digits):
    values = [row[key] for row in rows if row[key] is not None]  # null: a ruined model
    return f"{statistics.mean(values):.{digits}f}" if values else "–"


def print_table(options, rows):
    models = list(dict.fromkeys(row["model"] for row in rows))
    columns = [(model, pattern) for model in models for pattern in options.patterns.split(",")]
    print("| perplexity / KL | basis | " + " | ".join(" ".join(column) for column in columns) + " |")
    print("|" + " --- |" * (2 + len(columns)))
    dense = {row["model"]: row["perplexity"] for row in rows if row["method"] == "dense"}
    print("| dense | | " + " | ".join(f"{dense[model]:.3f}" for model, _ in columns) + " |")
    for name in options.methods.split(",") + options.presets.split(","):
        for basis in options.basis.split(","):
            own = [row for row in rows if row["method"] == name and row["basis"] == basis]
            cells = [[row for row in own if (row["model"], row["pattern"]) == column] for column in columns]
            print(f"| {name} | {basis} | " +
                  " | ".join(f"{figure(cell, 'perplexity', 3)} / {figure(cell, 'kl', 4)}" for cell in cells) + " |", flush=True)


def main():
    parser = model_options.parser_for(__doc__, seeds="0", work="methods")
    parser.add_argument("--methods", default="magnitude,wanda,sparsegpt,admm,alps", help="[%(default)s]")
    parser.add_argument("--presets", default="paper,fast,best", help="presets of the method fista [%(default)s]")
    parser.add_argument("--basis", default="", help="bases, such as none,local,full [each preset's own]")
    parser.add_argument("--device", default="auto", help="[%(default)s]")
    parser.add_argument("--jobs", default=1, type=int, help="models and bases at a time [%(default)s]")
    parser.add_argument("--tsv", help="file for every run: " + ", ".join(COLUMNS))
    options = model_options.parse(parser)
    bases = options.basis.split(",")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        parts = [(i, pool.submit(rows_of, options, model, basis)) for model in options.models for i, basis in enumerate(bases)]
        rows = [row for i, part in parts for row in part.result()[i > 0:]]  # the dense model once
    if options.tsv:
        lines = ["\t".join(str(row.get(key, "")) for key in COLUMNS) for row in rows]
        pathlib.Path(options.tsv).write_text("\n".join(["\t".join(COLUMNS), *lines]) + "\n")
    print_table(options, rows)


main()
