/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_coding.h: tensors that a checkpoint stores in another form than its readers see: fp_checkpoint_read() decodes
 * them. The parts are tensors that are stored as they are, so that fp_checkpoint_data() has their bytes; but the codes of a
 * quantised matrix may be packed.
 */
#ifndef FP_CHECKPOINT_TENSOR_CODING_H
#define FP_CHECKPOINT_TENSOR_CODING_H

#include "checkpoint/checkpoint.h"

typedef enum fp_coding_kind {
	FP_CODED_FP8,         /* values: FP8, of the tensor's shape; guide: scales, one for each block */
	FP_CODED_BYTES,       /* values: I8, of the tensor's shape; guide: scales; zeros: I8, like the scales */
	FP_CODED_WORDS,       /* values: I32 with codes of some bits; guide: scales; zeros: the same along the columns */
	FP_CODED_MASK,        /* values: the entries that are not zero; guide: a bit for each entry (packed_tensor.h) */
	FP_CODED_TWO_OF_FOUR, /* values: two of four entries; guide: their positions */
} fp_coding_kind;

typedef struct fp_tensor_coding {
	fp_coding_kind kind;
	const fp_tensor_info *values, *guide; /* owned by the checkpoint */
	const fp_tensor_info *zeros;          /* zero points of integers; NULL: they are 0 */
	int64_t block[2];                     /* with scales: rows and columns that share one */
	int bits;                             /* of a code in words */
} fp_tensor_coding;

/* bytes ← the decoded tensor, from the bytes of its parts. `tensor` has a coding; zeros is NULL if that has none. */
fp_status fp_tensor_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
						   const void *guide, const void *zeros);

/* *out ← the scales of a coding's guide, from its bytes; each must be finite. The caller frees them. */
fp_status fp_coding_scales(float **out, fp_context *ctx, const fp_tensor_info *guide, const void *bytes);

#endif
