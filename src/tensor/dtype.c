/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dtype.h"

#include "tensor/dtype_convert.h"
#include <string.h>

static const struct {
	const char *name;
	int64_t size;
} dtype_table[] = {
	[FP_F32] = {"F32", 4},         [FP_F16] = {"F16", 2},         [FP_BF16] = {"BF16", 2},
	[FP_F64] = {"F64", 8},         [FP_U8] = {"U8", 1},           [FP_I32] = {"I32", 4},
	[FP_I64] = {"I64", 8},         [FP_I8] = {"I8", 1},           [FP_OTHER_DTYPE] = {"other", 0},
	[FP_F8_E4M3] = {"F8_E4M3", 1}, [FP_F8_E5M2] = {"F8_E5M2", 1},
};

int64_t fp_dtype_size(fp_dtype dtype)
{
	return dtype_table[dtype].size;
}

const char *fp_dtype_name(fp_dtype dtype)
{
	return dtype_table[dtype].name;
}

bool fp_dtype_is_weight(fp_dtype dtype)
{
	return dtype == FP_F32 || dtype == FP_F16 || dtype == FP_BF16;
}

bool fp_dtype_is_fp8(fp_dtype dtype)
{
	return dtype == FP_F8_E4M3 || dtype == FP_F8_E5M2;
}

/* Tensors in a safetensors file need not be aligned. */
static uint16_t load_half(const void *in, int64_t index)
{
	uint16_t bits;
	memcpy(&bits, (const char *)in + 2 * index, sizeof bits);
	return bits;
}

static void store_half(void *out, int64_t index, uint16_t bits)
{
	memcpy((char *)out + 2 * index, &bits, sizeof bits);
}

static float float_of_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static uint32_t bits_of_float(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static float float_from_f16(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t exponent = (half >> 10) & 0x1F;
	uint32_t mantissa = half & 0x3FF;
	if (exponent == 0x1F) /* infinity, or a NaN, which becomes quiet */
		return float_of_bits(sign | 0x7F800000 | (mantissa ? 0x400000 | mantissa << 13 : 0));
	if (exponent != 0)
		return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
	/* a subnormal is mantissa × 2⁻²⁴, exact in float */
	return float_of_bits(sign | bits_of_float((float)mantissa * 0x1p-24F));
}

static float float_from_e4m3(uint8_t byte)
{
	uint32_t sign = (uint32_t)(byte & 0x80) << 24, exponent = (byte >> 3) & 0xF, mantissa = byte & 7;
	if ((byte & 0x7F) == 0x7F)
		return float_of_bits(sign | 0x7FC00000);
	if (exponent != 0)
		return float_of_bits(sign | (exponent + 120) << 23 | mantissa << 20);
	/* a subnormal is mantissa × 2⁻⁹ */
	return float_of_bits(sign | bits_of_float((float)mantissa * 0x1p-9F));
}

static uint16_t f16_from_float(float value)
{
	uint32_t bits = bits_of_float(value);
	uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
	uint32_t magnitude = bits & 0x7FFFFFFF;
	if (magnitude > 0x7F800000)
		return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x1FF));
	if (magnitude >= 0x477FF000) /* 65520 and above round to infinity */
		return sign | 0x7C00;
	if (magnitude < 0x38800000) { /* below 2⁻¹⁴: subnormal, in steps of 2⁻²⁴ */
		/* The last bit of a float near 0.5 is 2⁻²⁴, so the addition rounds to nearest even. */
		return sign | (uint16_t)(bits_of_float(float_of_bits(magnitude) + 0.5F) - 0x3F000000);
	}
	uint32_t odd = magnitude >> 13 & 1;
	return sign | (uint16_t)((magnitude - 0x38000000 + 0xFFF + odd) >> 13);
}

static uint16_t bf16_from_float(float value)
{
	uint32_t bits = bits_of_float(value);
	if ((bits & 0x7FFFFFFF) > 0x7F800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void fp_f16_to_float_scalar(float *out, const void *in, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = float_from_f16(load_half(in, i));
}

void fp_f16_from_float_scalar(void *out, const float *in, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		store_half(out, i, f16_from_float(in[i]));
}

static void fp8_to_float(float *out, const unsigned char *in, fp_dtype dtype, int64_t count)
{
	for (int64_t i = 0; i < count; i++) /* E5M2 is the upper half of F16 */
		out[i] = dtype == FP_F8_E4M3 ? float_from_e4m3(in[i]) : float_from_f16((uint16_t)(in[i] << 8));
}

void fp_bf16_to_float_scalar(float *out, const void *in, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = float_of_bits((uint32_t)load_half(in, i) << 16);
}

void fp_bf16_from_float_scalar(void *out, const float *in, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		store_half(out, i, bf16_from_float(in[i]));
}

/* Elements that a thread converts at a time: few enough for its caches. */
enum { CHUNK = 1 << 16 };

static void to_float_chunk(float *out, const char *in, fp_dtype dtype, int64_t count, bool simd)
{
	if (dtype == FP_F32)
		memcpy(out, in, (size_t)count * sizeof *out);
	else if (dtype == FP_F16)
		(simd ? fp_f16_to_float_simd : fp_f16_to_float_scalar)(out, in, count);
	else if (fp_dtype_is_fp8(dtype))
		fp8_to_float(out, (const unsigned char *)in, dtype, count);
	else
		(simd ? fp_bf16_to_float_simd : fp_bf16_to_float_scalar)(out, in, count);
}

static void from_float_chunk(char *out, fp_dtype dtype, const float *in, int64_t count, bool simd)
{
	if (dtype == FP_F32)
		memcpy(out, in, (size_t)count * sizeof *in);
	else if (dtype == FP_F16)
		(simd ? fp_f16_from_float_simd : fp_f16_from_float_scalar)(out, in, count);
	else
		(simd ? fp_bf16_from_float_simd : fp_bf16_from_float_scalar)(out, in, count);
}

void fp_to_float(float *out, const void *in, fp_dtype dtype, int64_t count)
{
	const int64_t size = fp_dtype_size(dtype);
	const bool simd = fp_dtype_simd_works();
	if (count <= CHUNK) {
		to_float_chunk(out, in, dtype, count, simd);
		return;
	}
#pragma omp parallel for schedule(static)
	for (int64_t start = 0; start < count; start += CHUNK)
		to_float_chunk(out + start, (const char *)in + start * size, dtype,
					   count - start < CHUNK ? count - start : CHUNK, simd);
}

void fp_from_float(void *out, fp_dtype dtype, const float *in, int64_t count)
{
	const int64_t size = fp_dtype_size(dtype);
	const bool simd = fp_dtype_simd_works();
	if (count <= CHUNK) {
		from_float_chunk(out, dtype, in, count, simd);
		return;
	}
#pragma omp parallel for schedule(static)
	for (int64_t start = 0; start < count; start += CHUNK)
		from_float_chunk((char *)out + start * size, dtype, in + start, count - start < CHUNK ? count - start : CHUNK,
						 simd);
}
