/* SPDX-License-Identifier: Apache-2.0 */
/* omp.h: stands in for OpenMP's header where the compiler of the fuzz build has none: one thread. */
#ifndef FP_FUZZ_OMP_H
#define FP_FUZZ_OMP_H

static inline int omp_get_max_threads(void)
{
	return 1;
}

static inline int omp_get_thread_limit(void)
{
	return 1;
}

static inline int omp_get_num_procs(void)
{
	return 1;
}

static inline int omp_get_num_threads(void)
{
	return 1;
}

static inline int omp_get_thread_num(void)
{
	return 0;
}

static inline int omp_in_parallel(void)
{
	return 0;
}

static inline void omp_set_num_threads(int threads)
{
	(void)threads;
}

static inline double omp_get_wtime(void)
{
	return 0;
}

#endif
