/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: what a run costs: seconds, each belonging to exactly one stage, and memory. */
#ifndef FP_BASE_CLOCK_H
#define FP_BASE_CLOCK_H

#include "base/context.h"

/* X(identifier, name in reports) */
#define FP_STAGE_LIST(X)                                                                                               \
	X(FP_STAGE_OTHER, "other")                                                                                         \
	X(FP_STAGE_LOAD, "load")                                                                                           \
	X(FP_STAGE_FORWARD, "forward")                                                                                     \
	X(FP_STAGE_STATISTICS, "statistics")                                                                               \
	X(FP_STAGE_WARM_START, "warm_start")                                                                               \
	X(FP_STAGE_FISTA, "fista")                                                                                         \
	X(FP_STAGE_ROUNDING, "rounding")                                                                                   \
	X(FP_STAGE_SEARCH, "search")                                                                                       \
	X(FP_STAGE_REFIT, "refit")                                                                                         \
	X(FP_STAGE_FIT, "fit")                                                                                             \
	X(FP_STAGE_ERROR, "error")                                                                                         \
	X(FP_STAGE_OUTPUT, "output")

typedef enum fp_stage {
#define FP_STAGE_ENUM(id, name) id,
	FP_STAGE_LIST(FP_STAGE_ENUM)
#undef FP_STAGE_ENUM
		FP_STAGE_COUNT
} fp_stage;

const char *fp_stage_name(fp_stage stage); /* borrowed */

/* Seconds on a clock that never goes back. */
double fp_clock(void);

/* The most memory this process has had so far, in bytes. */
int64_t fp_peak_memory(void);

typedef struct fp_stopwatch {
	double seconds[FP_STAGE_COUNT];
	fp_stage current;
	double since; /* 0: not running */
	/* Waits for work that was started and not waited for, so that it counts where it was started; NULL: there is none
	 */
	void (*settle)(void *data);
	void *settle_data;
} fp_stopwatch;

/* From now on time counts for `stage`; returns the stage it counted for before, to go back to. */
fp_stage fp_stage_enter(fp_context *ctx, fp_stage stage);

#endif
