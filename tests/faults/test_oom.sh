#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune killed because it takes too much memory: it leaves nothing under the final name, and
# --resume gives the bytes of an undisturbed run. The test kills it at a resident size; in the part
# control_group the kernel does. For that part FP_TEST_CGROUP names a folder of the memory hierarchy
# in which groups may be created, such as /sys/fs/cgroup (version 2, memory in its
# cgroup.subtree_control) or /sys/fs/cgroup/memory (version 1). Without it the part is skipped,
# because a test must not leave its control group unless somebody asks for it.
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
! part control_group || [ -n "${FP_TEST_CGROUP-}" ] || skip "FP_TEST_CGROUP names no control group"
! sanitized || skip "a sanitized build takes memory that the program does not count"
group=
trap '[ -z "$group" ] || rmdir "$group"; rm -rf "$work"' EXIT

# words FOLDER ARGUMENT...: the command line, one word a line, that prunes three layers into FOLDER.
words() {
	folder=$1
	shift
	set -- "$program" prune "$source/models/llama-demo" -o "$folder" --calibration "$source/models/calibration.jsonl" --samples 64 \
		--sequence-length 128 --threads 1 --device cpu --preset fast --set basis_steps=8 --set search_steps=8 --layers 0-2 --quiet --json "$@"
	printf '%s\n' "$@"
}

resume() { # resume WHAT FOLDER
	[ -e "$2" ] && complain "$1: left something under the final name"
	words "$2" --resume | xargs -d '\n' env >"$work/out" 2>"$work/err" || complain "$1: the resume fails"
	diff whole/model.safetensors "$2/model.safetensors" >/dev/null || complain "$1: the resume gives other bytes"
	rm -rf "$2"
}

words whole | xargs -d '\n' env >"$work/out" 2>"$work/err" || complain "the undisturbed run"
peak=$(python3 -c "import json; print(json.load(open('$work/out'))['peak_memory_bytes'] // 1024)")

if part control_group; then
	group=$FP_TEST_CGROUP/fistapruner-test-$$
	mkdir "$group" || exit 1
	if [ -e "$group/memory.max" ]; then
		limit=$group/memory.max events=$group/memory.events swap=$group/memory.swap.max
	else
		limit=$group/memory.limit_in_bytes events=$group/memory.oom_control swap=$group/memory.swappiness
	fi
	[ -w "$limit" ] || {
		echo "$group has no limit of memory: is the controller enabled there?"
		exit 1
	}
	[ -e "$swap" ] && echo 0 >"$swap"

	# grouped KIB FOLDER ARGUMENT...: in the group, with this limit
	grouped() {
		echo $(($1 * 1024)) >"$limit"
		shift
		# shellcheck disable=SC2016 # for the shell that is started
		words "$@" | xargs -d '\n' sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" >"$work/out" 2>"$work/err"
	}

	# a program that assumes more memory than the group has is killed
	grouped $((peak * 80 / 100)) crowded --memory 64G
	grep -q "oom_kill [1-9]" "$events" || complain "the kernel has killed nothing: $(tr '\n' ' ' <"$events")"
	resume "killed by the kernel" crowded
	# one that keeps to a limit is not, and without --memory the limit is the group's
	grouped $((peak * 80 / 100)) modest --memory $((peak * 75 / 100))K || complain "a run that keeps to --memory fails"
	grouped $((peak * 80 / 100)) aware || complain "a run that sees the group's limit fails"
	finish
fi

# watched KIB FOLDER: runs until the resident size passes the limit; 137 when it was killed.
watched() {
	python3 - "$1" "$work" "$(words "$2")" <<'EOF'
import subprocess, sys, time
limit, work, words = int(sys.argv[1]), sys.argv[2], sys.argv[3].split("\n")
with open(work + "/out", "w") as out, open(work + "/err", "w") as err:
    child = subprocess.Popen(words, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        try:
            with open(f"/proc/{child.pid}/statm") as file:
                resident = int(file.read().split()[1]) * 4
        except (OSError, IndexError):
            continue
        if resident > limit:
            child.kill()
        time.sleep(0.0005)
sys.exit(137 if child.returncode == -9 else child.returncode)
EOF
}

killed=0
for share in 50 70 80 90 95; do
	watched $((peak * share / 100)) grown
	code=$?
	[ $code -eq 137 ] && killed=$((killed + 1))
	[ $code -eq 137 ] || [ $code -eq 0 ] || complain "$share%: exit code $code"
	[ $code -eq 0 ] && rm -rf grown
	[ $code -eq 137 ] && resume "killed at $share% of the peak" grown
done
[ $killed -ge 3 ] || complain "only $killed runs were killed"
echo "$killed runs killed at a resident size"
finish
