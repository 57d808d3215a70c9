/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include <sys/resource.h>
#include <time.h>

enum { PEAK_SIZE = 3072, PEAK_RUNS = 5 };

double bench_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_processor_now(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		   1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

fp_status bench_measure_peak(fp_backend *be, double *peak)
{
	fp_status status = FP_OK;
	fp_matrix m[3] = {{0}};
	for (int i = 0; i < 3; i++) {
		FP_TRY(fp_matrix_new(be, &m[i], PEAK_SIZE, PEAK_SIZE, FP_F32));
		FP_TRY(be->memory->fill(be, m[i], 0.5F));
	}
	for (int i = 0; i < PEAK_RUNS; i++) {
		double start = bench_now();
		FP_TRY(be->linear->gemm(be, 1, m[0], FP_PLAIN, m[1], FP_TRANSPOSED, 0, m[2]));
		FP_TRY(be->memory->synchronize(be));
		double rate = 2.0 * PEAK_SIZE * (double)PEAK_SIZE * PEAK_SIZE / (bench_now() - start);
		if (i > 0 && rate > *peak) /* the first one is a warm-up */
			*peak = rate;
	}

cleanup:
	for (int i = 0; i < 3; i++)
		fp_matrix_free(be, &m[i]);
	return status;
}
