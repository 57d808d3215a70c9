/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: element types and the conversions between them. */
#ifndef FP_TENSOR_DTYPE_H
#define FP_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum fp_dtype {
	FP_F32,
	FP_F16,
	FP_BF16,
	FP_F64,
	FP_U8, /* masks: 1 keeps, 0 prunes */
	FP_I32,
	FP_I64,
	FP_I8,
	FP_F8_E4M3,     /* OCP's E4M3: no infinities; NaN is 0x7F and 0xFF */
	FP_F8_E5M2,     /* like F16 with two bits of mantissa */
	FP_OTHER_DTYPE, /* types that are copied but never computed with */
} fp_dtype;

/* Bytes of one element; 0 for FP_OTHER_DTYPE. */
int64_t fp_dtype_size(fp_dtype dtype);
/* "F32", "F16", "BF16", … as safetensors spells them. Borrowed. */
const char *fp_dtype_name(fp_dtype dtype);
/* True for the types that weights may have: F32, F16, BF16. */
bool fp_dtype_is_weight(fp_dtype dtype);
bool fp_dtype_is_fp8(fp_dtype dtype);

/* Converts `count` elements of a weight type to float and back, rounding to nearest even. NaN stays NaN; overflow
 * becomes infinity. fp_to_float() also reads FP8, whose values need a scale to be weights. */
void fp_to_float(float *out, const void *in, fp_dtype dtype, int64_t count);
void fp_from_float(void *out, fp_dtype dtype, const float *in, int64_t count);

#endif
