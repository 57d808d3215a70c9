/* SPDX-License-Identifier: Apache-2.0 */
/* quantise_operator.h: puts a pruned operator on the grid of the setting `quantize`. */
#ifndef FP_PRUNING_QUANTISE_OPERATOR_H
#define FP_PRUNING_QUANTISE_OPERATOR_H

#include "pruning/prune_layer.h"
#include "solver/grid.h"

/* Before the solve: a method that rounds weights while it prunes needs its grid then, chosen from the dense weights. *grid ←
 * all zero if the setting is "none"; problem->grid ← grid for such a method. */
fp_status fp_quantise_begin(const fp_layer_task *task, fp_dtype dtype, fp_problem *problem, fp_grid *grid);
/* V (F32), the solution of the problem ← weights on the grid, which is chosen for them, unless the method has done that. */
fp_status fp_quantise_end(const fp_layer_task *task, const fp_problem *problem, fp_matrix V, fp_grid *grid);

/* What a fitted layer keeps of the inputs' statistics until its operators are put on their grids. Freed with
 * fp_kept_inputs_free(). */
typedef struct fp_kept_inputs {
	fp_matrix gram[FP_GROUP_COUNT]; /* A of the operators that read every token */
	fp_matrix *energy;              /* diag(A), 1 × n, of experts' operators, by number */
} fp_kept_inputs;
fp_status fp_kept_inputs_new(fp_kept_inputs *out, const fp_layer_task *task);
void fp_kept_inputs_free(fp_kept_inputs *kept, const fp_layer_task *task);
/* Keeps what the operator will need, if the layer is fitted and quantised. */
fp_status fp_keep_inputs(fp_kept_inputs *kept, const fp_layer_task *task, int number, const fp_gram *gram);
/* V, a fitted operator ← weights on *grid, which is all zero; nothing if the setting is "none". */
fp_status fp_quantise_fitted(const fp_layer_task *task, const fp_kept_inputs *kept, const fp_operator_result *result,
							 fp_matrix V, fp_grid *grid);

/* A grid's numbers in the host's memory, noted in *result until fp_fetched_grid_free(). */
typedef struct fp_fetched_grid {
	float *scales, *zeros;
} fp_fetched_grid;
fp_status fp_fetched_grid_fetch(fp_backend *be, const fp_grid *grid, fp_operator_result *result, fp_fetched_grid *out);
void fp_fetched_grid_free(fp_operator_result *result, fp_fetched_grid *numbers);

#endif
