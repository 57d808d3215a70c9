/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/grid_format.h"

#include <math.h>
#include <string.h>

static const fp_grid_format formats[] = {
	{.name = "int4",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .symmetric = true,
	 .group = 128,
	 .summary = "4-bit whole numbers, a scale for each 128"},
	{.name = "int4-g32",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .symmetric = true,
	 .group = 32,
	 .summary = "4-bit whole numbers, a scale for each 32"},
	{.name = "int4-asym",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .group = 128,
	 .summary = "4-bit whole numbers, a scale and a zero point for each 128"},
	{.name = "int4-asym-g32",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .group = 32,
	 .summary = "4-bit whole numbers, a scale and a zero point for each 32"},
	{.name = "int8",
	 .layout = "int-quantized",
	 .bits = 8,
	 .symmetric = true,
	 .rounds_inputs = true,
	 .summary = "8-bit whole numbers, a scale for each row"},
	{.name = "fp8",
	 .layout = "float-quantized",
	 .bits = 8,
	 .is_float = true,
	 .symmetric = true,
	 .rounds_inputs = true,
	 .summary = "8-bit floats (E4M3), a scale for each row"},
};

enum { LEAST_GROUP = 32 };
static const float largest_e4m3 = 448.0F;

const fp_grid_format *fp_grid_format_at(int index)
{
	return index < (int)(sizeof formats / sizeof formats[0]) ? &formats[index] : NULL;
}

const fp_grid_format *fp_grid_format_named(const char *name)
{
	const fp_grid_format *format;
	for (int i = 0; (format = fp_grid_format_at(i)); i++)
		if (strcmp(format->name, name) == 0)
			return format;
	return NULL;
}

int64_t fp_grid_group(const fp_grid_format *format, int64_t n)
{
	for (int64_t group = format->group; group >= LEAST_GROUP; group /= 2)
		if (n % group == 0)
			return group;
	return n;
}

float fp_grid_first(const fp_grid_format *format)
{
	return format->is_float ? -largest_e4m3 : -(float)(1 << (format->bits - 1));
}

float fp_grid_last(const fp_grid_format *format)
{
	return format->is_float ? largest_e4m3 : (float)((1 << (format->bits - 1)) - 1);
}

float fp_grid_type_round(fp_dtype dtype, float x)
{
	float rounded;
	uint16_t narrow;
	if (dtype == FP_F32)
		return x;
	fp_from_float(&narrow, dtype, &x, 1);
	fp_to_float(&rounded, &narrow, dtype, 1);
	return rounded;
}

/* The distance from 1 to the next number. */
static float epsilon(fp_dtype dtype)
{
	return ldexpf(1.0F, dtype == FP_F32 ? -23 : dtype == FP_F16 ? -10 : -7);
}

static float smallest(fp_dtype dtype)
{
	return ldexpf(1.0F, dtype == FP_F32 ? -149 : dtype == FP_F16 ? -24 : -133);
}

void fp_grid_fit_group(const fp_grid_format *format, fp_dtype dtype, const float *v, int64_t count, float *scale,
					   float *zero)
{
	float low = 0.0F, high = 0.0F;
	for (int64_t i = 0; i < count; i++) {
		low = v[i] < low ? v[i] : low;
		high = v[i] > high ? v[i] : high;
	}
	const float first = fp_grid_first(format), last = fp_grid_last(format), most = -low > high ? -low : high;
	const float width =
		format->symmetric ? most / ((last - first) / 2.0F) : high / (last - first) - low / (last - first);
	*zero = 0.0F;
	*scale = fp_grid_type_round(dtype, width);
	if (*scale == 0.0F)
		*scale = most > 0.0F ? smallest(dtype) : epsilon(dtype);
	if (!format->symmetric)
		*zero = fminf(fmaxf(nearbyintf(first - low / *scale), first), last);
}

/* The nearest value of E4M3: three bits behind the first one, down to multiples of 2^−9. */
static float round_e4m3(float x)
{
	enum { EXPONENT = 23, LEAST = 127 - 6 }; /* of a float; the biased exponent of E4M3's smallest normal number */
	float size = fminf(fabsf(x), largest_e4m3), step = 0x1p-9F;
	uint32_t bits;
	memcpy(&bits, &size, sizeof bits);
	if (bits >> EXPONENT >= LEAST) {
		bits = ((bits >> EXPONENT) - 3) << EXPONENT;
		memcpy(&step, &bits, sizeof step);
	}
	return copysignf(nearbyintf(size / step) * step, x);
}

float fp_grid_code(const fp_grid_format *format, float scale, float zero, float x)
{
	if (x == 0.0F)
		return zero;
	if (format->is_float)
		return round_e4m3(x / scale);
	return fminf(fmaxf(nearbyintf(x / scale) + zero, fp_grid_first(format)), fp_grid_last(format));
}

void fp_grid_codes(const fp_grid_format *format, float scale, float zero, const float *x, float *codes, int64_t count)
{
	const float first = fp_grid_first(format), last = fp_grid_last(format);
	const float beyond = 1024.0F;    /* any code or zero point */
	const float whole = 12582912.0F; /* 1.5·2^23: floats around it are the whole numbers */
	if (format->is_float) {
		for (int64_t i = 0; i < count; i++)
			codes[i] = fp_grid_code(format, scale, zero, x[i]);
		return;
	}
	for (int64_t i = 0; i < count; i++) { /* without calls and branches, so that a compiler can use SIMD */
		float q = x[i] / scale;
		q = q > -beyond ? q : -beyond;
		q = q < beyond ? q : beyond;
		q = q + whole - whole + zero;
		q = q > first ? q : first;
		codes[i] = q < last ? q : last;
	}
}

float fp_grid_value(fp_dtype dtype, float scale, float zero, float code)
{
	float value = fp_grid_type_round(dtype, (code - zero) * scale);
	return value == 0.0F ? 0.0F : value; /* not −0.0 */
}

uint8_t fp_grid_e4m3(float value)
{
	int exponent;
	uint8_t sign = signbit(value) ? 0x80 : 0;
	float size = fabsf(value), mantissa = frexpf(size, &exponent);
	if (size < 0x1p-6F)
		return sign | (uint8_t)(size * 512.0F);
	return sign | (uint8_t)((exponent + 6) << 3 | (int)(mantissa * 16.0F - 8.0F));
}
