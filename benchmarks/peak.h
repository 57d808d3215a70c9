/* SPDX-License-Identifier: Apache-2.0 */
/* peak.h: the clock of the benchmarks, and what the machine can do at best: the yardstick that every share is taken of.
 */
#ifndef FP_BENCHMARKS_PEAK_H
#define FP_BENCHMARKS_PEAK_H

#include "backend/backend.h"

/* Seconds on a clock that only goes forward. */
double bench_now(void);

/* FLOP/s of the fastest of a few large single-precision products on this backend. Raises *peak, so that it may be
 * called again at the end of a run: the machine may have been busy the first time. */
fp_status bench_measure_peak(fp_backend *be, double *peak);

#endif
