/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_plan.h: estimates the memory of a run and chooses where hidden states are kept (streams.h), so that the run
 * stays within a limit. Smaller batches are the last resort: they change the order of sums and so the last bits.
 */
#ifndef FP_RUN_MEMORY_PLAN_H
#define FP_RUN_MEMORY_PLAN_H

#include "run/prune_model.h"

typedef struct fp_memory_plan {
	fp_streams_plan streams; /* `folder` is not set */
	fp_fisher_room fisher;
	int64_t experts_at_once; /* whose statistics are in memory at the same time; 0: the model has no experts */
	int64_t bytes;           /* at the peak: of the device, or of the process on a CPU */
} fp_memory_plan;

/* The limit is the setting `memory` or, without one, the free memory. sends_streams: hidden states are also sent to
 * another rank. Fails if the setting is too small for any plan. */
fp_status fp_memory_plan_make(fp_memory_plan *out, const fp_prune_task *task, bool sends_streams);

/* For --verbose: logs the peak device memory of each stage since the last call, in one line; nothing on a CPU. */
void fp_memory_log_stages(fp_backend *be, const char *what);

#endif
