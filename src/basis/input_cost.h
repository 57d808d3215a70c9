/* SPDX-License-Identifier: Apache-2.0 */
/*
 * input_cost.h: what the removal of a weight w of input j costs once the other weights of its row have made up for it:
 *
 *     w²h,   1/h = [K]ⱼⱼ,   K = (H + δI)⁻¹,   H = E[xxᵀ]
 *
 * as in the optimal brain surgeon. δ, a share of the mean of H's diagonal, limits what they can make up for.
 */
#ifndef FP_BASIS_INPUT_COST_H
#define FP_BASIS_INPUT_COST_H

#include "model/layer.h"

/* H ← K. The layer is named in messages. */
fp_status fp_input_cost_inverse(fp_backend *be, const fp_layer *layer, fp_matrix H);
/* H ← the upper U with UᵀU = K; zeros below the diagonal */
fp_status fp_input_cost_factor(fp_backend *be, const fp_layer *layer, fp_matrix H);
/* Fails if a factorisation was refused at an input (linear_ops.h); 0: it was not. */
fp_status fp_input_cost_check(fp_context *ctx, const fp_layer *layer, int64_t refused);
/* g ← −2gh² for each number. With g the gradient by h and 1/h = diag(RᵀKR), KR diag(g) is then the gradient by R. */
fp_status fp_input_cost_gradient(fp_backend *be, fp_matrix h, fp_matrix g);
/* x ← 1/x for each number of a vector */
fp_status fp_input_cost_reciprocal(fp_backend *be, fp_matrix x);

#endif
