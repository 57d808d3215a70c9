/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8_tensors.h: weights in FP8 with scales of their own: X in FP8 beside X_scale_inv (DeepSeek, Qwen) or X_scale
 * (compressed-tensors). Readers see entry · scale rounded to nearest even, and no scales. X is BF16 to them, but of
 * compressed-tensors' weights F16 with scales of that type, and F32 with such scales and such a model.
 */
#ifndef FP_CHECKPOINT_FP8_TENSORS_H
#define FP_CHECKPOINT_FP8_TENSORS_H

#include "checkpoint/quantisation.h"
#include "checkpoint/tensor_coding.h"
#include "checkpoint/tensor_list.h"

/* out ← the tensors that readers see, from the sorted list of those that are stored. Codings go to `codings`, which has
 * room for stored->count. `directory` is for messages. */
fp_status fp_fp8_present(fp_tensor_list *out, fp_tensor_coding *codings, fp_context *ctx, const fp_tensor_list *stored,
						 const fp_quantisation *quantisation, const char *directory);
/* As fp_tensor_decode(). Fails if a scale is not finite. */
fp_status fp_fp8_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
						const void *scales);

#endif
