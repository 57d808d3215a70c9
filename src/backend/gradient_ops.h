/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradient_ops.h: gradients for the layer fit. Optional, with FP_CAN_DIFFERENTIATE. backend.h has the conventions.
 *
 * Each computes a loss's gradient with respect to an operation's inputs from that with respect to its output. A linear
 * operator needs gemm() only, a rotation is undone by rotate() with negated sines, a bias's gradient is column_sums().
 */
#ifndef FP_BACKEND_GRADIENT_OPS_H
#define FP_BACKEND_GRADIENT_OPS_H

#include "backend/transformer_ops.h"

/* One step of Adam. The moments start at zero; `step` counts from 1 and corrects for that. */
typedef struct fp_adam {
	float rate, beta1, beta2, epsilon;
	int64_t step;
	bool keep_zeros;  /* entries of W that are zero stay +0.0, bit for bit, and their moments are left alone */
	fp_matrix narrow; /* BF16, ← W rounded, with FP_CAN_MULTIPLY_NARROW; absent: not wanted */
} fp_adam;

typedef struct fp_gradient_operations {
	/* dX ← gradient of norm() by X; dX may be dY */
	fp_status (*norm_backward)(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, float epsilon,
							   fp_matrix dY, fp_matrix dX);
	/* logits ← the gradient of Σ cross_entropy() by them: softmax(logits[i,:]) less one at targets[i]; a target of −1
	 * gives a row of zeros; targets on the host */
	fp_status (*cross_entropy_backward)(fp_backend *be, const int32_t *targets, fp_matrix logits);
	/* dX ← dY∘f'(X); dX may be dY or X; narrow is allowed, BF16 is allowed. The derivative of FP_RELU at 0 is 0. */
	fp_status (*activate_backward)(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix dY, fp_matrix dX);
	/* dG ← dY∘U∘f'(G), dU ← dY∘f(G); dG may be G and dU may be U; narrow is allowed for both, BF16 is allowed */
	fp_status (*activate_gated_backward)(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix dY,
										 fp_matrix dG, fp_matrix dU);
	/* dX ← dX∘(1 − (Y/cap)²), the gradient of soft_cap() with its result Y */
	fp_status (*soft_cap_backward)(fp_backend *be, float cap, fp_matrix Y, fp_matrix dX);
	/* Gradients of attention() without a past, with its output `out`; never holds more than one block of scores. BF16 is
	 * allowed for the five operands, and for the three results. */
	fp_status (*attention_backward)(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									fp_matrix V, fp_matrix out, fp_matrix dout, fp_matrix dQ, fp_matrix dK,
									fp_matrix dV);
	/* out[j] ← Σᵢ X[i,j] + β out[j]; out is 1×cols; X may be BF16 where gemm()'s operands may */
	fp_status (*column_sums)(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
	/* out[j] ← Σᵢ X[i,j]² + β out[j]; the same types */
	fp_status (*column_squares)(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
	/* D ← scale·(Y − T); unless NULL, *squares ← ‖Y − T‖²; D may be Y. Where gemm()'s operands may be BF16, all three
	 * may, or D alone. */
	fp_status (*difference)(fp_backend *be, float scale, fp_matrix Y, fp_matrix T, fp_matrix D, double *squares);
	/* M ← β₁M + (1 − β₁)G
	 * V ← β₂V + (1 − β₂)G²
	 * W ← W − rate·M̂/(√V̂ + ε)    with M̂ = M/(1 − β₁ᵗ), V̂ = V/(1 − β₂ᵗ)
	 * M may be BF16 where gemm()'s operands may, and is then rounded after it was used. */
	fp_status (*adam_step)(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W);
} fp_gradient_operations;

#endif
