/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_decode_avx512.c: the loops of cpu_decode.h with AVX-512.
 *
 * VBMI2 puts zeros back in one instruction. A BF16 is the upper half of a float: of a register of 32, the odd entries
 * are floats once the other halves are cleared, and the even ones after a shift, so that x has the even columns of each
 * piece first.
 */
#include "backend/cpu/cpu_decode.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,fma,f16c,popcnt")))
#define TARGET_INLINE static inline __attribute__((always_inline)) TARGET

/* A piece of a row of W in the order of x. */
typedef struct piece {
	__m512 first, second;
} piece;

TARGET_INLINE piece widen(__m512i packed, fp_dtype dtype)
{
	if (dtype == FP_BF16)
		return (piece){
			_mm512_castsi512_ps(_mm512_slli_epi32(packed, 16)),
			_mm512_castsi512_ps(_mm512_and_si512(packed, _mm512_set1_epi32((int)0xffff0000U))),
		};
	return (piece){
		_mm512_cvtph_ps(_mm512_castsi512_si256(packed)),
		_mm512_cvtph_ps(_mm512_extracti64x4_epi64(packed, 1)),
	};
}

/* The piece whose values begin at `values`, which moves behind them. */
TARGET_INLINE piece expand(fp_held_form form, fp_dtype dtype, const char **values, uint32_t mask)
{
	const char *at = *values;
	if (dtype == FP_F32) {
		int low = form == FP_HELD_MASK ? _mm_popcnt_u32(mask & 0xffff) : 8;
		int high = form == FP_HELD_MASK ? _mm_popcnt_u32(mask >> 16) : 8;
		*values = at + (low + high) * 4;
		return (piece){
			_mm512_maskz_expand_ps((__mmask16)mask, _mm512_loadu_ps(at)),
			_mm512_maskz_expand_ps((__mmask16)(mask >> 16), _mm512_loadu_ps(at + low * 4)),
		};
	}
	*values = at + (form == FP_HELD_MASK ? _mm_popcnt_u32(mask) : 16) * 2;
	/* of 2:4 only what is needed: half a line, which no line's end divides */
	__m512i packed = form == FP_HELD_MASK
						 ? _mm512_loadu_si512(at)
						 : _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)at));
	return widen(_mm512_maskz_expand_epi16(mask, packed), dtype);
}

TARGET_INLINE piece load(fp_dtype dtype, const char *at)
{
	if (dtype == FP_F32)
		return (piece){_mm512_loadu_ps(at), _mm512_loadu_ps(at + 64)};
	return widen(_mm512_loadu_si512(at), dtype);
}

TARGET_INLINE void multiply(fp_held_form form, fp_dtype dtype, int batch, const fp_cpu_block *block, const float *x,
							int64_t x_stride, float y[][FP_CPU_BLOCK])
{
	__m512 sums[FP_CPU_TOGETHER][FP_CPU_BLOCK];
	const char *values = block->values;
	const uint8_t *positions = block->positions;
	int64_t piece_bytes = FP_CPU_PIECE * (dtype == FP_F32 ? 4 : 2);
	for (int b = 0; b < batch; b++)
		for (int r = 0; r < FP_CPU_BLOCK; r++)
			sums[b][r] = _mm512_setzero_ps();
	for (int64_t i = 0; i < block->pieces; i++) {
		if (form != FP_HELD_DENSE) {
			for (int64_t line = 0; line < piece_bytes * FP_CPU_BLOCK / 2; line += 64)
				_mm_prefetch(values + FP_CPU_AHEAD + line, _MM_HINT_T0);
		}
#pragma GCC unroll 4
		for (int r = 0; r < FP_CPU_BLOCK; r++) {
			piece w;
			if (form == FP_HELD_DENSE) {
				const char *at = values + r * block->stride + i * piece_bytes;
				for (int64_t line = 0; line < piece_bytes; line += 64)
					_mm_prefetch(at + FP_CPU_NEAR + line, _MM_HINT_T0);
				w = load(dtype, at);
			} else {
				uint32_t mask;
				memcpy(&mask, positions, sizeof mask);
				positions += sizeof mask;
				w = expand(form, dtype, &values, mask);
			}
#pragma GCC unroll 4
			for (int b = 0; b < batch; b++) {
				const float *at = x + b * x_stride + i * FP_CPU_PIECE;
				sums[b][r] = _mm512_fmadd_ps(w.first, _mm512_loadu_ps(at), sums[b][r]);
				sums[b][r] = _mm512_fmadd_ps(w.second, _mm512_loadu_ps(at + 16), sums[b][r]);
			}
		}
	}
	for (int b = 0; b < batch; b++)
		for (int r = 0; r < FP_CPU_BLOCK; r++)
			y[b][r] = _mm512_reduce_add_ps(sums[b][r]);
}

FP_CPU_EACH_LOOP(FP_CPU_LOOP_BY_BATCH)

const fp_cpu_decode_loops fp_cpu_decode_avx512 = {
	"avx512",
	true,
	FP_CPU_LOOP_TABLE,
};
#endif
