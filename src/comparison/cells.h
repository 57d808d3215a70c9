/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cells.h: the cells of a comparison: methods × presets × corrections × patterns × sample counts × seeds,
 * from lists or a recipe, each with its resolved settings.
 */
#ifndef FP_COMPARISON_CELLS_H
#define FP_COMPARISON_CELLS_H

#include "base/settings.h"

/* Comma-separated lists. NULL: the recipe's list, or else the value in the settings. */
typedef struct fp_cell_lists {
	const char *recipe; /* NULL: "main" */
	const char *methods, *presets, *corrections, *patterns, *samples, *seeds;
} fp_cell_lists;

typedef struct fp_cell {
	fp_settings settings; /* resolved for the model's family */
	bool has_presets;     /* its preset and correction mean something */
} fp_cell;

/* Lists the cells in the order they run in: those with the same calibration windows are adjacent. The
 * caller frees *out with fp_free(). An invalid list entry is FP_ERROR_USAGE. */
fp_status fp_cells_plan(fp_cell **out, int64_t *count, fp_context *ctx, const fp_cell_lists *lists,
						const fp_settings *settings, const char *family);

#endif
