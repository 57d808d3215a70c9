/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_part.h: matrices that a checkpoint stores within other tensors: q, k and v as rows of one tensor, one after the
 * other or head by head, or a matrix with its inputs as rows. The rest of the program sees them as tensors of their own;
 * here they are taken from the stored bytes and put back.
 */
#ifndef FP_CHECKPOINT_TENSOR_PART_H
#define FP_CHECKPOINT_TENSOR_PART_H

#include "checkpoint/checkpoint.h"

/* *out ← the part of `whole` (of rank 2, or 1 for a bias) with `rows` rows. Its name is the caller's. */
void fp_tensor_part(fp_tensor_info *out, const fp_tensor_info *whole, const char *name, int64_t rows, int64_t first,
					int64_t run, int64_t step, bool transposed);
/* Whether its bytes lie in `whole` one after the other, from *offset on. */
bool fp_tensor_part_is_contiguous(const fp_tensor_info *part, int64_t *offset);
/* bytes ← the part's, from those of `whole`. */
void fp_tensor_part_gather(const fp_tensor_info *part, const void *whole, void *bytes);
/* The same in the other direction; the other bytes of `whole` stay. */
void fp_tensor_part_scatter(const fp_tensor_info *part, const void *bytes, void *whole);

#endif
