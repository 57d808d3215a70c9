/* SPDX-License-Identifier: Apache-2.0 */
/* peak.h: the benchmarks' clock, and the machine's peak rate, which other rates are compared with. */
#ifndef FP_BENCHMARKS_PEAK_H
#define FP_BENCHMARKS_PEAK_H

#include "backend/backend.h"

/* Seconds on a monotonic clock. */
double bench_now(void);
/* Processor seconds of all threads. */
double bench_processor_now(void);

/* *peak ← the maximum of *peak and the FLOP/s of a few large single-precision products. Call it again at
 * the end of a run, in case the machine was busy the first time. */
fp_status bench_measure_peak(fp_backend *be, double *peak);

#endif
