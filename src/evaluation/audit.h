/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.h: counts zeros in a checkpoint's tensors and checks patterns, from the bytes of the file. Shares no code with
 * the pruner: it is the witness that the pruner did what it says.
 */
#ifndef FP_EVALUATION_AUDIT_H
#define FP_EVALUATION_AUDIT_H

#include "checkpoint/checkpoint.h"

typedef struct fp_audit_rule {
	double sparsity; /* unstructured: at least ⌊sparsity·entries⌋ zeros in the matrix, or ⌊sparsity·columns⌋ in each
						of its rows, as Wanda counts */
	int64_t kept, group; /* N:M: at most N non-zeros in M consecutive entries of a row, ⌈N·M'/M⌉ in a last group of M'.
							group == 0: unstructured */
} fp_audit_rule;

typedef struct fp_audit_result {
	bool counted;                  /* false: an element type that has no zeros to count (FP8, integers, …) */
	int64_t zeros, negative_zeros; /* zeros of either sign; those with the sign bit */
	int64_t not_finite;            /* infinities and NaNs */
	int64_t violations; /* groups that keep too many; unstructured: 1 where the zeros are too few. 0 without a rule */
} fp_audit_result;

/* Reads the tensor once, in pieces, and forgets its pages. rule may be NULL. A tensor of rank other than 2 counts as
 * rows of its last dimension. */
fp_status fp_audit_tensor(fp_audit_result *out, fp_context *ctx, const fp_checkpoint *checkpoint,
						  const fp_tensor_info *tensor, const fp_audit_rule *rule);

#endif
