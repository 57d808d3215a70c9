/* SPDX-License-Identifier: Apache-2.0 */
/* layer_line.h: logs one line for a finished layer: its error, λ and fit, and the time left; and one for experts that few
 * tokens reach. */
#ifndef FP_RUN_LAYER_LINE_H
#define FP_RUN_LAYER_LINE_H

#include "run/prune_model.h"

/* layers: of the model. seconds: for this layer. left: estimated seconds for the remaining layers. */
void fp_log_layer(fp_context *ctx, const fp_prune_result *result, int64_t layer, int64_t layers, double seconds,
				  double left);

/* Experts of all layers whose operators few tokens reached. */
typedef struct fp_expert_counts {
	int64_t experts; /* that were pruned on a text */
	int64_t few;     /* of them, those with a stronger ridge, or pruned by the sizes of their weights */
	int64_t none;    /* of these, those that no token reached */
} fp_expert_counts;
fp_expert_counts fp_count_experts(const fp_prune_result *result);
/* Warns if there are such experts. */
void fp_log_experts(fp_context *ctx, const fp_prune_result *result);

#endif
