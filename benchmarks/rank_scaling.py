# SPDX-License-Identifier: Apache-2.0
"""Times a prune on different numbers of ranks with one thread each.

    rank_scaling.py PROGRAM [RANKS ...]

Makes a checkpoint of LLaMA-60m's shape with four layers (make_checkpoint beside PROGRAM) and prunes it to 2:4 with
`best`. Checks that all runs give the same bytes. Environment: FP_MPIRUN is the launcher with its flags ("mpirun
--allow-run-as-root --oversubscribe"), FP_PRUNE the flags of `prune`, FP_MODEL and FP_TEXT another model and text, FP_CPUS
the processor of each rank ("0,2,4,6"), where the system does not tell which ones share a core.

Two columns say what could be had. By processor time: the most that the processor time of the busiest rank allows, whatever
else the machine does. By processors: the most that the machine allows, for ranks wait for the slowest: as many runs of
another method, each on its own, are started at once, and the slowest of them is compared with one that runs alone.
"""
import hashlib, json, os, shlex, shutil, subprocess, sys, tempfile, time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ALONE = "--method magnitude --pattern 2:4 --samples 32 --sequence-length 512 --device cpu"
PRUNE = "--preset best --pattern 2:4 --samples 32 --sequence-length 512 --device cpu"
# runs the program, on its own processor if there is a list, and writes its processor time into the folder
TIMED = """import os, resource, subprocess, sys
processors = os.environ.get("FP_CPUS")
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
if processors:
    os.sched_setaffinity(0, {int(processors.split(",")[int(rank)])})
code = subprocess.run(sys.argv[2:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(os.path.join(sys.argv[1], rank), "w").write(str(used.ru_utime + used.ru_stime))
sys.exit(code)
"""


def make_model(program, folder):
    tool = os.path.join(os.path.dirname(program), "benchmarks", "make_checkpoint")
    model = os.path.join(folder, "model")
    subprocess.run([tool, "llama-60m", "--layers", "4", "--tokenizer", os.path.join(SOURCE, "models", "llama-demo"),
                    "--output", model], check=True, stdout=subprocess.DEVNULL)
    return model


def slowest(program, model, text, count, folder):
    """Seconds of the slowest of so many runs at the same time, which know nothing of each other."""
    outs = [os.path.join(folder, f"alone{i}") for i in range(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started = time.time()
    runs = [subprocess.Popen([program, "prune", model, "-o", out, "--calibration", text, "--threads", "1", "--quiet",
                              *shlex.split(ALONE)], stdout=subprocess.DEVNULL, env=environment) for out in outs]
    if any([run.wait() != 0 for run in runs]):
        sys.exit("a run on its own failed")
    seconds = time.time() - started
    for out in outs:
        shutil.rmtree(out)
    return seconds


def prune(program, model, text, ranks, folder):
    """Seconds, processor seconds of the busiest rank, digest, and the stages of rank 0."""
    launcher = shlex.split(os.environ.get("FP_MPIRUN", "mpirun --bind-to none" if "FP_CPUS" in os.environ else
                                          "mpirun --bind-to core"))
    flags = shlex.split(os.environ.get("FP_PRUNE", PRUNE))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    out, times = os.path.join(folder, "out"), os.path.join(folder, "times")
    os.mkdir(times)
    words = [] if ranks == 1 else [*launcher, "-n", str(ranks)]
    started = time.time()
    done = subprocess.run([*words, sys.executable, "-c", TIMED, times, program, "prune", model, "-o", out, "--calibration",
                           text, "--threads", "1", "--json", "--quiet", *flags], capture_output=True, text=True,
                          env=environment)
    seconds = time.time() - started
    if done.returncode != 0:
        sys.exit(f"{ranks} ranks: {done.stderr}")
    busiest = max(float(open(os.path.join(times, name)).read()) for name in os.listdir(times))
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    shutil.rmtree(out)
    shutil.rmtree(times)
    return seconds, busiest, digest, json.loads(done.stdout)["stages"]


def main():
    program = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp()
    try:
        model = os.environ.get("FP_MODEL") or make_model(program, folder)
        text = os.environ.get("FP_TEXT", os.path.join(SOURCE, "models", "calibration.jsonl"))
        first, alone = None, min(slowest(program, model, text, 1, folder) for _ in range(2))  # the first reads the files
        print("| ranks | seconds | speed-up | by processor time | by processors | sending and waiting |")
        print("| --- " * 6 + "|")
        for ranks in map(int, sys.argv[2:] or ["1", "2", "4", "8"]):
            seconds, busiest, digest, stages = prune(program, model, text, ranks, folder)
            limit = ranks * alone / slowest(program, model, text, ranks, folder)
            first = first or (seconds * ranks, busiest * ranks, digest)
            if digest != first[2]:
                sys.exit(f"{ranks} ranks give different bytes")
            print(f"| {ranks} | {seconds:.1f} | {first[0] / seconds:.2f} | {first[1] / busiest:.2f} | "
                  f"{limit:.2f} | {stages['ranks']:.1f} |", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
