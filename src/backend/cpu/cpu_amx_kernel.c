/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_amx_kernel.c: products of packed operands by AMX's tiles (cpu_amx.h). 2 × 2 tiles of C stay in registers. The order
 * of the sums depends on k only.
 */
#include "backend/cpu/cpu_amx.h"

#include "base/numbers.h"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

enum { SIDE = FP_AMX_SIDE, STEP = FP_AMX_STEP, TILE = FP_AMX_TILE, SQUARE = FP_AMX_SQUARE };

/* Eight tiles of 16 rows of 64 bytes. The compiler believes that _tile_loadconfig() reads eight bytes only, so that the
 * numbers must not be made on the stack. */
static const struct {
	uint8_t palette, start, zero[14];
	uint16_t bytes[16];
	uint8_t rows[16];
} tile_shapes = {
	.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};

FP_AMX void fp_amx_begin(void)
{
	_tile_loadconfig(&tile_shapes);
}

FP_AMX void fp_amx_end(void)
{
	_tile_release();
}

/* Tiles 0 to 3, 2 × 2 tiles of C, += the product of two panels over `steps` steps. */
FP_AMX static inline void add_rounded(const uint16_t *a, const uint16_t *b, int64_t steps)
{
	for (int64_t s = 0; s < steps; s++, a += 2 * TILE, b += 2 * TILE) {
		_tile_loadd(4, a, 64);
		_tile_loadd(6, b, 64);
		_tile_loadd(7, b + TILE, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
}

/* The same of split operands: high·high + low·high + high·low. */
FP_AMX static inline void add_split(const uint16_t *a, const uint16_t *a_low, const uint16_t *b, const uint16_t *b_low,
									int64_t steps)
{
	for (int64_t at = 0; at < steps * 2 * TILE; at += 2 * TILE) {
		_tile_loadd(6, b + at, 64);
		_tile_loadd(7, b + at + TILE, 64);
		_tile_loadd(4, a_low + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a_low + at + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		_tile_loadd(4, a + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a + at + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		_tile_loadd(6, b_low + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(2, 5, 6);
		_tile_loadd(7, b_low + at + TILE, 64);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(3, 5, 7);
	}
}

static inline __mmask16 first(int64_t count)
{
	return count >= SIDE ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* C ← α sums + β C for rows × cols of a panel's square; sums: its four tiles, one after the other. */
FP_AMX static void store_part(const float *sums, float alpha, float beta, float *C, int64_t ldc, int64_t rows,
							  int64_t cols)
{
	for (int64_t i = 0; i < rows && i < STEP; i++)
		for (int64_t j = 0; j < STEP; j += SIDE) {
			__mmask16 mask = first(cols - j);
			const float *sum = sums + i / SIDE * (SQUARE / 2) + j * SIDE + i % SIDE * SIDE;
			__m512 value = _mm512_mul_ps(_mm512_set1_ps(alpha), _mm512_load_ps(sum));
			if (beta != 0.0f)
				value = _mm512_fmadd_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(mask, C + i * ldc + j), value);
			_mm512_mask_storeu_ps(C + i * ldc + j, mask, value);
		}
}

/* The square of C at row panel i and column panel j, one chunk of it. `sums`, square by square, hold the sums between two
 * chunks: in C itself they would lie in lines that displace each other from the cache. */
FP_AMX static void multiply_square(const fp_amx_product *t, int64_t i, int64_t j, fp_amx_chunk now, float *sums)
{
	const fp_cpu_product *p = t->product;
	int64_t a = fp_amx_offset(&t->A, i, now), b = fp_amx_offset(&t->B, j, now);
	int64_t rows = t->A.count - i * STEP, cols = t->B.count - j * STEP, line = p->ldc * (int64_t)sizeof(float);
	float *C = t->C + i * STEP * p->ldc + j * STEP;
	bool last = now.from + now.steps == fp_amx_steps(t->A.k);
	if (now.from > 0) {
		_tile_loadd(0, sums, 64);
		_tile_loadd(1, sums + SQUARE / 4, 64);
		_tile_loadd(2, sums + SQUARE / 2, 64);
		_tile_loadd(3, sums + 3 * SQUARE / 4, 64);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	if (p->split)
		add_split(t->A.high + a, t->A.low + a, t->B.high + b, t->B.low + b, now.steps);
	else
		add_rounded(t->A.high + a, t->B.high + b, now.steps);
	if (last && rows >= STEP && cols >= STEP && p->alpha == 1.0f && t->beta == 0.0f) {
		_tile_stored(0, C, line);
		_tile_stored(1, C + SIDE, line);
		_tile_stored(2, C + SIDE * p->ldc, line);
		_tile_stored(3, C + SIDE * p->ldc + SIDE, line);
		return;
	}
	_tile_stored(0, sums, 64);
	_tile_stored(1, sums + SQUARE / 4, 64);
	_tile_stored(2, sums + SQUARE / 2, 64);
	_tile_stored(3, sums + 3 * SQUARE / 4, 64);
	if (last)
		store_part(sums, p->alpha, t->beta, C, p->ldc, rows, cols);
}

/* Asks for part `at` of `parts` of a panel's part of a chunk, so that it is on its way to the L2 cache. */
static void fetch_part(const fp_amx_operand *o, int64_t panel, fp_amx_chunk chunk, int64_t at, int64_t parts)
{
	enum { LINE = 32 }; /* entries */
	int64_t lines = chunk.steps * (2 * TILE / LINE), from = lines * at / parts, to = lines * (at + 1) / parts;
	int64_t start = fp_amx_offset(o, panel, chunk);
	for (int64_t i = from; i < to; i++)
		__builtin_prefetch(o->high + start + i * LINE, 0, 2);
	for (int64_t i = from; i < to && o->split; i++)
		__builtin_prefetch(o->low + start + i * LINE, 0, 2);
}

/* Asks for the lines of a square of C: writing to a line first reads it. */
static void fetch_square(const fp_amx_product *t, int64_t i, int64_t j)
{
	int64_t rows = fp_smaller(t->A.count - i * STEP, STEP), cols = t->B.count - j * STEP;
	const float *C = t->C + i * STEP * t->product->ldc + j * STEP;
	for (int64_t r = 0; r < rows; r++, C += t->product->ldc) {
		__builtin_prefetch(C, 1, 2);
		if (cols > SIDE)
			__builtin_prefetch(C + SIDE, 1, 2);
	}
}

void fp_amx_multiply(const fp_amx_product *t, int64_t row, int64_t col, float *sums)
{
	int64_t rows = fp_smaller(t->rows, fp_amx_panels(t->A.count) - row),
			cols = fp_smaller(t->cols, fp_amx_panels(t->B.count) - col);
	bool kept = fp_amx_chunks(t->A.k) > 1;
	for (int64_t c = 0; c < fp_amx_chunks(t->A.k); c++) {
		fp_amx_chunk now = fp_amx_chunk_at(t->A.k, c), next = fp_amx_chunk_at(t->A.k, c + 1);
		for (int64_t j = 0; j < cols; j++)
			for (int64_t i = 0; i < rows; i++) {
				if (t->product->upper && (row + i) * STEP > (col + j) * STEP + STEP - 1 + t->skip)
					break;
				if (next.steps == 0)
					fetch_square(t, row + i, col + j);
				fetch_part(&t->A, row + i, next, j, cols);
				fetch_part(&t->B, col + j, next, i, rows);
				multiply_square(t, row + i, col + j, now, kept ? sums + (j * rows + i) * SQUARE : sums);
			}
	}
}

#endif
