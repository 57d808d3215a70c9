#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune when reads and writes fail, the disk is full, memory runs out, or the model's file is
# truncated: it ends with a message and an exit code, leaves nothing under the final name, and a
# resumed run gives the bytes of an undisturbed one. The same holds for faults in a resumed run.
# FP_FAULT_POINTS says how many of the reads, and of the writes, fail in turn (default: 4).
points=${FP_FAULT_POINTS:-4}
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export CUDA_VISIBLE_DEVICES= # `device auto` tries a GPU, which fails, and takes the CPU: no message may speak of that
injector=$(dirname "$program")/tests/libfp_faults.so
model=$source/models/llama-demo
text=$source/models/calibration.jsonl
preload=
fault=FP_FAIL=none

prune() { # prune FOLDER ARGUMENT...
	folder=$1
	shift
	env "LD_PRELOAD=$preload" "$fault" "$program" prune "$model" -o "$folder" --calibration "$text" --samples 8 \
		--sequence-length 64 --threads 1 --preset fast --set basis_steps=8 --layers 0-2 --quiet "$@" >"$work/out" 2>"$work/err" </dev/null
}

# prune_with FAULT FOLDER ARGUMENT...: with the fault injector; FAULT is one of its variables with a value
prune_with() {
	fault=$1
	preload=$injector
	shift
	prune "$@"
	code=$?
	preload=
	fault=FP_FAIL=none
	return $code
}

# check_failed FAULT CODE FOLDER: the run says which file or operation failed and why, and a resume gives the whole.
check_failed() {
	case $1 in *READ*) reason="Input/output error" ;; *) reason="No space left on device" ;; esac
	[ "$2" -eq 1 ] || [ "$2" -eq 3 ] || complain "$1: exit code $2"
	grep -q "^fistapruner: .*: .*$reason" "$work/err" || complain "$1: the message does not say what failed"
	grep -q "driver\|device '" "$work/err" && complain "$1: the message speaks of a GPU"
	if [ -e "$3" ]; then # only the sync after the last rename has failed
		diff -r whole "$3" >/dev/null || complain "$1: what stands under the final name is not whole"
	fi
	prune "$3" --resume || complain "$1: the resume fails"
	diff -r whole "$3" >/dev/null || complain "$1: the resume gives other bytes"
	rm -rf "$3"
}

# inject KIND TOTAL POINTS BEGUN ARGUMENT...: lets POINTS of TOTAL reads or writes fail, each in a run of its own that starts with
# a copy of the working folder BEGUN, if there is one. Adds the number of runs that failed to `failed`.
inject() {
	kind=$1 total=$2 step=$(($2 / $3 + 1)) begun=$4
	shift 4
	number=1
	while [ "$number" -le "$total" ]; do
		rm -rf faulty .faulty.partial
		[ -z "$begun" ] || cp -a "$begun" .faulty.partial
		prune_with "FP_FAIL_$kind=$number" faulty "$@"
		code=$?
		if [ $code -ne 0 ]; then
			[ -z "$begun" ] || [ -e faulty ] || [ -e .faulty.partial/layer-00001 ] ||
				complain "$kind $number: finished layers are lost"
			check_failed "$kind $number" $code faulty
			failed=$((failed + 1))
		else
			diff -r whole faulty >/dev/null || complain "$kind $number: had no effect, but other bytes"
		fi
		number=$((number + step))
	done
}

# count ARGUMENT...: sets `reads` and `writes` to those of a run
count() {
	prune_with "FP_FAIL_COUNT=$work/count" counted "$@" || complain "the injector disturbs a run"
	diff -r whole counted >/dev/null || complain "a counted run gives other bytes"
	read -r reads writes <"$work/count"
	[ "$reads" -gt 10 ] && [ "$writes" -gt 20 ] || complain "the injector sees too little: $reads reads, $writes writes"
	rm -rf counted
}

! sanitized || skip "a sanitized build runs neither with the fault injector nor with little address space"
prune whole || complain "the undisturbed run"

