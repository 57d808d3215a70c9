/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/tensor_coding.h"

#include "base/memory.h"
#include "checkpoint/fp8_tensors.h"
#include "checkpoint/integer_tensors.h"
#include "checkpoint/packed_tensor.h"
#include <math.h>

fp_status fp_coding_scales(float **out, fp_context *ctx, const fp_tensor_info *guide, const void *bytes)
{
	fp_status status;
	FP_TRY(FP_NEW(ctx, out, guide->elements));
	fp_to_float(*out, bytes, guide->dtype, guide->elements);
	for (int64_t i = 0; i < guide->elements; i++)
		if (!isfinite((*out)[i]))
			FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "tensor '%s' contains NaN or infinity (entry %lld)", guide->name,
						   (long long)i));
cleanup:
	return status;
}

fp_status fp_tensor_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
						   const void *guide, const void *zeros)
{
	switch (tensor->coding->kind) {
	case FP_CODED_FP8:
		return fp_fp8_decode(bytes, ctx, tensor, values, guide);
	case FP_CODED_BYTES:
	case FP_CODED_WORDS:
		return fp_integer_decode(bytes, ctx, tensor, values, guide, zeros);
	case FP_CODED_MASK:
	case FP_CODED_TWO_OF_FOUR:
		return fp_packed_decode(bytes, ctx, tensor, values, guide);
	}
	return fp_fail(ctx, FP_ERROR_INTERNAL, "tensor '%s' has an unknown coding", tensor->name);
}
