/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bias_update.h: fits an operator's bias together with its weights.
 *
 *     min ‖VX* + c1ᵀ − (T + b1ᵀ)‖²  over c, and V with the pattern
 *
 * With t and m* the means of T and X* over the tokens, the best c for a given V is
 *
 *     c = b + t − Vm*
 *
 * and V then solves the problem of the centred statistics (statistics.h). With the target
 *
 *     T = W(αX + (1 − α)X*) + rE
 *
 * and d and e the means of Δ = X − X* and E = h − h*:
 *
 *     c = b + (W − V)m* + αWd + re
 */
#ifndef FP_PRUNING_BIAS_UPDATE_H
#define FP_PRUNING_BIAS_UPDATE_H

#include "pruning/prune_layer.h"
#include "statistics/statistics.h"

typedef struct fp_bias_target {
	const fp_statistics *statistics; /* centred */
	fp_matrix W;
	double mix, residual; /* α, r */
} fp_bias_target;

/* bias: b on entry, c on return, rounded to the checkpoint's type. Adds the means' part to result's squared error and
 * output, which are those of centred data on entry. */
fp_status fp_update_bias(const fp_layer_task *task, const fp_bias_target *target, fp_matrix V, fp_matrix bias,
						 fp_operator_result *result);

#endif
