# SPDX-License-Identifier: Apache-2.0
"""Times a prune on different numbers of ranks with one thread each.

    rank_scaling.py PROGRAM MODEL TEXT [RANKS ...]

Checks that all runs give the same bytes. The environment variable FP_MPIRUN is the launcher with its
flags ("mpirun --allow-run-as-root --oversubscribe"), FP_PRUNE the flags of `prune`. The last column is the
speed-up modelled from the stages of the run on one rank: with layers divided, or with shared windows, where
everything but forward passes, statistics and fits counts as not divided (docs/multi-node.md).
"""
import hashlib, json, os, shlex, shutil, subprocess, sys, tempfile, time

PRUNE = "--preset fast --correction intra --samples 32 --sequence-length 256 --device cpu"


def shares(layers, forward, prune, ranks):
    """The time of the slowest rank, if ranks have consecutive layers (src/run/layer_shares.h)."""
    low, high = 0.0, (forward + prune) * layers
    for _ in range(60):
        limit, first = (low + high) / 2, 0
        for _ in range(ranks):
            count = 0
            while first < layers and forward * (first + 1) + prune * (count + 1) <= limit:
                first, count = first + 1, count + 1
        low, high = (low, limit) if first == layers else (limit, high)
    return high


def windows(result, seconds, ranks):
    """The time with shared windows. Solves, of which some run at the same time, count as if none did."""
    shared = sum(result["stages"].get(stage, 0) for stage in ("forward", "statistics", "fit"))
    return seconds - shared + shared / min(ranks, 16)


def main():
    program, model, text = sys.argv[1:4]
    launcher = shlex.split(os.environ.get("FP_MPIRUN", "mpirun --bind-to core"))
    flags = shlex.split(os.environ.get("FP_PRUNE", PRUNE))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    base = digest = forward = layer = alone = chained = result = None
    print("| ranks | seconds | speed-up | modelled speed-up |\n| --- | --- | --- | --- |")
    for ranks in map(int, sys.argv[4:] or ["1", "2", "4", "8", "16"]):
        folder = tempfile.mkdtemp()
        out = os.path.join(folder, "out")
        words = [] if ranks == 1 else [*launcher, "-n", str(ranks)]
        started = time.time()
        done = subprocess.run([*words, program, "prune", model, "-o", out, "--calibration", text, "--threads", "1", "--json",
                               "--quiet", *flags], capture_output=True, text=True, env=environment)
        seconds = time.time() - started
        if done.returncode != 0:
            sys.exit(f"{ranks} ranks: {done.stderr}")
        with open(os.path.join(out, "model.safetensors"), "rb") as file:
            now = hashlib.sha256(file.read()).hexdigest()
        if digest and now != digest:
            sys.exit(f"{ranks} ranks give different bytes")
        if base is None:
            result = json.loads(done.stdout)
            layers = len({operator["name"].split(".layers.")[1].split(".")[0] for operator in result["operators"]})
            base, digest = seconds * ranks, now
            forward, layer = result["stages"].get("forward", 0) / 2 / layers, seconds / layers
            expected = alone = seconds
            settings = result["settings"]
            chained = settings["method"] in ("wanda", "sparsegpt", "admm", "alps") or settings["correction"] == "cross"
        else:
            expected = windows(result, alone, ranks) if chained else shares(layers, forward, layer, ranks)
        print(f"| {ranks} | {seconds:.1f} | {base / seconds:.1f} | {base / expected:.1f} |", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
