/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bias_update.h: the bias of an operator that has one, fitted with the weights.
 *
 *     min ‖VX* + c1ᵀ − (T + b1ᵀ)‖²  over V with the pattern and c
 * For any V the best c is b + T̄ − Vm*, with T̄ and m* the means of T and X* over the tokens; what remains is the problem
 * of V on centred statistics (statistics.h). For T = W(αX + (1 − α)X*) + rρ and d, ρ̄ the means of Δ and ρ:
 *     c = b + (W − V)m* + αWd + rρ̄
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

/* bias: b on entry, c as the checkpoint will hold it on return. result's error and output, centred until now, get what
 * belongs to the means. */
fp_status fp_update_bias(const fp_layer_task *task, const fp_bias_target *target, fp_matrix V, fp_matrix bias,
						 fp_operator_result *result);

#endif
