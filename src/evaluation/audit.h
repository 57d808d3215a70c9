/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.h: counts zeros and checks patterns in a checkpoint's tensors, from the bytes of the file. It
 * shares no code with the pruner, so that it can verify the pruner's output independently.
 */
#ifndef FP_EVALUATION_AUDIT_H
#define FP_EVALUATION_AUDIT_H

#include "checkpoint/checkpoint.h"

typedef struct fp_audit_rule {
	/* Unstructured: at least ⌊sparsity·entries⌋ zeros in the matrix, or ⌊sparsity·columns⌋ in each row
	 * (Wanda). */
	double sparsity;
	/* N:M: at most N non-zeros in M consecutive entries of a row, ⌈N·M'/M⌉ in a last group of M' < M.
	 * group = 0: unstructured. */
	int64_t kept, group;
} fp_audit_rule;

typedef struct fp_audit_result {
	bool counted;                  /* false: zeros of this element type are not counted (FP8, integers, …) */
	int64_t zeros, negative_zeros; /* zeros of either sign; of these, −0 */
	int64_t not_finite;            /* infinities and NaNs */
	int64_t violations; /* groups with too many non-zeros; unstructured: 1 if there are too few zeros; no rule: 0 */
} fp_audit_result;

/* Reads the tensor once, in pieces, and releases its pages. rule may be NULL. The rows of a tensor run
 * along its last dimension, whatever its rank. A part of a stored tensor is read row by row of its own. */
fp_status fp_audit_tensor(fp_audit_result *out, fp_context *ctx, const fp_checkpoint *checkpoint,
						  const fp_tensor_info *tensor, const fp_audit_rule *rule);

#endif
