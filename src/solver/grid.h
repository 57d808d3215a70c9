/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid.h: puts the weights of one operator on a grid (backend/grid_ops.h). Quantised weights are ordinary floats that lie
 * on the grid; a pruned weight is 0, which every grid has.
 */
#ifndef FP_SOLVER_GRID_H
#define FP_SOLVER_GRID_H

#include "solver/problem.h"

/* A grid for m × n weights, n > 0, without numbers yet. Freed with fp_grid_free(). */
fp_status fp_grid_new(fp_grid *out, fp_backend *be, const fp_grid_format *format, fp_dtype dtype, int64_t rows,
					  int64_t cols);
void fp_grid_free(fp_backend *be, fp_grid *grid); /* all zero is allowed */

/* The two quantisers. Both choose the grid's scales and put V, which has the problem's pattern, on the grid; pruned weights
 * stay 0. */

/* The scale of a group is the one with which its largest weight just fits; every weight is rounded to the nearest. */
fp_status fp_quantise_nearest(fp_backend *be, fp_matrix V, const fp_grid *grid);
/* Lowers the problem's error by coordinate descent on weights and scales (grid_descent.c). */
fp_status fp_quantise_by_descent(const fp_problem *problem, const fp_settings *settings, fp_matrix V,
								 const fp_grid *grid);
/* Floats that the latter holds besides what a solve does. */
double fp_quantise_floats(int64_t rows, int64_t cols);

#endif
