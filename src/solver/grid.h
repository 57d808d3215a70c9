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
void fp_grid_free(fp_backend *be, fp_grid *grid); /* all zero is allowed; leaves it so */

/* The scale of a group is the one with which its largest entry in V just fits. */
fp_status fp_grid_fit(fp_backend *be, fp_matrix V, const fp_grid *grid);

/* How the settings' method puts weights on a grid. */
typedef enum fp_quantiser {
	FP_QUANTISER_NEAREST, /* fp_grid_fit(), and every weight to the nearest point */
	FP_QUANTISER_DESCENT, /* fp_quantise_by_descent() */
	FP_QUANTISER_OWN,     /* the method itself, while it prunes: problem->grid */
} fp_quantiser;
fp_quantiser fp_quantiser_of(const fp_settings *settings);

/* Chooses the grid's scales and puts V on the grid such that its output changes little: coordinate descent on weights and
 * scales (grid_descent.c). Zeros stay zeros. */
fp_status fp_quantise_by_descent(const fp_gram *gram, const fp_settings *settings, fp_matrix V, const fp_grid *grid);
/* The same with every weight on its own: only the scales are chosen by the inputs' energies, diag(A) (1 × n). */
fp_status fp_quantise_by_energy(fp_backend *be, fp_matrix energy, fp_matrix V, const fp_grid *grid);
/* Floats that descent holds for so many weights. */
double fp_quantise_floats(double entries);

#endif
