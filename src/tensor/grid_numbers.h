/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_numbers.h: rounding one number to a grid of quantised weights (grid_format.h), for hosts and devices alike. CUDA
 * kernels include it, so it is plain arithmetic on values.
 */
#ifndef FP_TENSOR_GRID_NUMBERS_H
#define FP_TENSOR_GRID_NUMBERS_H

#include "tensor/dtype.h"
#include <math.h>
#include <string.h>

#ifdef __CUDACC__
#define FP_GRID_INLINE __host__ __device__ static inline
#else
#define FP_GRID_INLINE static inline
#endif

#define FP_LARGEST_E4M3 448.0F

/* What of a format and a checkpoint's type the arithmetic needs. */
typedef struct fp_grid_rule {
	float first, last; /* codes */
	bool is_float;     /* codes are values of E4M3 */
	fp_dtype dtype;    /* of weights and scales */
} fp_grid_rule;

/* The nearest multiple of a power of two that has `dropped` bits fewer than a float; ties to even. */
FP_GRID_INLINE float fp_drop_bits(float x, int dropped)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	bits += (1U << (dropped - 1)) - 1U + (bits >> dropped & 1U);
	bits &= ~((1U << dropped) - 1U);
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* The nearest integer to a number within ±2^22, ties to even: floats around 1.5·2^23 are the integers. Without calls
 * and branches, so that a compiler can use SIMD. */
FP_GRID_INLINE float fp_nearest_whole(float x)
{
	const float far = 12582912.0F;
	return x + far - far;
}

FP_GRID_INLINE float fp_between(float x, float low, float high)
{
	x = x > low ? x : low;
	return x < high ? x : high;
}

/* x in a weight type, as a float; NaN and numbers beyond the type's range stay what they are. */
FP_GRID_INLINE float fp_round_to_type(fp_dtype dtype, float x)
{
	const float f16_unit = 0x1p-24F, f16_normal = 0x1p-14F;
	if (dtype == FP_F32 || !(fabsf(x) < INFINITY))
		return x;
	if (dtype == FP_BF16)
		return fp_drop_bits(x, 16);
	return fabsf(x) < f16_normal ? fp_nearest_whole(x / f16_unit) * f16_unit : fp_drop_bits(x, 13);
}

/* The nearest value of E4M3: three bits behind the first one, down to multiples of 2^−9. */
FP_GRID_INLINE float fp_round_to_e4m3(float x)
{
	const float unit = 0x1p-9F, normal = 0x1p-6F;
	x = fp_between(x, -FP_LARGEST_E4M3, FP_LARGEST_E4M3);
	return fabsf(x) < normal ? fp_nearest_whole(x / unit) * unit : fp_drop_bits(x, 20);
}

/* The nearest code to x / scale. That of 0 is the zero point. */
FP_GRID_INLINE float fp_grid_nearest_code(fp_grid_rule rule, float scale, float zero, float x)
{
	const float beyond = 1024.0F; /* any code and zero point */
	if (rule.is_float)
		return fp_round_to_e4m3(x / scale);
	return fp_between(fp_nearest_whole(fp_between(x / scale, -beyond, beyond)) + zero, rule.first, rule.last);
}

/* What a code means; never −0.0. */
FP_GRID_INLINE float fp_grid_code_value(fp_grid_rule rule, float scale, float zero, float code)
{
	float value = fp_round_to_type(rule.dtype, (code - zero) * scale);
	return value == 0.0F ? 0.0F : value;
}

/* The nearest weight on the grid. */
FP_GRID_INLINE float fp_grid_nearest(fp_grid_rule rule, float scale, float zero, float x)
{
	return fp_grid_code_value(rule, scale, zero, fp_grid_nearest_code(rule, scale, zero, x));
}

/* *scale, *zero ← of a group whose entries are between low ≤ 0 and high ≥ 0, with the room that these take times
 * `shrink`. A scale is never 0: that of a group of zeros is the type's epsilon, and one that underflows is the type's
 * smallest number. */
FP_GRID_INLINE void fp_grid_scale_of(fp_grid_rule rule, bool symmetric, float low, float high, float shrink,
									 float *scale, float *zero)
{
	const float epsilon = rule.dtype == FP_F32 ? 0x1p-23F : rule.dtype == FP_F16 ? 0x1p-10F : 0x1p-7F;
	const float smallest = rule.dtype == FP_F32 ? 0x1p-149F : rule.dtype == FP_F16 ? 0x1p-24F : 0x1p-133F;
	const float room = rule.last - rule.first, most = -low > high ? -low : high;
	const float width = symmetric ? most / (room / 2.0F) : high / room - low / room;
	*scale = fp_round_to_type(rule.dtype, width * shrink);
	if (*scale == 0.0F)
		*scale = most > 0.0F ? smallest : epsilon;
	*zero = symmetric ? 0.0F : fp_between(fp_nearest_whole(rule.first - low * shrink / *scale), rule.first, rule.last);
}

#endif
