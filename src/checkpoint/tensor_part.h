/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_part.h: matrices that a checkpoint stores within other tensors: q, k and v as rows of one tensor, one after the
 * other or head by head, one of a stack of matrices, or a matrix with its inputs as rows. The rest of the program sees them as tensors of their own;
 * here they are taken from the stored bytes and put back.
 */
#ifndef FP_CHECKPOINT_TENSOR_PART_H
#define FP_CHECKPOINT_TENSOR_PART_H

#include "checkpoint/checkpoint.h"

/* Where a part lies, as in fp_tensor_info. */
typedef struct fp_part_place {
	int64_t matrix; /* of a stack, which has rank 3 */
	int64_t rows, first, run, step;
	bool transposed;
} fp_part_place;

/* *out ← the part of `whole` (of rank 1 for a bias, 2, or 3). Its name is the caller's. */
void fp_tensor_part(fp_tensor_info *out, const fp_tensor_info *whole, const char *name, const fp_part_place *place);
/* The entry of `whole` that is entry i of the part. */
int64_t fp_tensor_part_entry(const fp_tensor_info *part, int64_t i);
/* Whether its bytes lie in `whole` one after the other, from *offset on. */
bool fp_tensor_part_is_contiguous(const fp_tensor_info *part, int64_t *offset);
/* bytes ← the part's, from those of `whole`. */
void fp_tensor_part_gather(const fp_tensor_info *part, const void *whole, void *bytes);
/* The same in the other direction; the other bytes of `whole` stay. */
void fp_tensor_part_scatter(const fp_tensor_info *part, const void *bytes, void *whole);

#endif
