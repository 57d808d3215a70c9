/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_bf16_tiles.h: how operands are packed for products in BF16, and what a kernel does with them.
 *
 * The unit is a tile of 16 rows of 64 bytes, 16 × 16 words of two entries. A left tile has 16 rows × 32 entries of k, a
 * right tile 32 entries of k × 16 columns, in which the two entries of k that belong together lie side by side. As words,
 * a left tile is the transpose of a right one. A register of AMX holds a tile; for AVX512-BF16 a word of a left tile is
 * what an instruction broadcasts, and a row of a right tile is the vector that it multiplies.
 *
 * Operands are rounded and packed tile by tile, so that the kernel reads memory in order. A panel is 32 rows of op(A) or
 * 32 columns of op(B): two tiles for each step of k. Missing rows, columns and entries of k are zeros.
 *
 * The steps of k are cut into chunks of about the same size. The panels of a chunk lie one after the other: those that
 * the kernel uses together are then spread evenly over the sets of the L2 cache.
 */
#ifndef FP_BACKEND_CPU_BF16_TILES_H
#define FP_BACKEND_CPU_BF16_TILES_H

#include "backend/cpu/cpu_bf16.h"

#define FP_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

enum {
	FP_BF16_SIDE = 16,                            /* rows of a tile */
	FP_BF16_STEP = 2 * FP_BF16_SIDE,              /* entries of k in a tile, and rows or columns in a panel */
	FP_BF16_TILE = FP_BF16_SIDE * FP_BF16_STEP,   /* entries of a tile */
	FP_BF16_SQUARE = FP_BF16_STEP * FP_BF16_STEP, /* entries of C in one row panel and one column panel */
};

/* Lines of memory, `stride` bytes apart, that will be needed soon. */
typedef struct fp_bf16_lines {
	const char *at;
	int64_t count, stride;
	bool write;
} fp_bf16_lines;

enum { FP_BF16_SOON = 4 };

/* What a kernel computes: a square of C over the steps of a chunk. */
typedef struct fp_bf16_square {
	const uint16_t *a, *b;         /* a left and a right panel */
	const uint16_t *a_low, *b_low; /* what rounding drops; NULL: the operands are not split */
	int64_t steps;
	const float *start;               /* FP_BF16_STEP numbers a row; NULL: zeros */
	float *out;                       /* ← start + the product */
	int64_t stride;                   /* of `out` */
	fp_bf16_lines soon[FP_BF16_SOON]; /* the kernel asks for them, so that they are on their way to the L2 cache */
} fp_bf16_square;

/* Asks for the next `count` lines of square->soon, as far as there are any, and takes them off. */
static inline void fp_bf16_ask(fp_bf16_square *square, int64_t count)
{
	for (int i = 0; i < FP_BF16_SOON && count > 0; i++) {
		fp_bf16_lines *lines = &square->soon[i];
		for (; lines->count > 0 && count > 0; lines->count--, count--, lines->at += lines->stride) {
			if (lines->write)
				__builtin_prefetch(lines->at, 1, 2);
			else
				__builtin_prefetch(lines->at, 0, 2);
		}
	}
}

static inline int64_t fp_bf16_count_soon(const fp_bf16_square *square)
{
	int64_t count = 0;
	for (int i = 0; i < FP_BF16_SOON; i++)
		count += square->soon[i].count;
	return count;
}

/* The part of an engine that multiplies. */
typedef struct fp_bf16_kernel {
	int64_t chunk; /* the most steps of k in a chunk, by the size of the L1 cache */
	int64_t tasks; /* the fewest for each thread, if C has so many parts. A slower kernel can afford smaller tasks, with
					* which the threads end more evenly. */
	/* A thread calls multiply() between these two; NULL: there is nothing to do. */
	void (*begin)(void);
	void (*end)(void);
	void (*multiply)(fp_bf16_square *square);
} fp_bf16_kernel;

/* `count` rows of op(A) or columns of op(B), of k entries each. */
typedef struct fp_bf16_operand {
	const float *data;
	int64_t stride, count, k;
	int64_t longest; /* the most steps of k in a chunk */
	bool along;      /* k runs along the rows in memory */
	bool right;      /* op(B): right tiles */
	bool split;
	uint16_t *high, *low; /* the packed panels; with `split` also what rounding drops, rounded */
} fp_bf16_operand;

static inline int64_t fp_bf16_steps(int64_t k)
{
	return (k + FP_BF16_STEP - 1) / FP_BF16_STEP;
}

static inline int64_t fp_bf16_panels(int64_t count)
{
	return (count + FP_BF16_STEP - 1) / FP_BF16_STEP;
}

/* Some steps of k. */
typedef struct fp_bf16_chunk {
	int64_t from, steps;
} fp_bf16_chunk;

static inline int64_t fp_bf16_chunks(int64_t k, int64_t longest)
{
	return (fp_bf16_steps(k) + longest - 1) / longest;
}

/* Chunk number `c`; one without steps follows the last. */
static inline fp_bf16_chunk fp_bf16_chunk_at(const fp_bf16_operand *o, int64_t c)
{
	int64_t steps = fp_bf16_steps(o->k), chunks = fp_bf16_chunks(o->k, o->longest);
	int64_t from = c < chunks ? steps * c / chunks : steps;
	return (fp_bf16_chunk){from, c < chunks ? steps * (c + 1) / chunks - from : 0};
}

/* Where a panel's part of a chunk begins. */
static inline int64_t fp_bf16_offset(const fp_bf16_operand *o, int64_t panel, fp_bf16_chunk chunk)
{
	return (fp_bf16_panels(o->count) * chunk.from + panel * chunk.steps) * 2 * FP_BF16_TILE;
}

/* Packs the panel of this number. If `other` is not NULL, it has the same numbers for the other side, and its panel is
 * packed too, while they are in the cache. */
void fp_bf16_pack(const fp_bf16_operand *o, const fp_bf16_operand *other, int64_t panel);

/* A product of packed operands. */
typedef struct fp_bf16_product {
	const fp_bf16_kernel *kernel;
	const fp_cpu_product *product;
	fp_bf16_operand A, B;
	float *C; /* of this piece */
	float beta;
	int64_t skip;       /* with `upper`: column j of this piece is wanted in rows up to j + skip */
	int64_t rows, cols; /* of a task, in panels */
	float *sums;        /* of a task, for each thread */
} fp_bf16_product;

/* One task: the part of C that begins at these panels. The kernel has begun in this thread. sums: a square for each of
 * the task's squares, or if k has one chunk only, one for all. */
void fp_bf16_multiply_task(const fp_bf16_product *t, int64_t row, int64_t col, float *sums);

/* The functions of an engine with a kernel (cpu_bf16_multiply.c). */
fp_status fp_bf16_multiply(fp_cpu_bf16 *opened, fp_context *ctx, const fp_cpu_product *product);
void fp_bf16_multiply_alone(const fp_cpu_bf16_engine *engine, const fp_cpu_product *product, void *space);
int64_t fp_bf16_space(const fp_cpu_bf16_engine *engine, const fp_cpu_product *product);

#endif
