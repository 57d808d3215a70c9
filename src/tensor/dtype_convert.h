/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype_convert.h: conversions of 16-bit floats, portable and with SIMD. Both give the same bits for every input,
 * including NaN; the tests compare them. fp_to_float() and fp_from_float() choose.
 */
#ifndef FP_TENSOR_DTYPE_CONVERT_H
#define FP_TENSOR_DTYPE_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

/* The 16-bit side may be unaligned. A signalling NaN becomes quiet and keeps the rest of its payload, except that bf16
 * to float is a shift and keeps every bit. */
void fp_f16_to_float_scalar(float *out, const void *in, int64_t count);
void fp_f16_from_float_scalar(void *out, const float *in, int64_t count);
void fp_bf16_to_float_scalar(float *out, const void *in, int64_t count);
void fp_bf16_from_float_scalar(void *out, const float *in, int64_t count);

/* False if the processor lacks AVX2 or F16C; then the functions below must not be called. */
bool fp_dtype_simd_works(void);
void fp_f16_to_float_simd(float *out, const void *in, int64_t count);
void fp_f16_from_float_simd(void *out, const float *in, int64_t count);
void fp_bf16_to_float_simd(float *out, const void *in, int64_t count);
void fp_bf16_from_float_simd(void *out, const float *in, int64_t count);

#endif
