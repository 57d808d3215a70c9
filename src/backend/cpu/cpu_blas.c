/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_blas.c: which of OpenBLAS's kernels suits this processor when OpenBLAS does not know it. */
#include "backend/cpu/cpu_blas.h"

#include "backend/cpu/cpu_simd.h"
#include <fistapruner/fistapruner.h>
#include <stdlib.h>
#include <string.h>

/*
 * OpenBLAS recognises processors by their model numbers. One that is newer than the library gets "Prescott", the kernel
 * for SSE3, which is about ten times slower than the processor allows. CPUID says what the processor can do, and both
 * names below have been in OpenBLAS for years.
 */
const char *fp_cpu_blas_kernel(const char *chosen, const char *loops)
{
	if (strcmp(chosen, "Prescott") != 0)
		return NULL;
	if (strcmp(loops, "avx512") == 0)
		return "SkylakeX";
	return strcmp(loops, "avx2") == 0 ? "Haswell" : NULL;
}

const char *fp_openblas_kernel(void)
{
	if (getenv("OPENBLAS_CORETYPE"))
		return NULL;
	return fp_cpu_blas_kernel(openblas_get_corename(), fp_cpu_loops_best()->name);
}
