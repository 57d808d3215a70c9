/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: the time of a run by stage, and its peak memory. */
#ifndef FP_BASE_CLOCK_H
#define FP_BASE_CLOCK_H

#include "base/context.h"

/* X(identifier, name in reports) */
#define FP_STAGE_LIST(X)                                                                                               \
	X(FP_STAGE_OTHER, "other")                                                                                         \
	X(FP_STAGE_LOAD, "load")                                                                                           \
	X(FP_STAGE_BASIS, "basis")                                                                                         \
	X(FP_STAGE_FORWARD, "forward")                                                                                     \
	X(FP_STAGE_STATISTICS, "statistics")                                                                               \
	X(FP_STAGE_WARM_START, "warm_start")                                                                               \
	X(FP_STAGE_FISTA, "fista")                                                                                         \
	X(FP_STAGE_ROUNDING, "rounding")                                                                                   \
	X(FP_STAGE_SEARCH, "search")                                                                                       \
	X(FP_STAGE_REFIT, "refit")                                                                                         \
	X(FP_STAGE_FIT, "fit")                                                                                             \
	X(FP_STAGE_ERROR, "error")                                                                                         \
	X(FP_STAGE_OUTPUT, "output")                                                                                       \
	X(FP_STAGE_RANKS, "ranks") /* sending, receiving and waiting for others */

typedef enum fp_stage {
#define FP_STAGE_ENUM(id, name) id,
	FP_STAGE_LIST(FP_STAGE_ENUM)
#undef FP_STAGE_ENUM
		FP_STAGE_COUNT
} fp_stage;

const char *fp_stage_name(fp_stage stage); /* borrowed */

/* Seconds on a monotonic clock. */
double fp_clock(void);

/* Peak resident memory of this process, in bytes. */
int64_t fp_peak_memory(void);

typedef struct fp_stopwatch {
	double seconds[FP_STAGE_COUNT];
	fp_stage current;
	double since; /* 0: not running */
	/* Waits until a device has finished its queued work, so that the work counts for the stage that queued it; NULL:
	 * the device has no queue. */
	void (*wait_for_device)(void *device);
	void *device;
} fp_stopwatch;

/* Time counts for `stage` from now on. Returns the previous stage, so that the caller can go back to it. */
fp_stage fp_stage_enter(fp_context *ctx, fp_stage stage);

#endif
