/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_amx.h: the tiles of AMX, the matrix unit of Xeons since Sapphire Rapids, and how operands are packed for it.
 *
 * AMX has eight registers, tiles of 16 rows of 64 bytes. One instruction adds to a tile of 16 × 16 floats the product of
 * a left tile of 16 rows × 32 entries of k and a right tile of 32 entries of k × 16 columns, in which the two entries of
 * k that belong together lie side by side. As 16 × 16 words of two entries, a left tile is the transpose of a right one.
 *
 * Operands are rounded and packed tile by tile, so that the kernel reads memory in order. A panel is 32 rows of op(A) or
 * 32 columns of op(B): two tiles for each step of k. Missing rows, columns and entries of k are zeros.
 *
 * The steps of k are cut into chunks of about the same size. The panels of a chunk lie one after the other: those that
 * the kernel uses together are then spread evenly over the sets of the L2 cache.
 */
#ifndef FP_BACKEND_CPU_AMX_H
#define FP_BACKEND_CPU_AMX_H

#include "backend/cpu/cpu_bf16.h"

#define FP_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

enum {
	FP_AMX_SIDE = 16,                          /* rows of a tile */
	FP_AMX_STEP = 2 * FP_AMX_SIDE,             /* entries of k in a tile, and rows or columns in a panel */
	FP_AMX_TILE = FP_AMX_SIDE * FP_AMX_STEP,   /* entries of a tile */
	FP_AMX_SQUARE = FP_AMX_STEP * FP_AMX_STEP, /* entries of C in one row panel and one column panel */
	FP_AMX_CHUNK = 16, /* the most steps of k in a chunk: two panels of so many steps fill the L1 cache */
};

/* `count` rows of op(A) or columns of op(B), of k entries each. */
typedef struct fp_amx_operand {
	const float *data;
	int64_t stride, count, k;
	bool along; /* k runs along the rows in memory */
	bool right; /* op(B): right tiles */
	bool split;
	uint16_t *high, *low; /* the packed panels; with `split` also what rounding drops, rounded */
} fp_amx_operand;

static inline int64_t fp_amx_steps(int64_t k)
{
	return (k + FP_AMX_STEP - 1) / FP_AMX_STEP;
}

static inline int64_t fp_amx_panels(int64_t count)
{
	return (count + FP_AMX_STEP - 1) / FP_AMX_STEP;
}

/* Some steps of k. */
typedef struct fp_amx_chunk {
	int64_t from, steps;
} fp_amx_chunk;

static inline int64_t fp_amx_chunks(int64_t k)
{
	return (fp_amx_steps(k) + FP_AMX_CHUNK - 1) / FP_AMX_CHUNK;
}

/* Chunk number `c`; one without steps follows the last. */
static inline fp_amx_chunk fp_amx_chunk_at(int64_t k, int64_t c)
{
	int64_t steps = fp_amx_steps(k), chunks = fp_amx_chunks(k), from = c < chunks ? steps * c / chunks : steps;
	return (fp_amx_chunk){from, c < chunks ? steps * (c + 1) / chunks - from : 0};
}

/* Where a panel's part of a chunk begins. */
static inline int64_t fp_amx_offset(const fp_amx_operand *o, int64_t panel, fp_amx_chunk chunk)
{
	return (fp_amx_panels(o->count) * chunk.from + panel * chunk.steps) * 2 * FP_AMX_TILE;
}

/* Packs the panel of this number. If `other` is not NULL, it has the same numbers for the other side, and its panel is
 * packed too, while they are in the cache. */
void fp_amx_pack(const fp_amx_operand *o, const fp_amx_operand *other, int64_t panel);

/* A product of packed operands. */
typedef struct fp_amx_product {
	const fp_cpu_product *product;
	fp_amx_operand A, B;
	float *C; /* of this piece */
	float beta;
	int64_t skip;       /* with `upper`: column j of this piece is wanted in rows up to j + skip */
	int64_t rows, cols; /* of a task, in panels */
	float *sums;        /* of a task, for each thread */
} fp_amx_product;

/* A thread calls fp_amx_multiply() between these two. */
void fp_amx_begin(void);
void fp_amx_end(void);
/* One task: the part of C that begins at these panels. sums: a square for each of its squares, or if k has one chunk only,
 * one for all. */
void fp_amx_multiply(const fp_amx_product *t, int64_t row, int64_t col, float *sums);

#endif
