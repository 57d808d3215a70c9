/* SPDX-License-Identifier: Apache-2.0 */
/*
 * integer_tensors.h: weights as integers with scales, as compressed-tensors stores them:
 *
 *     P.weight          I8 [m, n]                  int-quantized
 *     P.weight_packed   I32 [m, ⌈n·bits/32⌉]       pack-quantized: code + 2^(bits−1), the first in the lowest bits
 *     P.weight_scale    [m, groups], [m] or one entry
 *     P.weight_zero_point   I8 like the scales, or I32 [⌈m·bits/32⌉, groups], packed along the columns
 *     P.weight_shape    [2]: m, n
 *
 * Readers see P.weight in the type of the scales, (code − zero point)·scale rounded to it, and nothing else of these.
 */
#ifndef FP_CHECKPOINT_INTEGER_TENSORS_H
#define FP_CHECKPOINT_INTEGER_TENSORS_H

#include "base/file.h"
#include "checkpoint/quantisation.h"
#include "checkpoint/tensor_coding.h"
#include "checkpoint/tensor_list.h"

#define FP_PACKED_ENDING "_packed"
#define FP_SCALE_ENDING "_scale"
#define FP_SHAPE_ENDING "_shape"
#define FP_ZERO_POINT_ENDING "_zero_point"

/* out ← the tensors that readers see, from the sorted list of those that are stored in `files`, by shard. Codings go to
 * `codings`, which has room for stored->count. `directory` is for messages. */
fp_status fp_integer_present(fp_tensor_list *out, fp_tensor_coding *codings, fp_context *ctx,
							 const fp_tensor_list *stored, const fp_mapping *files, const fp_quantisation *quantisation,
							 const char *directory);
/* As fp_tensor_decode(). Fails if a scale is not finite. */
fp_status fp_integer_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
							const void *scales, const void *zeros);

/* The code at place `index` of a row, or of a column of words that lie `stride` words apart. */
int fp_load_code(const void *words, int64_t index, int bits, int64_t stride);
/* Puts a code there; the bits must be 0 before. */
void fp_store_code(void *words, int64_t index, int bits, int64_t stride, int code);
/* Words for so many codes. */
int64_t fp_code_words(int64_t count, int bits);

#endif
