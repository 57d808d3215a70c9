/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_tensor.h: sparse matrices without their zeros, in two forms (docs/packed.md). An entry is zero here if all its
 * bits are: −0.0 is kept.
 */
#ifndef FP_CHECKPOINT_PACKED_TENSOR_H
#define FP_CHECKPOINT_PACKED_TENSOR_H

#include "checkpoint/tensor_coding.h"

typedef struct fp_packed_plan {
	bool packed;         /* false: the matrix stays as it is */
	fp_coding_kind kind; /* FP_CODED_MASK or FP_CODED_TWO_OF_FOUR */
	int64_t stored;      /* entries of the values */
	int64_t guide_bytes; /* of the mask or the positions */
} fp_packed_plan;

/* Whether a tensor may be packed: a matrix of weights, or of 8-bit codes of weights, whose name ends in ".weight". */
bool fp_packed_fits(const fp_tensor_info *tensor);
/* Chooses the form of a matrix from its bytes: the smaller one, but 2:4 unless the mask saves more than 1% of it. */
fp_packed_plan fp_packed_choose(const fp_tensor_info *tensor, const void *bytes);
/* values, guide ← the matrix in that form; they have room for packing->stored entries and packing->guide_bytes. */
fp_status fp_packed_encode(void *values, void *guide, fp_context *ctx, const fp_tensor_info *tensor,
						   const fp_packed_plan *packing, const void *bytes);

/* As fp_tensor_decode(). Fails if the mask or the positions are damaged. */
fp_status fp_packed_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
						   const void *guide);
/* Makes the same checks without decoding, for a reader that uses the parts themselves. */
fp_status fp_packed_check(fp_context *ctx, const fp_tensor_info *tensor, const void *guide);

#endif
