#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the time of `prune` grows with the calibration text and with the width of the model: a table and a plot.

    growth.py PROGRAM PLOT.svg --tokenizer DIR --calibration TEXT [--device cuda] [--presets paper,fast,best]
              [--shapes tinyllama-1.1b,llama-2-7b,llama-3-70b] [--windows 32,64,128] [--length 2048] [--layers 1]
              [--flags FLAGS]

Prunes the second shape with each number of windows, and every shape with the most windows, to 2:4. Seconds are those of
the program, with its start. DIR has a tokenizer with a full vocabulary, TEXT enough documents for all windows
(make_checkpoint is expected beside PROGRAM, in benchmarks/). The table goes to standard output.
"""
import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import tempfile
import time

COLOURS = ["#2563eb", "#d97706", "#059669", "#b91c1c"]
PANEL, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 380, 300, 56, 34, 46, 24


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("plot")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--presets", default="paper,fast,best")
    parser.add_argument("--shapes", default="tinyllama-1.1b,llama-2-7b,llama-3-70b")
    parser.add_argument("--windows", default="32,64,128")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--flags", default="--basis none")
    given = parser.parse_args()
    given.presets, given.shapes = given.presets.split(","), given.shapes.split(",")
    given.windows = [int(word) for word in given.windows.split(",")]
    if len(given.shapes) < 2:
        parser.error("--shapes takes two or more shapes of make_checkpoint")
    return given


def make_model(given, folder, shape):
    """The folder of a checkpoint, and the width of its hidden states."""
    tool = os.path.join(os.path.dirname(os.path.abspath(given.program)), "benchmarks", "make_checkpoint")
    model = os.path.join(folder, shape)
    subprocess.run([tool, shape, "--layers", str(given.layers), "--dtype", "bf16", "--tokenizer", given.tokenizer,
                    "--output", model], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        return model, json.load(file)["hidden_size"]


def seconds(given, folder, model, preset, windows):
    output = os.path.join(folder, "pruned")
    command = [given.program, "prune", model, "-o", output, "--preset", preset, "--pattern", "2:4", "--calibration",
               given.calibration, "--samples", str(windows), "--sequence-length", str(given.length), "--device",
               given.device, "--json", "--quiet"]
    if preset != "paper":
        command += shlex.split(given.flags)
    started = time.time()
    done = subprocess.run(command, capture_output=True, text=True)
    took = time.time() - started
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}: {done.stderr.strip()}")
    if json.loads(done.stdout)["calibration_windows"] != windows:
        raise SystemExit(f"{given.calibration}: has fewer than {windows} windows of {given.length} tokens")
    shutil.rmtree(output)
    return took


def measure(given, folder):
    """{preset: [(tokens, seconds)]} of the second shape and {preset: [(width, seconds)]} of all."""
    by_tokens = {preset: [] for preset in given.presets}
    by_width = {preset: [] for preset in given.presets}
    for number, shape in enumerate(given.shapes):
        model, width = make_model(given, folder, shape)
        for preset in given.presets:
            for windows in given.windows if number == 1 else given.windows[-1:]:
                took = seconds(given, folder, model, preset, windows)
                print(f"| {preset} | {shape} | {width} | {windows} × {given.length} | {took:.1f} |", flush=True)
                if number == 1:
                    by_tokens[preset].append((windows * given.length, took))
                if windows == given.windows[-1]:
                    by_width[preset].append((width, took))
        shutil.rmtree(model)
    return by_tokens, by_width


def ticks(low, high):
    """Powers of ten times 1, 2 and 5 within the range, and one beyond it on each side."""
    all_ticks = [digit * 10.0 ** power for power in range(-3, 10) for digit in (1, 2, 5)]
    first = max([i for i, tick in enumerate(all_ticks) if tick <= low], default=0)
    last = min([i for i, tick in enumerate(all_ticks) if tick >= high], default=len(all_ticks) - 1)
    return all_ticks[first:last + 1]


def name_heights(wanted):
    """The heights of the names, at least a line apart."""
    line, heights, above = 15, {}, math.inf
    for name, height in sorted(wanted.items(), key=lambda item: -item[1]):
        heights[name] = above = min(height, above - line)
    return heights


def panel(series, left, title, name_of):
    """One logarithmic plot; `series`: {name: [(x, y)]}. Equal steps on both axes are equal ratios."""
    xs = sorted({x for points in series.values() for x, _ in points})
    levels = ticks(min(y for points in series.values() for _, y in points),
                   max(y for points in series.values() for _, y in points))
    width, height = PANEL - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(value, low, high, length):
        return length * (math.log(value / low) / math.log(high / low) if high > low else 0.5)

    def across(x):
        return left + LEFT + place(x, xs[0], xs[-1], width)

    def down(y):
        return TOP + height - place(y, levels[0], levels[-1], height)

    out = [f'<text x="{left + LEFT}" y="18" font-weight="600">{title}</text>']
    for level in levels:
        out.append(f'<line x1="{left + LEFT}" x2="{left + PANEL - RIGHT}" y1="{down(level):.1f}" y2="{down(level):.1f}" '
                   f'stroke="#888" stroke-opacity=".3"/><text x="{left + LEFT - 6}" y="{down(level) + 4:.1f}" '
                   f'text-anchor="end">{level:g} s</text>')
    for x in xs:
        out.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{name_of(x)}</text>')
    names = name_heights({name: down(points[-1][1]) - 7 for name, points in series.items()})
    for (name, points), colour in zip(series.items(), COLOURS):
        line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        out.append(f'<text x="{across(points[-1][0]):.1f}" y="{names[name]:.1f}" text-anchor="end" '
                   f'fill="{colour}">{name}</text>')
    return "\n".join(out)


def write_plot(given, by_tokens, by_width):
    with open(given.plot, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * PANEL} {HEIGHT}" '
                   'font-family="system-ui, sans-serif" font-size="13" fill="#444">\n')
        file.write('<rect width="100%" height="100%" fill="#fff"/>\n')
        file.write(panel(by_tokens, 0, f"Tokens of the text ({given.shapes[1]})", lambda x: f"{x / 1024:g}K") + "\n")
        file.write(panel(by_width, PANEL, "Width of the hidden states", str) + "\n</svg>\n")


def main():
    given = parse()
    folder = tempfile.mkdtemp(dir=os.environ.get("FP_SCRATCH"))
    print(f"| preset | shape (layers: {given.layers}) | width | tokens | seconds |\n| --- | --- | --- | --- | --- |")
    try:
        write_plot(given, *measure(given, folder))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
