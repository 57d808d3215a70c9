/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_decode.h: products of held weights with one to eight rows, by blocks of four outputs.
 *
 * A block is FP_CPU_BLOCK rows of W, cut into pieces of FP_CPU_PIECE columns (the last is padded with zeros). A thread
 * reads its blocks from beginning to end, so that each form lies in memory in the order in which it is read, as one or
 * two streams, whatever the lengths of rows:
 *
 *     dense    values: [row][column], rows padded to whole pieces
 *     mask     positions: for each block and piece, a word of 32 bits for each of its four rows
 *              values: those of a piece's first row, of its second, …, then those of the next piece
 *              offsets: the number of values before each block
 *     2:4      the same, but two values for each group of four, so that blocks need no offsets; the four bits of a
 *              group say as much as two positions of two bits do, and are what the loops want
 *
 * Zeros are put back before the product, so that every form gives the same bits as the dense one.
 */
#ifndef FP_BACKEND_CPU_DECODE_H
#define FP_BACKEND_CPU_DECODE_H

#include "backend/backend.h"

enum {
	FP_CPU_BLOCK = 4,    /* rows */
	FP_CPU_PIECE = 32,   /* columns */
	FP_CPU_SLACK = 128,  /* bytes behind the last value, which loops may read */
	FP_CPU_TOGETHER = 4, /* rows of X at once */
	FP_CPU_AHEAD = 4096, /* bytes; how far ahead values are prefetched, where they are one stream */
	FP_CPU_NEAR = 1024,  /* the same where each of the four rows is a stream of its own */
};

/* One block of a held matrix. */
typedef struct fp_cpu_block {
	const char *values;
	const uint8_t *positions;
	int64_t pieces;
	int64_t stride; /* bytes of a row; dense only */
} fp_cpu_block;

/* y[b][r] ← Σⱼ x[b][j]·W[r][j] for the four rows of a block and `batch` (1 to FP_CPU_TOGETHER) rows of x, which are
 * x_stride floats apart, arranged, and padded with zeros to whole pieces. */
typedef void (*fp_cpu_block_loop)(const fp_cpu_block *block, const float *x, int64_t x_stride, int batch,
								  float y[][FP_CPU_BLOCK]);

typedef struct fp_cpu_decode_loops {
	const char *name; /* "plain", "avx2", "avx512" */
	bool even_odd;    /* of each piece of x, the even columns come before the odd ones, for BF16 */
	fp_cpu_block_loop multiply[FP_HELD_FORMS][3]; /* by form and fp_dtype: F32, F16, BF16 */
} fp_cpu_decode_loops;

/* LOOP(name, form, dtype) for every loop of an instruction set, and the table of those names. */
#define FP_CPU_EACH_LOOP(LOOP)                                                                                         \
	LOOP(dense_f32, FP_HELD_DENSE, FP_F32)                                                                             \
	LOOP(dense_f16, FP_HELD_DENSE, FP_F16)                                                                             \
	LOOP(dense_bf16, FP_HELD_DENSE, FP_BF16)                                                                           \
	LOOP(mask_f32, FP_HELD_MASK, FP_F32)                                                                               \
	LOOP(mask_f16, FP_HELD_MASK, FP_F16)                                                                               \
	LOOP(mask_bf16, FP_HELD_MASK, FP_BF16)                                                                             \
	LOOP(pairs_f32, FP_HELD_TWO_OF_FOUR, FP_F32)                                                                       \
	LOOP(pairs_f16, FP_HELD_TWO_OF_FOUR, FP_F16)                                                                       \
	LOOP(pairs_bf16, FP_HELD_TWO_OF_FOUR, FP_BF16)
#define FP_CPU_LOOP_TABLE                                                                                              \
	{                                                                                                                  \
		{dense_f32, dense_f16, dense_bf16}, {mask_f32, mask_f16, mask_bf16}, {pairs_f32, pairs_f16, pairs_bf16},       \
	}
/* A loop whose multiply() is compiled for each batch of its own; TARGET: the file's instruction set. */
#define FP_CPU_LOOP_BY_BATCH(name, form, dtype)                                                                        \
	TARGET static void name(const fp_cpu_block *block, const float *x, int64_t x_stride, int batch,                    \
							float y[][FP_CPU_BLOCK])                                                                   \
	{                                                                                                                  \
		switch (batch) {                                                                                               \
		case 1:                                                                                                        \
			multiply(form, dtype, 1, block, x, x_stride, y);                                                           \
			return;                                                                                                    \
		case 2:                                                                                                        \
			multiply(form, dtype, 2, block, x, x_stride, y);                                                           \
			return;                                                                                                    \
		case 3:                                                                                                        \
			multiply(form, dtype, 3, block, x, x_stride, y);                                                           \
			return;                                                                                                    \
		default:                                                                                                       \
			multiply(form, dtype, 4, block, x, x_stride, y);                                                           \
			return;                                                                                                    \
		}                                                                                                              \
	}

/* Those of an instruction set; the processor must have it. */
extern const fp_cpu_decode_loops fp_cpu_decode_plain;
#if defined(__x86_64__)
extern const fp_cpu_decode_loops fp_cpu_decode_avx2, fp_cpu_decode_avx512;
#endif

/* The best for this processor. Borrowed. */
const fp_cpu_decode_loops *fp_cpu_decode_loops_best(void);
/* Those of one instruction set, or NULL if the processor or the build lacks it. Borrowed. For tests. */
const fp_cpu_decode_loops *fp_cpu_decode_loops_named(const char *name);

static inline int64_t fp_cpu_pieces(int64_t cols)
{
	return (cols + FP_CPU_PIECE - 1) / FP_CPU_PIECE;
}
static inline int64_t fp_cpu_block_count(int64_t rows)
{
	return (rows + FP_CPU_BLOCK - 1) / FP_CPU_BLOCK;
}

#endif
