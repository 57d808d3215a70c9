/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_decode_avx2.c: the loops of cpu_decode.h with AVX2, FMA and F16C.
 *
 * Zeros are put back eight entries at a time: a byte of the mask chooses the bytes of the next eight values from a
 * table of shuffles.
 */
#include "backend/cpu/cpu_decode.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2,fma,f16c,popcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

/* For each mask of eight entries and each entry the two bytes of its value; 0x80: zero. */
#define BIT(m, j) ((m) >> (j)&1)
#define BELOW(m, j)                                                                                                    \
	((j > 0 && BIT(m, 0)) + (j > 1 && BIT(m, 1)) + (j > 2 && BIT(m, 2)) + (j > 3 && BIT(m, 3)) +                       \
	 (j > 4 && BIT(m, 4)) + (j > 5 && BIT(m, 5)) + (j > 6 && BIT(m, 6)))
#define ENTRY(m, j) BIT(m, j) ? 2 * BELOW(m, j) : 0x80, BIT(m, j) ? 2 * BELOW(m, j) + 1 : 0x80
#define ROW(m)                                                                                                         \
	{                                                                                                                  \
		ENTRY(m, 0), ENTRY(m, 1), ENTRY(m, 2), ENTRY(m, 3), ENTRY(m, 4), ENTRY(m, 5), ENTRY(m, 6), ENTRY(m, 7)         \
	}
#define ROWS4(m) ROW(m), ROW((m) + 1), ROW((m) + 2), ROW((m) + 3)
#define ROWS16(m) ROWS4(m), ROWS4((m) + 4), ROWS4((m) + 8), ROWS4((m) + 12)
#define ROWS64(m) ROWS16(m), ROWS16((m) + 16), ROWS16((m) + 32), ROWS16((m) + 48)
static const uint8_t shuffles[256][16] = {ROWS64(0), ROWS64(64), ROWS64(128), ROWS64(192)};

TARGET_INLINE __m256 widen(__m128i packed, fp_dtype dtype)
{
	if (dtype == FP_F16)
		return _mm256_cvtph_ps(packed);
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));
}

TARGET_INLINE __m256 load(fp_dtype dtype, const char *at)
{
	return dtype == FP_F32 ? _mm256_loadu_ps((const float *)(const void *)at)
						   : widen(_mm_loadu_si128((const __m128i *)(const void *)at), dtype);
}

/* Eight entries, of which `mask` are stored at `at`. */
TARGET_INLINE __m256 expand(fp_dtype dtype, const char *at, uint32_t mask)
{
	__m128i shuffle = _mm_loadu_si128((const __m128i *)(const void *)shuffles[mask]);
	if (dtype != FP_F32)
		return widen(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)at), shuffle), dtype);
	/* of the two bytes of an entry the first: twice its place, or 0x80 */
	__m256i place = _mm256_cvtepu16_epi32(shuffle);
	__m256 moved = _mm256_permutevar8x32_ps(load(FP_F32, at), _mm256_srli_epi32(place, 1));
	__m256i zeros = _mm256_srai_epi32(_mm256_slli_epi32(place, 24), 31);
	return _mm256_andnot_ps(_mm256_castsi256_ps(zeros), moved);
}

/* Two rows at a time: with four rows of x, more sums would not fit the registers. */
TARGET_INLINE void multiply_rows(fp_held_form form, fp_dtype dtype, int batch, const char *at[FP_CPU_BLOCK],
								 const uint32_t *masks, int first, const float *x, int64_t x_stride,
								 __m256 sums[FP_CPU_TOGETHER][FP_CPU_BLOCK])
{
	int size = dtype == FP_F32 ? 4 : 2;
#pragma GCC unroll 4
	for (int q = 0; q < FP_CPU_PIECE / 8; q++)
#pragma GCC unroll 2
		for (int r = first; r < first + 2; r++) {
			uint32_t mask = form == FP_HELD_DENSE ? 0xff : masks[r] >> (8 * q) & 0xff;
			__m256 w = form == FP_HELD_DENSE ? load(dtype, at[r]) : expand(dtype, at[r], mask);
			at[r] += (form == FP_HELD_DENSE ? 8 : form == FP_HELD_MASK ? (int)_mm_popcnt_u32(mask) : 4) * size;
#pragma GCC unroll 4
			for (int b = 0; b < batch; b++)
				sums[b][r] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x + b * x_stride + 8 * q), sums[b][r]);
		}
}

TARGET_INLINE float total(__m256 v)
{
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
	return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

TARGET_INLINE void multiply(fp_held_form form, fp_dtype dtype, int batch, const fp_cpu_block *block, const float *x,
							int64_t x_stride, float y[][FP_CPU_BLOCK])
{
	__m256 sums[FP_CPU_TOGETHER][FP_CPU_BLOCK];
	const char *at[FP_CPU_BLOCK]; /* the next values of each row */
	const uint8_t *positions = block->positions;
	int size = dtype == FP_F32 ? 4 : 2;
	for (int b = 0; b < batch; b++)
		for (int r = 0; r < FP_CPU_BLOCK; r++)
			sums[b][r] = _mm256_setzero_ps();
	for (int r = 0; r < FP_CPU_BLOCK; r++)
		at[r] = block->values + (form == FP_HELD_DENSE ? r * block->stride : 0);
	for (int64_t i = 0; i < block->pieces; i++, x += FP_CPU_PIECE) {
		uint32_t masks[FP_CPU_BLOCK];
		if (form == FP_HELD_DENSE) {
			for (int r = 0; r < FP_CPU_BLOCK; r++)
				for (int line = 0; line < FP_CPU_PIECE * size; line += 64)
					_mm_prefetch(at[r] + FP_CPU_NEAR + line, _MM_HINT_T0);
		} else {
			memcpy(masks, positions, sizeof masks);
			positions += sizeof masks;
			for (int line = 0; line < FP_CPU_PIECE * FP_CPU_BLOCK / 2 * size; line += 64)
				_mm_prefetch(at[0] + FP_CPU_AHEAD + line, _MM_HINT_T0);
			/* each row begins where the row before it ends */
			for (int r = 1; r < FP_CPU_BLOCK; r++)
				at[r] = at[r - 1] + (form == FP_HELD_MASK ? (int)_mm_popcnt_u32(masks[r - 1]) : 16) * size;
		}
		multiply_rows(form, dtype, batch, at, masks, 0, x, x_stride, sums);
		multiply_rows(form, dtype, batch, at, masks, 2, x, x_stride, sums);
		if (form != FP_HELD_DENSE)
			at[0] = at[FP_CPU_BLOCK - 1];
	}
	for (int b = 0; b < batch; b++)
		for (int r = 0; r < FP_CPU_BLOCK; r++)
			y[b][r] = total(sums[b][r]);
}

FP_CPU_EACH_LOOP(FP_CPU_LOOP_BY_BATCH)

const fp_cpu_decode_loops fp_cpu_decode_avx2 = {
	"avx2",
	false,
	FP_CPU_LOOP_TABLE,
};
#endif
