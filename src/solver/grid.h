/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid.h: quantised weights of one operator: the numbers that its weights may have, and rounding to the nearest of them.
 * Quantised weights are ordinary floats that lie on the grid (tensor/grid_format.h); a pruned weight is 0, which every
 * grid has.
 */
#ifndef FP_SOLVER_GRID_H
#define FP_SOLVER_GRID_H

#include "backend/backend.h"
#include "tensor/grid_format.h"

/* The grid of m × n weights. Entry (i, j) has the scale (i, j / group) with group = n / scale.cols. */
typedef struct fp_grid {
	const fp_grid_format *format;
	fp_dtype dtype;  /* of the checkpoint's weights and scales */
	fp_matrix scale; /* m × groups: F32, numbers of that type */
	fp_matrix zero;  /* m × groups: the zero points; absent: the format is symmetric */
} fp_grid;

/* *out ← a grid for V (F32, m × n, n > 0) whose scales fit the entries that are not zero. Freed with fp_grid_free(). */
fp_status fp_grid_fit(fp_grid *out, fp_backend *be, const fp_grid_format *format, fp_dtype dtype, fp_matrix V);
void fp_grid_free(fp_backend *be, fp_grid *grid); /* all zero is allowed */
/* V ← the nearest weights on the grid. Zeros stay zeros. */
fp_status fp_grid_round(const fp_grid *grid, fp_backend *be, fp_matrix V);

#endif
