/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_bf16_task.c: one task of a product of packed operands (cpu_bf16_tiles.h): its squares of C, chunk by chunk of k.
 * The order of the sums depends on k only.
 */
#include "backend/cpu/cpu_bf16_tiles.h"

#include "base/numbers.h"
#include <stddef.h>

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

enum { SIDE = FP_BF16_SIDE, STEP = FP_BF16_STEP, TILE = FP_BF16_TILE, SQUARE = FP_BF16_SQUARE };

static inline __mmask16 first(int64_t count)
{
	return count >= SIDE ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* C ← α sums + β C for rows × cols of a square. */
FP_AVX512_BF16 static void store_part(const float *sums, float alpha, float beta, float *C, int64_t ldc, int64_t rows,
									  int64_t cols)
{
	for (int64_t i = 0; i < rows && i < STEP; i++)
		for (int64_t j = 0; j < STEP; j += SIDE) {
			__mmask16 mask = first(cols - j);
			__m512 value = _mm512_mul_ps(_mm512_set1_ps(alpha), _mm512_load_ps(sums + i * STEP + j));
			if (beta != 0.0f)
				value = _mm512_fmadd_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(mask, C + i * ldc + j), value);
			_mm512_mask_storeu_ps(C + i * ldc + j, mask, value);
		}
}

/* A task, the chunk that is multiplied now and the next one. */
typedef struct place {
	int64_t row, col, rows, cols; /* panels */
	fp_bf16_chunk now, next;
} place;

/* Part `at` of `parts` of a panel's part of a chunk. */
static fp_bf16_lines part_of(const fp_bf16_operand *o, const uint16_t *packed, int64_t panel, fp_bf16_chunk chunk,
							 int64_t at, int64_t parts)
{
	enum { LINE = 32 }; /* entries */
	int64_t lines = chunk.steps * (2 * TILE / LINE), from = lines * at / parts, to = lines * (at + 1) / parts;
	return (fp_bf16_lines){.at = (const char *)(packed + fp_bf16_offset(o, panel, chunk) + from * LINE),
						   .count = to - from,
						   .stride = LINE * sizeof(uint16_t)};
}

/* The next chunk's lines, a part with each square, and after the last chunk those of the square in C: writing to a line
 * first reads it. */
static void add_soon(const fp_bf16_product *t, const place *at, int64_t i, int64_t j, fp_bf16_lines *soon)
{
	const fp_bf16_operand *A = &t->A, *B = &t->B;
	int64_t row = at->row + i, col = at->col + j;
	if (at->next.steps == 0) {
		int64_t rows = fp_smaller(A->count - row * STEP, STEP), cols = B->count - col * STEP, ldc = t->product->ldc;
		const float *C = t->C + row * STEP * ldc + col * STEP;
		soon[0] = (fp_bf16_lines){(const char *)C, rows, ldc * (int64_t)sizeof *C, true};
		soon[1] = (fp_bf16_lines){(const char *)(C + SIDE), cols > SIDE ? rows : 0, ldc * (int64_t)sizeof *C, true};
		return;
	}
	soon[0] = part_of(A, A->high, row, at->next, j, at->cols);
	soon[1] = part_of(B, B->high, col, at->next, i, at->rows);
	if (t->product->split) {
		soon[2] = part_of(A, A->low, row, at->next, j, at->cols);
		soon[3] = part_of(B, B->low, col, at->next, i, at->rows);
	}
}

/* Square i, j of the task, one chunk of it. `sums` hold the sums between two chunks: in C itself they would lie in lines
 * that displace each other from the cache. */
static void multiply_square(const fp_bf16_product *t, const place *at, int64_t i, int64_t j, float *sums)
{
	const fp_cpu_product *p = t->product;
	int64_t row = at->row + i, col = at->col + j;
	int64_t a = fp_bf16_offset(&t->A, row, at->now), b = fp_bf16_offset(&t->B, col, at->now);
	int64_t rows = t->A.count - row * STEP, cols = t->B.count - col * STEP;
	float *C = t->C + row * STEP * p->ldc + col * STEP;
	bool last = at->next.steps == 0;
	bool direct = last && rows >= STEP && cols >= STEP && p->alpha == 1.0f && t->beta == 0.0f;
	fp_bf16_square square = {.a = t->A.high + a,
							 .b = t->B.high + b,
							 .a_low = p->split ? t->A.low + a : NULL,
							 .b_low = p->split ? t->B.low + b : NULL,
							 .steps = at->now.steps,
							 .start = at->now.from > 0 ? sums : NULL,
							 .out = direct ? C : sums,
							 .stride = direct ? p->ldc : STEP};
	if (p->lower_A) /* the other steps would add zeros */
		square.steps =
			fp_smaller(square.steps, fp_larger(1, fp_bf16_steps((row + 1) * STEP + p->reach) - at->now.from));
	add_soon(t, at, i, j, square.soon);
	t->kernel->multiply(&square);
	if (last && !direct)
		store_part(sums, p->alpha, t->beta, C, p->ldc, rows, cols);
}

void fp_bf16_multiply_task(const fp_bf16_product *t, int64_t row, int64_t col, float *sums)
{
	place at = {.row = row,
				.col = col,
				.rows = fp_smaller(t->rows, fp_bf16_panels(t->A.count) - row),
				.cols = fp_smaller(t->cols, fp_bf16_panels(t->B.count) - col)};
	int64_t chunks = fp_bf16_chunks(t->A.k, t->A.longest);
	bool kept = chunks > 1;
	for (int64_t c = 0; c < chunks; c++) {
		at.now = fp_bf16_chunk_at(&t->A, c);
		at.next = fp_bf16_chunk_at(&t->A, c + 1);
		for (int64_t j = 0; j < at.cols; j++)
			for (int64_t i = 0; i < at.rows; i++) {
				if (t->product->upper && (row + i) * STEP > (col + j) * STEP + STEP - 1 + t->skip)
					break;
				if (t->product->lower_C && (col + j) * STEP > (row + i) * STEP + STEP - 1 + t->product->reach)
					continue;
				multiply_square(t, &at, i, j, kept ? sums + (j * at.rows + i) * SQUARE : sums);
			}
	}
}

#endif
