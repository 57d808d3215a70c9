#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Removes each ingredient of the preset `fast` from `fast`, and adds each one to `paper`.

    ablation.py --calibration FILE --text FILE [--jobs 16] [--threads 1] [--work DIR] MODEL... [-- FLAG...]

Prints a Markdown table of perplexities, mean ± sample standard deviation over the seeds. Each seed
other than 0 draws different calibration windows (docs/protocols.md). A process runs one variant of one
model for one seed and all patterns; --jobs processes run at a time. Results are saved in --work, so that
an interrupted run continues. --only N/M runs every M-th job, so that several machines can share a
directory; 1/1 then prints the table. Flags after -- go to every command, such as --device cpu.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

import model_options

# title, preset, assignments
REMOVED = [
    ("fast", {}),
    ("– unit columns", {"scaling": 0}),
    ("– support search", {"support_search": "none"}),
    ("– support search, convex solve instead", {"support_search": "none", "iterations": 20}),
    ("– refit", {"refit_steps": 0}),
    ("– ridge", {"ridge": 0}),
    ("– residual-aware target", {"residual": 0, "residual_output": 0}),
    ("– cross-layer correction", {"correction": "intra"}),
    ("– mixing", {"mix": 1}),
    ("– importance of rows", {"row_importance": 0}),
    ("– bias update", {"bias_update": 0}),
]
ADDED = [
    ("paper", {}),
    ("+ unit columns", {"scaling": 1}),
    ("+ unit columns, λ in units of the target", {"scaling": 1, "lambda_search": "geometric", "lambda_low": "1e-6",
                                             "lambda_high": 1}),
    ("+ support search", {"support_search": "admm", "search_steps": 300}),
    ("+ refit", {"refit_steps": 20}),
    ("+ ridge", {"ridge": 0.04}),
    ("+ residual-aware target", {"residual": 1, "residual_output": 0.5}),
    ("+ cross-layer correction", {"correction": "cross"}),
    ("+ cross-layer correction, mixing", {"correction": "cross", "mix": 0.7}),
    ("+ importance of rows", {"row_importance": 1}),
    ("+ bias update", {"bias_update": 1}),
]
VARIANTS = [(title, "fast", changes) for title, changes in REMOVED] + [(title, "paper", changes) for title, changes in ADDED]


def slug(preset, changes):
    return "-".join([preset, *(f"{name}={value}" for name, value in changes.items())])


def has_biases(options, model):
    done = subprocess.run([options.program, "inspect", model, "--json", "--quiet"], stdout=subprocess.PIPE, text=True, check=True)
    return any("bias_of" in tensor for tensor in json.loads(done.stdout)["tensors"])


def borrow_dense(options, folder):
    """Copies the dense model's row from another job's journal. Its key prevents misuse."""
    journal = folder / "compare.jsonl"
    if journal.exists():
        return
    for other in sorted(folder.parent.glob("*/compare.jsonl")):
        for line in other.read_text(encoding="utf-8").splitlines(keepends=True):
            if '"dense"' in line and line.endswith("\n"):
                journal.write_text(line, encoding="utf-8")
                return


def run_job(options, model, preset, changes, seed):
    """pattern -> perplexity; None if the process failed"""
    folder = pathlib.Path(options.work) / pathlib.Path(model).resolve().name / f"{slug(preset, changes)}-seed{seed}"
    command = [options.program, "compare", model, "--calibration", options.calibration, "--text", options.text, "--methods",
               "fista", "--presets", preset, "--patterns", options.patterns, "--samples", str(options.samples),
               "--sequence-length", str(options.length), "--seed", str(seed), "--threads", str(options.threads), "--work",
               str(folder), "--json", *options.flags]
    for name, value in changes.items():
        command += ["--set", f"{name}={value}"]
    result = folder / "result.json"
    line = shlex.join(command)
    if not (result.exists() and json.loads(result.read_text(encoding="utf-8"))["command"] == line):
        folder.mkdir(parents=True, exist_ok=True)
        borrow_dense(options, folder)
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)} if options.threads else None
        with open(folder / "log.txt", "w", encoding="utf-8") as log:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False, env=environment)
        if done.returncode != 0:
            print(f"exit code {done.returncode}, see {folder / 'log.txt'}: {line}", file=sys.stderr, flush=True)
            return None
        unfinished = result.with_suffix(".part")
        unfinished.write_text(json.dumps({"command": line, "rows": json.loads(done.stdout)["rows"]}), encoding="utf-8")
        unfinished.replace(result)
    rows = json.loads(result.read_text(encoding="utf-8"))["rows"]
    return {row["pattern"]: row["perplexity"] for row in rows}


def cell(figures, wanted):
    figures = [figure for figure in figures if figure is not None]
    if not figures:
        return "–"
    mean = f"{statistics.mean(figures):.3f}"
    if len(figures) > 1:
        mean += f" ± {statistics.stdev(figures):.3f}"
    return mean if len(figures) == wanted else f"{mean} ({len(figures)} of {wanted})"


def print_table(options, found, models):
    patterns = options.patterns.split(",")
    names = {model: pathlib.Path(model).resolve().name for model in models}
    head = ["", *(f"{names[model]} {pattern}" for model in models for pattern in patterns)]
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    dense = {model: next((run[None] for (of, _, _), run in found.items() if of == model and run), None) for model in models}
    print("| dense | " + " | ".join(cell([dense[model]], 1) for model in models for _ in patterns) + " |")
    for title, preset, changes in VARIANTS:
        cells = [f"`{title}`" if title in ("fast", "paper") else title]
        for model in models:
            runs = [found.get((model, title, seed)) or {} for seed in options.seeds]
            cells += [cell([run.get(pattern) for run in runs], len(options.seeds)) for pattern in patterns]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = model_options.parser_for(__doc__, seeds="1,2,3", work="ablation")
    parser.add_argument("--jobs", default=1, type=int, help="processes at a time")
    parser.add_argument("--threads", default=1, type=int, help="per process")
    parser.add_argument("--only", default="1/1", metavar="N/M", help="run every M-th job, starting with the N-th")
    options = model_options.parse(parser)
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    shard, shards = map(int, options.only.split("/"))
    jobs = []
    for model in options.models:
        biases = has_biases(options, model)
        jobs += [(model, title, preset, changes, seed) for seed in options.seeds for title, preset, changes in VARIANTS
                 if biases or "bias_update" not in changes]  # without biases it changes nothing
    jobs = jobs[shard - 1::shards]
    found = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(run_job, options, model, preset, changes, seed): (model, title, seed)
                   for model, title, preset, changes, seed in jobs}
        for count, future in enumerate(concurrent.futures.as_completed(running), 1):
            found[running[future]] = future.result()
            model, title, seed = running[future]
            print(f"{count} of {len(jobs)}: {model}, {title}, seed {seed}: {found[running[future]]}", file=sys.stderr,
                  flush=True)
    print_table(options, found, options.models)
    return 1 if any(run is None for run in found.values()) else 0


sys.exit(main())
