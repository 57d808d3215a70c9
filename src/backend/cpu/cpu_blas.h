/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_blas.h: how many threads OpenBLAS uses, and which of its kernels.
 *
 * The build requires the OpenMP form of OpenBLAS (cmake/Dependencies.cmake says why). It shares its thread pool with
 * our own loops, uses as many threads as OpenMP would give the calling thread, and only the calling thread inside a
 * parallel region.
 */
#ifndef FP_BACKEND_CPU_BLAS_H
#define FP_BACKEND_CPU_BLAS_H

#include "base/context.h"
#include <cblas.h>
#include <omp.h>
#include <stdbool.h>

/* Sets the number of threads for the next BLAS calls of this thread. Returns the number before, which is the setting of
 * the library's caller; pass it to fp_cpu_blas_end(). */
static inline int fp_cpu_blas_begin(int threads)
{
	int before = omp_get_max_threads();
	if (before != threads)
		omp_set_num_threads(threads);
	return before;
}

static inline void fp_cpu_blas_end(int before)
{
	if (before != omp_get_max_threads())
		omp_set_num_threads(before);
}

/* Makes the library ready before the first product, and warns if its build or its kernel is slow. */
fp_status fp_cpu_blas_start(fp_context *ctx);
/*
 * Whole strips of so many rows of A have the bits in AB that they have in the product of all rows. OpenBLAS's kernels for
 * AVX2 compute 12 rows at once and add in another order where fewer are left.
 */
enum { FP_CPU_BLAS_STRIP_AVX512 = 16, FP_CPU_BLAS_STRIP = 24 };
/* True where strips have those bits only if one thread computes a call: with all kernels but those for AVX-512. */
bool fp_cpu_blas_counts_rows(void);
/* out ← "OpenBLAS SkylakeX" */
void fp_cpu_blas_describe(char *out, size_t size);

/* The kernel that OpenBLAS should use in place of the one it has chosen, or NULL. `loops` is the name of our own loops
 * for this processor (cpu_simd.h). */
const char *fp_cpu_blas_kernel(const char *chosen, const char *loops);

#endif
