/* SPDX-License-Identifier: Apache-2.0 */
/* comparison.h: every cell of a comparison pruned and evaluated on one open model, nothing written but the journal. */
#ifndef FP_COMPARISON_COMPARISON_H
#define FP_COMPARISON_COMPARISON_H

#include "comparison/cells.h"
#include <jansson.h>

typedef struct fp_comparison_task {
	const char *model;
	const char *const *calibration;
	int calibration_count;
	const char *text;
	fp_cell_lists lists;
	const char *journal; /* NULL: finished cells are not kept */
	const fp_settings *settings;
} fp_comparison_task;

/* *out: the document of fp_compare(), a new reference. Log: a line per cell. Progress stage: "comparing". */
fp_status fp_comparison_run(json_t **out, fp_context *ctx, const fp_comparison_task *task);

#endif
