/* SPDX-License-Identifier: Apache-2.0 */
/* dtype_simd.c: conversions with AVX2 and F16C, eight elements at a time; scalar functions convert the rest. */
#include "tensor/dtype_convert.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define FP_SIMD __attribute__((target("avx2,f16c")))

#if defined(__clang__) /* clang 14 does not know "f16c" */
/* Asks the processor once: in a virtual machine cpuid takes longer than a short conversion. */
static bool has_f16c(void)
{
	enum { UNKNOWN, NO, YES };
	static int answer = UNKNOWN;
	int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
	unsigned int a, b, c = 0, d;
	if (known == UNKNOWN) {
		known = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? YES : NO;
		__atomic_store_n(&answer, known, __ATOMIC_RELAXED);
	}
	return known == YES;
}
#else
static bool has_f16c(void)
{
	return __builtin_cpu_supports("f16c");
}
#endif

bool fp_dtype_simd_works(void)
{
	return __builtin_cpu_supports("avx2") && has_f16c();
}

FP_SIMD void fp_f16_to_float_simd(float *out, const void *in, int64_t count)
{
	const char *bytes = in;
	int64_t i = 0;
	for (; i + 8 <= count; i += 8)
		_mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(bytes + 2 * i))));
	fp_f16_to_float_scalar(out + i, bytes + 2 * i, count - i);
}

FP_SIMD void fp_f16_from_float_simd(void *out, const float *in, int64_t count)
{
	char *bytes = out;
	int64_t i = 0;
	for (; i + 8 <= count; i += 8)
		_mm_storeu_si128((__m128i *)(bytes + 2 * i),
						 _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
	fp_f16_from_float_scalar(bytes + 2 * i, in + i, count - i);
}

FP_SIMD void fp_bf16_to_float_simd(float *out, const void *in, int64_t count)
{
	const char *bytes = in;
	int64_t i = 0;
	for (; i + 8 <= count; i += 8) {
		__m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(bytes + 2 * i)));
		_mm256_storeu_si256((__m256i *)(out + i), _mm256_slli_epi32(wide, 16));
	}
	fp_bf16_to_float_scalar(out + i, bytes + 2 * i, count - i);
}

FP_SIMD void fp_bf16_from_float_simd(void *out, const float *in, int64_t count)
{
	const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF), quiet = _mm256_set1_epi32(0x400000);
	const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF), infinity = _mm256_set1_epi32(0x7F800000);
	char *bytes = out;
	int64_t i = 0;
	for (; i + 8 <= count; i += 8) {
		__m256i bits = _mm256_loadu_si256((const __m256i *)(in + i));
		__m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
		__m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(half, odd));
		__m256i is_nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), infinity);
		__m256i chosen = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, quiet), is_nan);
		chosen = _mm256_srli_epi32(chosen, 16);
		/* packus works within 128-bit lanes; the permutation brings the two halves together */
		__m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0x08);
		_mm_storeu_si128((__m128i *)(bytes + 2 * i), _mm256_castsi256_si128(packed));
	}
	fp_bf16_from_float_scalar(bytes + 2 * i, in + i, count - i);
}

#else

bool fp_dtype_simd_works(void)
{
	return false;
}

void fp_f16_to_float_simd(float *out, const void *in, int64_t count)
{
	fp_f16_to_float_scalar(out, in, count);
}

void fp_f16_from_float_simd(void *out, const float *in, int64_t count)
{
	fp_f16_from_float_scalar(out, in, count);
}

void fp_bf16_to_float_simd(float *out, const void *in, int64_t count)
{
	fp_bf16_to_float_scalar(out, in, count);
}

void fp_bf16_from_float_simd(void *out, const float *in, int64_t count)
{
	fp_bf16_from_float_scalar(out, in, count);
}

#endif
