/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cells.h: which prunes a comparison makes: methods × presets × corrections × patterns × sample counts × seeds, from
 * lists or from a recipe, each with its settings resolved.
 */
#ifndef FP_COMPARISON_CELLS_H
#define FP_COMPARISON_CELLS_H

#include "base/settings.h"

/* Comma-separated lists; NULL: what the recipe says, and where it says nothing the one value of the settings. */
typedef struct fp_cell_lists {
	const char *recipe; /* NULL: "main" */
	const char *methods, *presets, *corrections, *patterns, *samples, *seeds;
} fp_cell_lists;

typedef struct fp_cell {
	fp_settings settings; /* resolved for the model's family */
	bool has_presets;     /* its preset and correction mean something */
} fp_cell;

/* In the order in which they are run: those with the same calibration windows side by side. The caller frees *out with
 * fp_free(). A wrong word in a list is FP_ERROR_USAGE, before anything has been run. */
fp_status fp_cells_plan(fp_cell **out, int64_t *count, fp_context *ctx, const fp_cell_lists *lists,
						const fp_settings *settings, const char *family);

#endif
