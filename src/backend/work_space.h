/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work_space.h: what a device's products take beside their operands while they run. The device takes it by these
 * numbers and a plan of the memory expects it by them; on the CPU all of them are 0.
 */
#ifndef FP_BACKEND_WORK_SPACE_H
#define FP_BACKEND_WORK_SPACE_H

#include "backend/backend.h"

#define FP_PANEL_BYTES ((int64_t)1 << 30) /* the most that a product's right operand takes in pieces of 16 bits */
#define FP_SCORE_BYTES ((int64_t)1 << 30) /* the most that attention's scores take in float */
enum { FP_QUERY_BLOCK = 512, FP_LEAST_QUERIES = 16 };

/* How many queries of a sequence attention takes at a time; *entries ← scores of all heads for them. A window shortens
 * the rows of scores, and a long context takes fewer queries. */
static inline int64_t fp_query_block(const fp_attention_shape *shape, int64_t *entries)
{
	int64_t reach = shape->length, queries = FP_QUERY_BLOCK;
	if (queries > shape->length)
		queries = shape->length;
	if (shape->window > 0 && shape->window + FP_QUERY_BLOCK < reach)
		reach = shape->window + FP_QUERY_BLOCK;
	while (queries > FP_LEAST_QUERIES && queries * reach * shape->heads * (int64_t)sizeof(float) > FP_SCORE_BYTES)
		queries /= 2;
	*entries = queries * reach * shape->heads;
	return queries;
}

/* Bytes for each entry of an operand in float: 2 where it is rounded, 6 where it is split in three. */
static inline int64_t fp_operand_bytes(const fp_backend *be, fp_use use)
{
	if (!be->asynchronous || use == FP_USE_EXACT || be->precision == FP_PRECISION_FP32)
		return 0;
	if (use == FP_USE_REFINEMENT || be->precision == FP_PRECISION_BF16X3)
		return 6;
	return use == FP_USE_ACTIVATION && be->precision == FP_PRECISION_BF16 ? 2 : 0;
}

/* Of a product of operands in float with so many entries; 0 for one that is in 16 bits already. */
static inline int64_t fp_product_bytes(const fp_backend *be, fp_use use, int64_t left, int64_t right)
{
	int64_t entry = fp_operand_bytes(be, use), panel = entry * right;
	if (entry > 2 && panel > FP_PANEL_BYTES)
		panel = FP_PANEL_BYTES;
	return entry * left + panel;
}

/* Of attention's gradients: two blocks of scores, and the rounded operands. */
static inline int64_t fp_attention_backward_bytes(const fp_backend *be, const fp_attention_shape *shape)
{
	int64_t entries, width = 2 * (shape->heads + shape->kv_heads) * shape->head_dim;
	if (!be->asynchronous)
		return 0;
	(void)fp_query_block(shape, &entries);
	int64_t operands = be->precision == FP_PRECISION_BF16 ? 2 * shape->sequences * shape->length * width : 0;
	return 2 * entries * (int64_t)sizeof(float) + operands;
}

/* Of attention itself, on operands in the type of activations. A device has a kernel for rounded ones that takes none,
 * for the usual heads. */
static inline int64_t fp_attention_bytes(const fp_backend *be, const fp_attention_shape *shape)
{
	int64_t entries;
	bool rounds = be->precision == FP_PRECISION_BF16;
	if (!be->asynchronous || (rounds && (shape->head_dim == 64 || shape->head_dim == 128)))
		return 0;
	(void)fp_query_block(shape, &entries);
	return entries * (rounds ? 6 : 4);
}

#endif
