# SPDX-License-Identifier: Apache-2.0
"""Compares the memory estimate of `prune --dry-run` with the peak of the run.

    memory_estimates.py BUILD [SHAPE:LAYERS:WINDOWS:LENGTH ...]

BUILD is a build directory (build/default). make_checkpoint writes the models. Each one is pruned with
every method, without a limit and with the lowest --memory. The search and the fit run fewer steps than
usual, which does not change their memory.
"""
import json, os, re, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
METHODS = {"wanda": ["--method", "wanda"], "paper": ["--preset", "paper", "--set", "iterations=2"],
           "fast": ["--preset", "fast", "--set", "search_steps=2", "--set", "refit_steps=1"],
           "best": ["--preset", "best", "--set", "search_steps=2", "--set", "refit_steps=1", "--set", "fit_steps=4",
                    "--set", "fit_tokens=4096"]}
SHAPES = ["llama-60m:2:16:256", "opt-125m:2:8:512", "tinyllama-1.1b:1:2:512"]


def run(program, *words):
    result = subprocess.run([program, *words], capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


def least(message):
    """The lowest limit, from the error message for a smaller one."""
    found = re.search(r"takes (\d+)M at least", message)
    return f"{int(found.group(1)) + 1}M" if found else None


def main():
    build = os.path.abspath(sys.argv[1])
    program = os.path.join(build, "fistapruner")
    tokenizer = os.path.join(HERE, "..", "models", "llama-demo")
    print("| shape, layers, windows | method | limit | expected | peak | expected / peak |\n| --- | --- | --- | --- | --- | --- |")
    for spec in sys.argv[2:] or SHAPES:
        shape, layers, windows, length = spec.split(":")
        with tempfile.TemporaryDirectory() as folder:
            model, text = os.path.join(folder, "model"), os.path.join(folder, "text.jsonl")
            code, _, message = run(os.path.join(build, "benchmarks", "make_checkpoint"), shape, "--output", model, "--layers",
                                   layers, "--dtype", "bf16", "--tokenizer", tokenizer)
            if code != 0:
                sys.exit(message)
            with open(os.path.join(HERE, "..", "models", "calibration.jsonl")) as source, open(text, "w") as target:
                target.write(source.read() * 8)
            for name, words in METHODS.items():
                common = ["prune", model, "--calibration", text, "--samples", windows, "--sequence-length", length, "--threads", "1",
                          "--device", "cpu", "--json", "--quiet", *words, "-o", os.path.join(folder, "out")]
                limits = [[], ["--memory", least(run(program, *common, "--dry-run", "--memory", "1M")[2])]]
                for limit in limits:
                    expected = json.loads(run(program, *common, *limit, "--dry-run")[1])["memory_bytes"]
                    code, output, message = run(program, *common, *limit)
                    if code != 0:
                        sys.exit(message)
                    peak = json.loads(output)["peak_memory_bytes"]
                    subprocess.run(["rm", "-rf", os.path.join(folder, "out")], check=True)
                    print(f"| {shape}, {layers}, {windows} × {length} | {name} | {limit[1] if limit else 'none'} | "
                          f"{expected / 2**20:.0f} MiB | {peak / 2**20:.0f} MiB | {expected / peak:.2f} |", flush=True)


if __name__ == "__main__":
    main()
