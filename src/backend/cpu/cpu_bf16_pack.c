/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_bf16_pack.c: rounds operands to BF16 and packs them into tiles (cpu_bf16_tiles.h). */
#include "backend/cpu/cpu_bf16_tiles.h"

#include <stddef.h>

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

/* Transposes 16 × 16 words: four rounds, each of which exchanges one bit of row and column. */
FP_AVX512_BF16 static inline void transpose(__m512i w[FP_BF16_SIDE])
{
	__m512i t[FP_BF16_SIDE];
	for (int i = 0; i < FP_BF16_SIDE; i += 2) {
		t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
		t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
	}
	for (int i = 0; i < FP_BF16_SIDE; i += 4) {
		w[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
		w[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
		w[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
		w[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
	}
	for (int i = 0; i < FP_BF16_SIDE; i += 8)
		for (int j = 0; j < 4; j++) {
			t[i + j] = _mm512_shuffle_i32x4(w[i + j], w[i + j + 4], 0x88);
			t[i + j + 4] = _mm512_shuffle_i32x4(w[i + j], w[i + j + 4], 0xdd);
		}
	for (int j = 0; j < 8; j++) {
		w[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
		w[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
	}
}

/* The bits of 16 floats rounded to BF16, as the low halves of words. */
FP_AVX512_BF16 static inline __m512i rounded(__m512 x)
{
	return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
}

/* Words of two entries each: x in the low halves and y in the high ones, rounded; *rest ← the same of what that drops. */
FP_AVX512_BF16 static inline __m512i join(__m512 x, __m512 y, __m512i *rest)
{
	__m512i a = rounded(x), b = _mm512_slli_epi32(rounded(y), 16);
	if (rest) {
		__m512 x_rest = _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)));
		__m512 y_rest = _mm512_sub_ps(y, _mm512_castsi512_ps(b));
		*rest = _mm512_or_si512(rounded(x_rest), _mm512_slli_epi32(rounded(y_rest), 16));
	}
	return _mm512_or_si512(a, b);
}

static inline __mmask16 first(int64_t count)
{
	return count >= FP_BF16_SIDE ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* Sixteen rows of M, along which k runs: word c of row i has its entries 2c and 2c + 1. Rows and columns that M does not
 * have are zero. */
FP_AVX512_BF16 static inline void load_along(__m512i w[FP_BF16_SIDE], __m512i *rest, const float *M, int64_t stride,
											 int64_t rows, int64_t cols)
{
	const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
	const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
	__mmask16 low = first(cols), high = first(cols - FP_BF16_SIDE);
	for (int i = 0; i < FP_BF16_SIDE; i++) {
		__m512 x = _mm512_setzero_ps(), y = x;
		if (i < rows) {
			x = _mm512_maskz_loadu_ps(low, M + i * stride);
			y = _mm512_maskz_loadu_ps(high, M + i * stride + FP_BF16_SIDE);
		}
		w[i] = join(_mm512_permutex2var_ps(x, even, y), _mm512_permutex2var_ps(x, odd, y), rest ? rest + i : NULL);
	}
}

/* The same where k runs along rows: word c of row i has entries 2i and 2i + 1 of column c. */
FP_AVX512_BF16 static inline void load_across(__m512i w[FP_BF16_SIDE], __m512i *rest, const float *M, int64_t stride,
											  int64_t rows, int64_t cols)
{
	__mmask16 mask = first(cols);
	for (int i = 0; i < FP_BF16_SIDE; i++) {
		__m512 x = _mm512_setzero_ps(), y = x;
		if (2 * i < rows)
			x = _mm512_maskz_loadu_ps(mask, M + 2 * i * stride);
		if (2 * i + 1 < rows)
			y = _mm512_maskz_loadu_ps(mask, M + (2 * i + 1) * stride);
		w[i] = join(x, y, rest ? rest + i : NULL);
	}
}

/* One tile: FP_BF16_SIDE rows or columns from `at` on, entries of k from FP_BF16_STEP·step on. */
FP_AVX512_BF16 static void pack_tile(const fp_bf16_operand *o, int64_t at, int64_t step, uint16_t *high, uint16_t *low)
{
	__m512i w[FP_BF16_SIDE], rest[FP_BF16_SIDE];
	int64_t k = step * FP_BF16_STEP, count = o->count - at, entries = o->k - k;
	if (o->along)
		load_along(w, low ? rest : NULL, o->data + at * o->stride + k, o->stride, count, entries);
	else
		load_across(w, low ? rest : NULL, o->data + k * o->stride + at, o->stride, entries, count);
	if (o->along == o->right)
		transpose(w);
	for (int i = 0; i < FP_BF16_SIDE; i++)
		_mm512_store_si512(high + i * FP_BF16_STEP, w[i]);
	if (!low)
		return;
	if (o->along == o->right)
		transpose(rest);
	for (int i = 0; i < FP_BF16_SIDE; i++)
		_mm512_store_si512(low + i * FP_BF16_STEP, rest[i]);
}

static void pack_step(const fp_bf16_operand *o, int64_t panel, int64_t step, int64_t to)
{
	for (int half = 0; half < 2; half++, to += FP_BF16_TILE)
		pack_tile(o, panel * FP_BF16_STEP + half * FP_BF16_SIDE, step, o->high + to, o->split ? o->low + to : NULL);
}

void fp_bf16_pack(const fp_bf16_operand *o, const fp_bf16_operand *other, int64_t panel)
{
	for (int64_t c = 0; c < fp_bf16_chunks(o->k, o->longest); c++) {
		fp_bf16_chunk chunk = fp_bf16_chunk_at(o, c);
		int64_t to = fp_bf16_offset(o, panel, chunk);
		for (int64_t s = 0; s < chunk.steps; s++, to += 2 * FP_BF16_TILE) {
			pack_step(o, panel, chunk.from + s, to);
			if (other)
				pack_step(other, panel, chunk.from + s, to);
		}
	}
}

#endif
