/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work_space.h: workspace of a device's products, in bytes. The device allocates by these functions and memory plans
 * estimate by them. On the CPU all but the first return 0.
 */
#ifndef FP_BACKEND_WORK_SPACE_H
#define FP_BACKEND_WORK_SPACE_H

#include "backend/backend.h"

/* What the CPU keeps for rounded products: two packed operands of 2^24 entries, two BF16 numbers each, and half a MiB of
 * sums for each thread. */
static inline int64_t fp_packed_bytes(const fp_backend *be)
{
	return be->asynchronous || be->precision == FP_PRECISION_FP32 ? 0 : ((int64_t)256 + be->threads) << 19;
}

#define FP_PANEL_BYTES ((int64_t)1 << 30) /* limit for the right operand of a split product */
#define FP_SCORE_BYTES ((int64_t)1 << 30) /* limit for attention's scores in float */
enum { FP_QUERY_BLOCK = 512, FP_MIN_QUERIES = 16 };

/* Queries of a sequence that attention processes at a time; *entries ← the number of their scores over all heads. A
 * window shortens the rows of scores, and a long context reduces the number of queries. */
static inline int64_t fp_query_block(const fp_attention_shape *shape, int64_t *entries)
{
	int64_t reach = fp_attention_keys(shape), queries = FP_QUERY_BLOCK;
	if (queries > shape->length)
		queries = shape->length;
	if (shape->window > 0 && shape->window + FP_QUERY_BLOCK < reach)
		reach = shape->window + FP_QUERY_BLOCK;
	while (queries > FP_MIN_QUERIES && queries * reach * shape->heads * (int64_t)sizeof(float) > FP_SCORE_BYTES)
		queries /= 2;
	*entries = queries * reach * shape->heads;
	return queries;
}

/* Workspace for each entry of an F32 operand: 2 bytes if it is rounded, 6 if it is split in three. */
static inline int64_t fp_operand_bytes(const fp_backend *be, fp_use use)
{
	if (!be->asynchronous || use == FP_USE_EXACT || be->precision == FP_PRECISION_FP32)
		return 0;
	if (use == FP_USE_REFINEMENT || be->precision == FP_PRECISION_BF16X3)
		return 6;
	return use == FP_USE_ACTIVATION && be->precision == FP_PRECISION_BF16 ? 2 : 0;
}

/* Workspace of a product of F32 operands with so many entries; pass 0 for an operand that has 16 bits already. */
static inline int64_t fp_product_bytes(const fp_backend *be, fp_use use, int64_t left, int64_t right)
{
	int64_t entry = fp_operand_bytes(be, use), panel = entry * right;
	if (entry > 2 && panel > FP_PANEL_BYTES)
		panel = FP_PANEL_BYTES;
	return entry * left + panel;
}

/* Rows of a strip of a symmetric n × n product, n > 0, of which each strip is computed from the diagonal on. Narrow strips
 * compute less below the diagonal, but a product must be large enough to keep a device busy: 2^23 entries are two tiles of
 * 128 × 256 for each multiprocessor of an H200. */
static inline int64_t fp_symmetric_strip(int64_t n)
{
	const int64_t entries = (int64_t)1 << 23, fewest_rows = 1024;
	int64_t rows = (entries / n + 127) / 128 * 128;
	return rows > fewest_rows ? rows : fewest_rows;
}

/* Workspace of an inverse or its factor: the blocks beside the diagonal at every level of halving, or a panel of the
 * result. Rounding halves up to whole leaves adds less than a leaf of rows. */
enum { FP_INVERSE_LEAF = 128 };
static inline int64_t fp_inverse_bytes(const fp_backend *be, int64_t n)
{
	return be->asynchronous ? (n * n / 3 + FP_INVERSE_LEAF * n) * (int64_t)sizeof(float) : 0;
}

/* Workspace of attention's gradients: two blocks of scores, with a soft cap three, and in bf16 the sums of dK and dV in
 * float. */
static inline int64_t fp_attention_backward_bytes(const fp_backend *be, const fp_attention_shape *shape)
{
	int64_t entries, width = 2 * shape->kv_heads * shape->head_dim;
	if (!be->asynchronous)
		return 0;
	(void)fp_query_block(shape, &entries);
	int64_t sums = be->precision == FP_PRECISION_BF16 ? shape->sequences * shape->length * width : 0;
	return ((shape->soft_cap > 0 ? 3 : 2) * entries + sums) * (int64_t)sizeof(float);
}

/* Workspace of attention with operands in the type of activations. For bf16 and the usual head sizes a device has a
 * kernel that needs none. */
static inline int64_t fp_attention_bytes(const fp_backend *be, const fp_attention_shape *shape)
{
	int64_t entries;
	bool rounds = be->precision == FP_PRECISION_BF16;
	if (!be->asynchronous ||
		(rounds && fp_attention_is_plain(shape) && (shape->head_dim == 64 || shape->head_dim == 128)))
		return 0;
	(void)fp_query_block(shape, &entries);
	return entries * (rounds ? 6 : 4);
}

#endif
