#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill_and_resume.py PROGRAM SOURCE_FOLDER [KILLS [RANKS [SEED [CORRECTION]]]]

Kills runs of `prune` with SIGKILL at random moments and resumes them until they finish. Checks that the result always
has the bytes of an undisturbed run, and that no incomplete directory ever has the final name. With several ranks it
kills the launcher and one of the ranks in turn. RANKS such as 1,2,3: each run has one of these numbers of ranks.
CORRECTION: intra, for which ranks divide the layers, or cross, for which they share the windows; best: cross with 2:4
and a fit, so that they share rows too. By default cross for one rank, else intra. A full test is 200 kills.
"""
import filecmp
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def same_tree(a, b):
    names = sorted(p.name for p in a.iterdir())
    return names == sorted(p.name for p in b.iterdir()) and not any(filecmp.cmpfiles(a, b, names, shallow=False)[1:])


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


class Runs:
    def __init__(self, program, source, ranks, correction):
        model = source / "../shared/models/stories260K"
        if not model.is_dir():
            model = source / "models/llama-demo"
        self.command = [
            program, "prune", model, "--calibration", source / "models/calibration.jsonl", "--samples", "8",
            "--sequence-length", "128", "--threads", "1", "--device", "cpu", "--quiet", "--preset",
            "fast", "--set", "refit_steps=40", "--set", "basis_steps=10", "--correction", correction.replace("best", "cross")]
        if correction == "best":
            self.command += ["--preset", "best", "--pattern", "2:4", "--set", "fit_steps=6"]
        # or the program starts itself once more, which only costs time here
        self.environment = dict(os.environ, OMP_NUM_THREADS="1", GOMP_SPINCOUNT="1000")
        self.ranks = ranks

    def start(self, output, *flags):
        ranks = random.choice(self.ranks)
        launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
        return subprocess.Popen([*launcher, *self.command, "-o", output, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                env=self.environment, start_new_session=True)

    def finish(self, run):
        try:
            error = run.communicate(timeout=300)[1].decode()
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            sys.exit("FAILED: a run does not come to its end")
        return run.returncode, error

    def kill(self, run):
        """True when something was there to be killed."""
        victim = run.pid
        if max(self.ranks) > 1 and random.random() < 0.5:
            victim = random.choice(children(run.pid) or [victim])
        if run.poll() is not None:
            return False
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return False
        try:
            run.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # a launcher may miss the end of a rank that died before it had joined
            run.kill()
            run.communicate()
        return True


def resume(runs, output):
    """To the end. Ranks of a launcher that was killed may live on for a moment and hold the lock."""
    for _ in range(100):
        code, error = runs.finish(runs.start(output, "--resume"))
        if code == 0:
            return
        if "another run is writing" not in error:
            sys.exit(f"FAILED: a resume gave exit code {code}: {error}")
        time.sleep(0.1)
    sys.exit("FAILED: the lock stays taken")


def main():
    program, source = sys.argv[1], Path(sys.argv[2])
    kills = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    ranks = [int(word) for word in sys.argv[4].split(",")] if len(sys.argv) > 4 else [1]
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    random.seed(seed)
    correction = sys.argv[6] if len(sys.argv) > 6 else "intra" if max(ranks) > 1 else "cross"
    runs = Runs(program, source, ranks, correction)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        whole, output = work / "whole", work / "output"
        began = time.monotonic()
        code, error = runs.finish(runs.start(whole))
        if code != 0:
            sys.exit(f"FAILED: the undisturbed run: {error}")
        span = time.monotonic() - began
        killed = finished = most = 0
        while killed < kills:
            run = runs.start(output, "--resume")
            time.sleep(random.random() * span * 1.1)
            if runs.kill(run):
                killed += 1
            elif run.poll() != 0:
                error = runs.finish(run)[1]
                if "another run is writing" not in error:
                    sys.exit(f"FAILED: after {killed} kills: exit code {run.returncode}: {error}")
                time.sleep(0.1)
            most = max(most, len(list((work / ".output.partial").glob("layer-*"))))
            if killed and killed % 5 == 0:
                resume(runs, output)
            if output.exists():
                if not same_tree(whole, output):
                    sys.exit(f"FAILED: after {killed} kills the output is not that of an undisturbed run")
                resume(runs, output)  # of a run that is finished: it says so, and nothing changes
                if (work / ".output.partial").exists() or not same_tree(whole, output):
                    sys.exit("FAILED: resuming a finished run changed it or left its working folder")
                finished += 1
                subprocess.run(["rm", "-rf", output], check=True)
        resume(runs, output)
        if not same_tree(whole, output):
            sys.exit("FAILED: the last output is not that of an undisturbed run")
        print(f"{killed} kills, {finished + 1} runs resumed to their end, all with the same bytes; ranks: {ranks}, "
              f"most layers found finished: {most}, seed {seed}")


main()
