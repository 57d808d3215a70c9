#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reproduces a table of the paper for a list of models and prints our figures and the published ones.

    reproduce_table.py wikitext2|ptb|c4 --calibration C4_SHARD --text FILE MODEL_DIR... [-- FLAG...]
    reproduce_table.py zero-shot --calibration C4_SHARD --task NAME=FILE... MODEL_DIR... [-- FLAG...]

The directory's name identifies the model (opt-125m, llama-2-7b, Meta-Llama-3-8B, ...) and determines the
window length. A model that is not in the paper uses --length and has no published figures. Flags after --
go to every command, such as --device cuda. Finished cells of the perplexity tables are saved in --work, so
that an interrupted run continues. docs/reproducing.md lists the files to download.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

TITLES = {"dense": "Dense", "sparsegpt": "SparseGPT", "wanda": "Wanda", "paper": "FISTAPruner (paper)",
          "fast": "ADMM search + refit (fast)", "best": "layer reconstruction (best)"}
LINE = "{:<28} {:<27} {:>8} {:>10} {:>10}"


def published():
    rows = {}
    with open(pathlib.Path(__file__).with_name("published_figures.tsv"), encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(("#", "measure")):
                continue
            measure, model, method, pattern, value = line.rstrip("\n").split("\t")
            rows[measure, model, method, None if method == "dense" else pattern] = float(value)
    return rows


def known_name(directory):
    """opt-125m, llama-7b, llama-2-7b, llama-3-8b from variants of a directory's name; else the name itself."""
    name = pathlib.Path(directory).resolve().name.lower()
    size = r"(\d+(?:\.\d+)?[mb])\b"
    if match := re.search(r"opt-" + size, name):
        return "opt-" + match[1]
    if match := re.search(r"llama-?([23])-" + size, name):
        return f"llama-{match[1]}-{match[2]}"
    if match := re.search(r"llama-" + size, name):
        return "llama-" + match[1]
    return name


def window_length(name, given):
    if given:
        return given
    for family, length in (("opt-", 2048), ("llama-2-", 4096), ("llama-3-", 8192), ("llama-", 2048)):
        if name.startswith(family):
            return length
    return 0  # the model's maximum


def run(options, *words):
    command = [options.program, *map(str, words), *options.flags, "--json"]
    print("+", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[1]} {command[2]}: exit code {done.returncode}")
    return json.loads(done.stdout)


def calibration(options, length):
    return ["--calibration", options.calibration, "--sampler", options.sampler, "--samples", options.samples,
            "--seed", options.seed, "--sequence-length", length]


def perplexities(options, directory, length):
    """(method, preset, pattern) -> perplexity"""
    document = run(options, "compare", directory, *calibration(options, length), "--text", options.text, "--protocol",
                   options.table, "--methods", "sparsegpt,wanda,fista", "--presets", options.presets, "--patterns",
                   "50%,2:4", "--work", options.work)
    return {(row["method"], row["preset"], row["pattern"]): row["perplexity"] for row in document["rows"]}


def accuracies(options, directory, length):
    """(method, preset, pattern) -> {task: acc}; pruned models stay in --work"""
    tasks = [word for task in options.task for word in ("--task", task)]
    cells = [("dense", None, None)]
    for pattern in ("50%", "2:4"):
        cells += [(method, None, pattern) for method in ("sparsegpt", "wanda")]
        cells += [("fista", preset, pattern) for preset in options.presets.split(",")]
    found = {}
    for method, preset, pattern in cells:
        model = directory
        if method != "dense":
            name = "-".join(filter(None, (known_name(directory), method, preset, pattern.replace(":", "of").rstrip("%"))))
            model = pathlib.Path(options.work) / name
            if not model.exists():  # a directory that exists is complete
                run(options, "prune", directory, "-o", model, *calibration(options, length), "--method", method,
                    "--pattern", pattern, *(["--preset", preset] if preset else []))
        document = run(options, "eval", model, *tasks, "--limit", options.limit)
        found[method, preset, pattern] = {task["name"]: task["acc"] for task in document["tasks"]}
    return found


def print_lines(options, name, column, values, digits):
    figures = published()
    model = f"{name}:{column}" if column else name
    for (method, preset, pattern), ours in values.items():
        # The published FISTAPruner is the preset paper; the other presets are not in the paper.
        theirs = figures.get((options.table, model, method, pattern)) if preset in (None, "paper") else None
        cells = [model, TITLES[preset or method], pattern or "-"]
        cells += ["-" if number is None else f"{number:.{digits}f}" for number in (theirs, ours)]
        print(LINE.format(*cells), flush=True)


def main():
    words = sys.argv[1:]
    flags = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["wikitext2", "ptb", "c4", "zero-shot"])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--program", default="fistapruner")
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--text")
    parser.add_argument("--task", action="append", default=[])
    parser.add_argument("--presets", default="paper,best")
    parser.add_argument("--sampler", default="c4")
    parser.add_argument("--samples", default=128, type=int)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--length", default=0, type=int, help="tokens per window; 0: as in the paper for this model")
    parser.add_argument("--limit", default=2000, type=int,
                        help="zero-shot: examples per task; the published table uses 2000; 0: all")
    parser.add_argument("--work", default="reproduce")
    options = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    options.flags = flags
    if options.table == "zero-shot" and not options.task:
        parser.error("zero-shot needs --task NAME=FILE")
    if options.table != "zero-shot" and not options.text:
        parser.error(f"{options.table} needs --text FILE")
    pathlib.Path(options.work).mkdir(parents=True, exist_ok=True)
    print(LINE.format("model", "method", "pattern", "published", "ours"))
    for directory in options.models:
        name = known_name(directory)
        length = window_length(name, options.length)
        if options.table != "zero-shot":
            print_lines(options, name, "", perplexities(options, directory, length), 2)
            continue
        found = accuracies(options, directory, length)
        for task in next(iter(found.values())):
            print_lines(options, name, task, {cell: accuracy[task] for cell, accuracy in found.items()}, 4)
        print_lines(options, name, "mean", {cell: sum(a.values()) / len(a) for cell, a in found.items()}, 4)


main()
