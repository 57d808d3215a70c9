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
 */
#ifndef FP_BACKEND_CPU_AMX_H
#define FP_BACKEND_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

#define FP_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

enum {
	FP_AMX_SIDE = 16,                        /* rows of a tile */
	FP_AMX_STEP = 2 * FP_AMX_SIDE,           /* entries of k in a tile, and rows or columns in a panel */
	FP_AMX_TILE = FP_AMX_SIDE * FP_AMX_STEP, /* entries of a tile */
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

/* Packs the panel of this number. */
void fp_amx_pack(const fp_amx_operand *o, int64_t panel);

#endif
