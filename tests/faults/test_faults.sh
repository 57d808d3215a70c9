#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune when reads and writes fail, the disk is full, memory runs out, or the model's file is
# truncated: it ends with a message and an exit code, leaves nothing under the final name, and a
# resumed run gives the bytes of an undisturbed one. FP_FAULT_POINTS says how many of the reads, and
# of the writes, fail in turn (default: 4).
points=${FP_FAULT_POINTS:-4}
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
injector=$(dirname "$program")/tests/libfp_faults.so
model=$source/models/llama-demo
text=$source/models/calibration.jsonl

prune() { # prune FOLDER ARGUMENT...
	folder=$1
	shift
	"$program" prune "$model" -o "$folder" --calibration "$text" --samples 8 --sequence-length 64 --threads 1 --device cpu \
		--preset fast --layers 0-2 --quiet "$@" >"$work/out" 2>"$work/err" </dev/null
}

# recover WHAT FOLDER: the failed run left no such folder, and a resumed run gives the bytes of an
# undisturbed one.
recover() {
	[ -e "$2" ] && complain "$1: left something under the final name"
	[ -s "$work/err" ] || complain "$1: no message"
	prune "$2" --resume || complain "$1: the resume fails"
	diff -r whole "$2" >/dev/null || complain "$1: the resume gives other bytes"
	rm -rf "$2"
}
! sanitized || skip "a sanitized build runs neither with the fault injector nor with little address space"
prune whole || complain "the undisturbed run"

if part input_output; then
	LD_PRELOAD=$injector FP_FAIL_COUNT=$work/count prune counted || complain "the injector disturbs"
	read -r reads writes <"$work/count"
	[ "$reads" -gt 3 ] && [ "$writes" -gt 20 ] || complain "the injector sees too little: $reads reads, $writes writes"
	failed=0
	for kind in READ WRITE; do
		[ $kind = READ ] && total=$reads || total=$writes
		number=1
		while [ "$number" -le "$total" ]; do
			rm -rf faulty .faulty.partial
			export LD_PRELOAD="$injector" "FP_FAIL_$kind=$number"
			prune faulty
			code=$?
			unset LD_PRELOAD FP_FAIL_READ FP_FAIL_WRITE
			if [ $code -ne 0 ] && [ -e faulty ]; then # the sync after the last rename failed: the output is complete
				diff -r whole faulty >/dev/null || complain "$kind $number: not whole under the final name"
				rm -rf faulty
			elif [ $code -ne 0 ]; then
				[ $code -eq 1 ] || [ $code -eq 3 ] || complain "$kind $number: exit code $code"
				recover "$kind $number" faulty
				failed=$((failed + 1))
			fi
			number=$((number + total / points + 1))
		done
	done
	[ $failed -ge "$points" ] || complain "only $failed faults made a run fail"
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
"$program" prune cut -o broken --calibration "$text" --samples 32 --sequence-length 64 --threads 1 --device cpu \
	--preset fast --layers 0-2 --quiet >"$work/out" 2>"$work/err" &
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
