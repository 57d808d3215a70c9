/* SPDX-License-Identifier: Apache-2.0 */
/* quantise_operator.h: puts a pruned operator on the grid of the setting `quantize`. */
#ifndef FP_PRUNING_QUANTISE_OPERATOR_H
#define FP_PRUNING_QUANTISE_OPERATOR_H

#include "pruning/prune_layer.h"
#include "solver/grid.h"

/* What a quantised operator is delivered with. All zero: not quantised. */
typedef struct fp_quantised_operator {
	fp_grid grid;
	float *scales, *zeros; /* the grid's, on the host */
} fp_quantised_operator;

/* V (F32) ← weights on its grid, whose numbers are noted in *result until fp_quantised_free(); nothing if the setting is
 * "none". */
fp_status fp_quantise_operator(const fp_layer_task *task, fp_matrix V, fp_operator_result *result,
							   fp_quantised_operator *out);
void fp_quantised_free(fp_backend *be, fp_operator_result *result, fp_quantised_operator *quantised);

#endif
