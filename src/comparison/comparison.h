/* SPDX-License-Identifier: Apache-2.0 */
/* comparison.h: prunes and evaluates every cell of a comparison in memory. Only the journal is written. */
#ifndef FP_COMPARISON_COMPARISON_H
#define FP_COMPARISON_COMPARISON_H

#include "comparison/cells.h"
#include <jansson.h>

typedef struct fp_comparison_task {
	const char *model;
	const char *const *calibration;
	int calibration_count; /* 0: the model writes the text */
	const char *text;
	fp_cell_lists lists;
	const char *journal; /* NULL: finished cells are not saved */
	const fp_settings *settings;
} fp_comparison_task;

/* *out: the document of fp_compare(), a new reference. Logs a line per cell. Progress stage: "comparing". */
fp_status fp_comparison_run(json_t **out, fp_context *ctx, const fp_comparison_task *task);

#endif
