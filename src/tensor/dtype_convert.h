/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype_convert.h: the two ways of converting half-width numbers. Both give the same bits for every input, NaN
 * included; fp_to_float() and fp_from_float() choose, and the tests compare them.
 */
#ifndef FP_TENSOR_DTYPE_CONVERT_H
#define FP_TENSOR_DTYPE_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

/* Pointers may be unaligned for the half-width side. A signalling NaN comes out quiet, with the rest of its payload,
 * except that bf16 to float is a shift and keeps every bit. */
void fp_f16_to_float_scalar(float *out, const void *in, int64_t count);
void fp_f16_from_float_scalar(void *out, const float *in, int64_t count);
void fp_bf16_to_float_scalar(float *out, const void *in, int64_t count);
void fp_bf16_from_float_scalar(void *out, const float *in, int64_t count);

/* False where the processor lacks AVX2 or F16C; then the functions below must not be called. */
bool fp_dtype_simd_works(void);
void fp_f16_to_float_simd(float *out, const void *in, int64_t count);
void fp_f16_from_float_simd(void *out, const float *in, int64_t count);
void fp_bf16_to_float_simd(float *out, const void *in, int64_t count);
void fp_bf16_from_float_simd(void *out, const float *in, int64_t count);

#endif
