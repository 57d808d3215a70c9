/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_plan.h: how much memory a prune takes, and what of the hidden states is kept there so that it stays within a
 * limit. What costs no bits is given up first (streams.h); smaller batches, which sum in another order, come last.
 */
#ifndef FP_RUN_MEMORY_PLAN_H
#define FP_RUN_MEMORY_PLAN_H

#include "run/prune_model.h"

typedef struct fp_memory_plan {
	fp_streams_plan streams; /* without a folder */
	int64_t bytes;           /* at the peak: the device's, or the process's where that is the same */
} fp_memory_plan;

/* By the setting `memory`, or else by what is free now. onward: the streams are also sent to another rank. Fails when
 * the setting is too small for any way. */
fp_status fp_memory_plan_make(fp_memory_plan *out, const fp_prune_task *task, bool onward);

/* For --verbose: the most device memory that each stage held since this was called last, in one line; nothing where the
 * memory is the host's. */
void fp_memory_log_stages(fp_backend *be, const char *what);

#endif
