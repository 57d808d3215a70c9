/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/grid_format.h"

#include "tensor/grid_numbers.h"

static const fp_grid_format formats[] = {
	{.name = "int4",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .symmetric = true,
	 .group = 128,
	 .summary = "4-bit integers, a scale for each 128"},
	{.name = "int4-g32",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .symmetric = true,
	 .group = 32,
	 .summary = "4-bit integers, a scale for each 32"},
	{.name = "int4-asym",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .group = 128,
	 .summary = "4-bit integers, a scale and a zero point for each 128"},
	{.name = "int4-asym-g32",
	 .layout = "pack-quantized",
	 .bits = 4,
	 .group = 32,
	 .summary = "4-bit integers, a scale and a zero point for each 32"},
	{.name = "int8",
	 .layout = "int-quantized",
	 .bits = 8,
	 .symmetric = true,
	 .rounds_inputs = true,
	 .summary = "8-bit integers, a scale for each row"},
	{.name = "fp8",
	 .layout = "float-quantized",
	 .bits = 8,
	 .is_float = true,
	 .symmetric = true,
	 .rounds_inputs = true,
	 .summary = "8-bit floats (E4M3), a scale for each row"},
};

enum { LEAST_GROUP = 32 };

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

void fp_grid_fit_group(const fp_grid_format *format, fp_dtype dtype, const float *v, int64_t count, float *scale,
					   float *zero)
{
	float low = 0.0F, high = 0.0F;
	for (int64_t i = 0; i < count; i++) {
		low = v[i] < low ? v[i] : low;
		high = v[i] > high ? v[i] : high;
	}
	fp_grid_scale_of(fp_grid_rule_of(format, dtype), format->symmetric, low, high, 1.0F, scale, zero);
}

float fp_grid_code(const fp_grid_format *format, float scale, float zero, float x)
{
	return fp_grid_nearest_code(fp_grid_rule_of(format, FP_F32), scale, zero, x);
}

void fp_grid_codes(const fp_grid_format *format, float scale, float zero, const float *x, float *codes, int64_t count)
{
	const fp_grid_rule rule = fp_grid_rule_of(format, FP_F32);
	for (int64_t i = 0; i < count; i++)
		codes[i] = fp_grid_nearest_code(rule, scale, zero, x[i]);
}

float fp_grid_value(fp_dtype dtype, float scale, float zero, float code)
{
	return fp_grid_code_value((fp_grid_rule){.dtype = dtype}, scale, zero, code);
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