if part input_output; then
	failed=0
	count
	inject READ "$reads" "$points" ""
	inject WRITE "$writes" "$points" ""
	[ $failed -ge "$points" ] || complain "only $failed faults made a run fail"

	# A run with two finished layers, which each of the following runs resumes.
	prune_with FP_FAIL_RENAME=layer-00002 begun && complain "a record that cannot be put in place does not matter"
	[ -e .begun.partial/layer-00001 ] || complain "the finished layers are not kept"
	cp -a .begun.partial .counted.partial
	failed=0
	count --resume
	inject READ "$reads" $((2 * points)) .begun.partial --resume
	inject WRITE "$writes" $((2 * points)) .begun.partial --resume
	[ $failed -ge $((2 * points)) ] || complain "only $failed faults made a resumed run fail"
	rm -rf .begun.partial
	finish
fi

# A disk that fills up: before the run, and after each layer.
if part full_disk; then
	mkdir disk
	mount -t tmpfs -o size=24m fistapruner-test disk 2>/dev/null || skip "mounting a tmpfs is not permitted"
	trap 'umount "$work/material/disk" 2>/dev/null; rm -rf "$work"' EXIT
	prune whole-32 --samples 32 || complain "the undisturbed run"
	for layer in none 0 1 2; do
		rm -rf disk/* disk/.[!.]*
		[ $layer = none ] && dd if=/dev/zero of=disk/filler bs=64k >/dev/null 2>&1
		prune disk/full --samples 32 &
		child=$!
		while [ $layer != none ] && kill -0 $child 2>/dev/null && [ ! -e "disk/.full.partial/layer-0000$layer" ]; do sleep 0.01; done
		[ $layer = none ] || dd if=/dev/zero of=disk/filler bs=4k >/dev/null 2>&1
		wait $child
		code=$?
		rm -f disk/filler
		if [ $code -ne 0 ]; then
			[ $code -eq 1 ] || complain "a full disk gives exit code $code"
			[ -e disk/full ] && complain "a full disk: something under the final name"
		fi
		prune disk/full --samples 32 --resume || complain "a full disk ($layer): the resumed run fails"
		diff whole-32/model.safetensors disk/full/model.safetensors >/dev/null || complain "a full disk ($layer): other bytes"
	done
	umount disk
	finish
fi

# A model's file that is truncated while it is read.
cp -r "$model" cut
model=cut
prune whole-cut --samples 32 || complain "the undisturbed run of a copy"
"$program" prune cut -o broken --calibration "$text" --samples 32 --sequence-length 64 --threads 1 \
	--preset fast --set basis_steps=8 --layers 0-2 --quiet >"$work/out" 2>"$work/err" &
child=$!
while kill -0 $child 2>/dev/null && [ ! -e .broken.partial/layer-00000 ]; do sleep 0.01; done
cp -p cut/model.safetensors kept.safetensors
truncate -s 4096 cut/model.safetensors
wait $child
code=$?
[ $code -eq 1 ] && grep -q "cut short" "$work/err" || complain "a file that was cut short gives exit code $code"
cat kept.safetensors >cut/model.safetensors
touch -r kept.safetensors cut/model.safetensors
prune broken --samples 32 --resume || complain "the resume after a cut file"
diff whole-cut/model.safetensors broken/model.safetensors >/dev/null || complain "a cut file: the resume gives other bytes"
model=$source/models/llama-demo

# More and more address space: a message about memory or a run that works, never a crash.
for limit in 100000 170000 200000 240000 300000 340000 360000 400000 500000; do # OpenBLAS does not start with the first two
	(
		ulimit -v $limit
		prune starved --resume
	)
	code=$?
	if [ $code -eq 0 ]; then
		diff -r whole starved >/dev/null || complain "ulimit -v $limit: other bytes"
		break
	fi
	[ $code -eq 4 ] && grep -q "memory" "$work/err" || complain "ulimit -v $limit: exit code $code"
	[ -e starved ] && complain "ulimit -v $limit: left something under the final name"
done
finish
