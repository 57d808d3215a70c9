/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_avx512_bf16.c: the engine for AVX512-BF16, which AMD's processors have since Zen 4, without AMX. One instruction
 * adds to each of 16 floats two products of BF16 numbers. ROWS × 32 sums stay in registers: a word of the left panel,
 * broadcast, times two vectors of the right panel (cpu_bf16_tiles.h). Three such products for split operands would take
 * longer than one in float.
 */
#include "backend/cpu/cpu_bf16_tiles.h"

#include <stddef.h>

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

enum { SIDE = FP_BF16_SIDE, STEP = FP_BF16_STEP, TILE = FP_BF16_TILE, ROWS = 8 };

/* The word of two entries at `a`, in all places. */
FP_AVX512_BF16 static inline __m512bh broadcast(const uint16_t *a)
{
	int32_t word;
	memcpy(&word, a, sizeof word);
	return (__m512bh)_mm512_set1_epi32(word);
}

/* ROWS rows of the square from `row` on. lines: asked for with each step. */
FP_AVX512_BF16 static inline void multiply_rows(fp_bf16_square *s, int64_t row, int64_t lines)
{
	const uint16_t *a = s->a + row / SIDE * TILE + row % SIDE * STEP, *b = s->b;
	__m512 sum[ROWS][2];
#pragma GCC unroll 8
	for (int i = 0; i < ROWS; i++) {
		sum[i][0] = s->start ? _mm512_load_ps(s->start + (row + i) * STEP) : _mm512_setzero_ps();
		sum[i][1] = s->start ? _mm512_load_ps(s->start + (row + i) * STEP + SIDE) : _mm512_setzero_ps();
	}
	for (int64_t step = 0; step < s->steps; step++, a += 2 * TILE, b += 2 * TILE) {
		fp_bf16_ask(s, lines);
#pragma GCC unroll 4
		for (int word = 0; word < SIDE; word++) {
			__m512bh left = (__m512bh)_mm512_load_si512(b + word * STEP);
			__m512bh right = (__m512bh)_mm512_load_si512(b + TILE + word * STEP);
#pragma GCC unroll 8
			for (int i = 0; i < ROWS; i++) {
				__m512bh x = broadcast(a + i * STEP + 2 * word);
				sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, left);
				sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, right);
			}
		}
	}
#pragma GCC unroll 8
	for (int i = 0; i < ROWS; i++) {
		_mm512_storeu_ps(s->out + (row + i) * s->stride, sum[i][0]);
		_mm512_storeu_ps(s->out + (row + i) * s->stride + SIDE, sum[i][1]);
	}
}

/* A core waits for few lines at a time: asked for all at once, they would delay the loads of the product. */
FP_AVX512_BF16 static void multiply(fp_bf16_square *s)
{
	int64_t parts = s->steps * (STEP / ROWS), lines = (fp_bf16_count_soon(s) + parts - 1) / parts;
	for (int64_t row = 0; row < STEP; row += ROWS)
		multiply_rows(s, row, lines);
}

static const char *missing(void)
{
	unsigned a, b, c, d;
	bool has = __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1 && __builtin_cpu_supports("avx512bw") &&
			   __builtin_cpu_supports("avx512vl");
	return has ? NULL : "this processor has no AVX512-BF16";
}

/* a right panel of so many steps, which is read four times, is most of an L1 cache of 32 KB */
static const fp_bf16_kernel kernel = {.chunk = 12, .tasks = 16, .multiply = multiply};

const fp_cpu_bf16_engine fp_cpu_avx512_bf16 = {
	.name = "AVX512-BF16",
	.missing = missing,
	.speed = 2,
	.multiply = fp_bf16_multiply,
	.multiply_alone = fp_bf16_multiply_alone,
	.space = fp_bf16_space,
	.kernel = &kernel,
};

#endif
