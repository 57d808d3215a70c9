#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On a processor that OpenBLAS does not know the program starts itself again with the kernel that CPUID suggests; a value
# that the user has set is kept.
. "$2/tests/cli/common.sh"
if grep -q '^flags.* avx512f.* avx512vl' /proc/cpuinfo; then
	kernel=SkylakeX
elif grep -q '^flags.* fma .* avx2 ' /proc/cpuinfo; then
	kernel=Haswell
else
	skip "this processor has no AVX2"
fi
unset OPENBLAS_CORETYPE OMP_WAIT_POLICY GOMP_SPINCOUNT
! sanitized || skip "a sanitized build does not run with the library that hides the processor"
LD_PRELOAD=$(dirname "$program")/tests/libfp_unknown_processor.so
[ -e "$LD_PRELOAD" ] || exit 1
export LD_PRELOAD

# expect_kernel NAME: a run says that it uses this kernel, and OpenBLAS is not complained about.
expect_kernel() {
	expect 0 "OpenBLAS $1" prune "$source/models/llama-demo" -o out --calibration "$source/models/calibration.jsonl" \
		--dry-run --device auto --verbose
	grep -q "does not know" "$work/err" && complain "a warning in spite of the kernel $1"
}

expect_kernel $kernel
OMP_WAIT_POLICY=passive
export OMP_WAIT_POLICY # nothing else is left to set
expect_kernel $kernel
OPENBLAS_CORETYPE=Nehalem
export OPENBLAS_CORETYPE
expect_kernel Nehalem
finish
