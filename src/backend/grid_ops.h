/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_ops.h: quantised weights: grids, rounding to them, and coordinate descent on them (solver/grid_descent.c).
 * backend.h has the conventions, tensor/grid_format.h those of grids.
 */
#ifndef FP_BACKEND_GRID_OPS_H
#define FP_BACKEND_GRID_OPS_H

#include "backend/matrix.h"
#include "tensor/grid_format.h"

/* The grid of m × n weights. Its groups divide a row evenly: entry (i, j) has the scale (i, j / group) with
 * group = n / scale.cols. */
typedef struct fp_grid {
	const fp_grid_format *format; /* NULL: weights are not quantised */
	fp_dtype dtype;               /* of the checkpoint's weights and scales */
	fp_matrix scale;              /* m × groups: F32, numbers of that type */
	fp_matrix zero;               /* m × groups: the zero points; absent: the format is symmetric */
} fp_grid;

/* Required. A block is a range of columns within one group, at most FP_GRID_BLOCK of them, and its grid has one column. */
enum { FP_GRID_BLOCK = 64 };
typedef struct fp_grid_operations {
	/* grid->scale and zero ← for each group the scale whose rounding errors have the smallest Σ weight[j]·error², of
	 * `count` candidates: 1, 1 − step, 1 − 2·step … times the one with which the entry of the largest magnitude just
	 * fits. Among equals the first. weight is 1 × n, not negative. */
	fp_status (*fit)(fp_backend *be, fp_matrix weight, int count, float step, fp_matrix V, const fp_grid *grid);
	/* V ← the nearest weights on the grid; zeros stay +0.0; V may be X, and V may have a weight type of its own */
	fp_status (*round)(fp_backend *be, const fp_grid *grid, fp_matrix X, fp_matrix V);
	/* One pass of coordinate descent over a block, from its first column to its last, each row on its own:
	 *     v' = the nearest weight on the grid to v − g[j]/A[j,j]
	 *     D[:,j] = v' − v
	 *     V[:,j] ← v'
	 *     g ← g + D[:,j]·A[j,:]
	 * for entries that are not zero in X and whose A[j,j] is positive; D is 0 for others. g starts as G, the half gradient
	 * in the block's columns, which is left as it is: G ← G + D A brings it up to date, in all columns. A is the block's
	 * square part of the Gram matrix. */
	fp_status (*descend)(fp_backend *be, const fp_grid *grid, fp_matrix A, fp_matrix X, fp_matrix G, fp_matrix V,
						 fp_matrix D);
	/* One step on the scales of a group (grid with one column; as many columns of weights as the group has). With
	 * p = ⟨v, G⟩ and q = ⟨v, P⟩ of a row, where P = V A for the group's square part of A:
	 *     t = −p/q
	 *     s' = s·(1 + t), in the grid's type
	 *     D = v' − v for the same codes with the scale s'
	 * where that lowers the error, 2pt + qt² < 0; the other rows stay. */
	fp_status (*rescale)(fp_backend *be, const fp_grid *grid, fp_matrix P, fp_matrix G, fp_matrix V, fp_matrix D);
} fp_grid_operations;

/* For backends: true when the grid's groups divide V's rows. */
static inline bool fp_grid_fits(const fp_grid *grid, fp_matrix V)
{
	bool zeros = !fp_matrix_is_absent(grid->zero);
	return grid->format && grid->scale.rows == V.rows && grid->scale.cols > 0 && V.cols % grid->scale.cols == 0 &&
		   zeros != grid->format->symmetric &&
		   (!zeros || (grid->zero.rows == V.rows && grid->zero.cols == grid->scale.cols));
}

#endif
