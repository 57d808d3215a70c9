/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_sparsegpt.c: SparseGPT's sweep (Frantar and Alistarh, 2023) over W[rows × cols] with U upper, UᵀU = H⁻¹.
 *
 * The sweep takes the columns in blocks. Pruning entry (r, i) of a block leaves an error e, which updates the entries
 * right of it:
 *     e = W[r, i] / U[i, i]
 *     W[r, j] −= e·U[i, j],  j > i
 * Once the mask of the block is known, its rows are independent and run in parallel. One product, W −= E U, then
 * updates the columns right of the block.
 *
 * Unstructured: the mask is chosen by W²/U[i,i]² over all rows of the block. Block [a, b) prunes
 * ⌊s·rows·b⌋ − ⌊s·rows·a⌋ entries, so that the matrix has exactly ⌊s·rows·cols⌋ zeros. N:M: each group is chosen when
 * the sweep reaches it, by the weights at that time. A pattern that prunes nothing: the mask is given.
 *
 * With a grid the entries that are kept are rounded, and e = (W[r, i] − rounded) / U[i, i] for them.
 */
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/cpu_select.h"
#include "base/memory.h"

typedef struct sweep_block {
	fp_matrix U, W, mask; /* the whole matrices */
	int64_t begin, count; /* columns of the block */
	const fp_pattern *pattern;
	int64_t group;       /* the pattern's, or 0 if the mask of the block is known */
	const fp_grid *grid; /* NULL: none */
	float *errors;       /* rows × count */
} sweep_block;

static float score_of(float weight, float pivot)
{
	float ratio = weight / pivot;
	return ratio * ratio;
}

static void choose_group(const sweep_block *b, const float *w, int64_t first, uint8_t *mask)
{
	int64_t group = b->pattern->group;
	int64_t size = b->count - first < group ? b->count - first : group;
	float scores[FP_SWEEP_GROUP];
	for (int64_t i = 0; i < size; i++) {
		int64_t column = b->begin + first + i;
		scores[i] = score_of(w[first + i], fp_cpu_floats(b->U)[column * b->U.stride + column]);
	}
	fp_cpu_prune_groups(scores, size, b->pattern->kept, group, mask + first);
}

/* What becomes of an entry that is kept. */
static float kept_value(const sweep_block *b, int64_t row, int64_t column, float w)
{
	const fp_grid *grid = b->grid;
	if (!grid)
		return w;
	const int64_t group = column / (b->W.cols / grid->scale.cols);
	const float zero =
		fp_matrix_is_absent(grid->zero) ? 0.0F : fp_cpu_floats(grid->zero)[row * grid->zero.stride + group];
	return fp_grid_nearest(fp_grid_rule_of(grid->format, grid->dtype),
						   fp_cpu_floats(grid->scale)[row * grid->scale.stride + group], zero, w);
}

static void sweep_row(const sweep_block *b, const fp_cpu_loops *loops, int64_t row)
{
	float *w = fp_cpu_floats(b->W) + row * b->W.stride + b->begin;
	uint8_t *mask = fp_cpu_bytes(b->mask) + row * b->mask.stride + b->begin;
	float *errors = b->errors + row * b->count;
	for (int64_t i = 0; i < b->count; i++) {
		if (b->group > 0 && i % b->group == 0)
			choose_group(b, w, i, mask);
		const float value = mask[i] ? kept_value(b, row, b->begin + i, w[i]) : 0.0f;
		errors[i] = 0.0f;
		if (mask[i] && (!b->grid || value == w[i]))
			continue;
		const float *u = fp_cpu_floats(b->U) + (b->begin + i) * b->U.stride + b->begin;
		errors[i] = (w[i] - value) / u[i];
		w[i] = value;
		loops->axpby(w + i + 1, u + i + 1, b->count - i - 1, -errors[i], 1.0f);
	}
}

/* The mask of an unstructured block; `scores` holds rows × count entries. */
static fp_status choose_block(fp_backend *be, const sweep_block *b, float *scores)
{
	int64_t rows = b->W.rows, stride = b->W.stride;
	const float *u = fp_cpu_floats(b->U);
#pragma omp parallel for num_threads(be->threads) if (rows * b->count >= FP_CPU_PARALLEL_FROM)
	for (int64_t r = 0; r < rows; r++) {
		const float *w = fp_cpu_floats(b->W) + r * stride + b->begin;
		for (int64_t i = 0; i < b->count; i++)
			scores[r * b->count + i] = score_of(w[i], u[(b->begin + i) * b->U.stride + b->begin + i]);
	}
	int64_t zeros =
		fp_pattern_zeros(b->pattern, rows * (b->begin + b->count)) - fp_pattern_zeros(b->pattern, rows * b->begin);
	fp_cpu_scores view = {scores, rows, b->count, b->count};
	return fp_cpu_prune_smallest(be->ctx, be->threads, view, zeros, fp_cpu_bytes(b->mask) + b->begin, b->mask.stride);
}

fp_status fp_cpu_sparsegpt_sweep(fp_backend *be, fp_matrix U, const fp_pattern *pattern, const fp_grid *grid,
								 int64_t block, fp_matrix W, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cpu_is_f32(U) && fp_cpu_is_f32(W) && fp_cpu_is_u8(mask) && fp_cpu_same_shape(W, mask));
	FP_REQUIRE(be, fp_sweep_fits(U, W, pattern, grid, block, FP_SWEEP_GROUP));
	if (fp_matrix_size(W) == 0)
		return FP_OK;
	if (block > W.cols)
		block = W.cols;
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const bool chooses = fp_pattern_prunes(pattern), by_block = chooses && pattern->group == 0;
	fp_status status;
	fp_buffer errors = {.bytes = W.rows * block * (int64_t)sizeof(float)};
	float *scores = NULL;
	FP_TRY(fp_allocate(be->ctx, &errors.data, errors.bytes, 1));
	if (by_block)
		FP_TRY(FP_NEW(be->ctx, &scores, W.rows * block));
	for (int64_t begin = 0; begin < W.cols; begin += block) {
		int64_t count = W.cols - begin < block ? W.cols - begin : block;
		sweep_block b = {U, W, mask, begin, count, pattern, chooses ? pattern->group : 0, grid, errors.data};
		if (by_block)
			FP_TRY(choose_block(be, &b, scores));
#pragma omp parallel for num_threads(be->threads) if (W.rows * count >= FP_CPU_PARALLEL_FROM)
		for (int64_t r = 0; r < W.rows; r++)
			sweep_row(&b, loops, r);
		int64_t rest = W.cols - begin - count;
		fp_matrix E = {.buffer = &errors, .rows = W.rows, .cols = count, .stride = count, .dtype = FP_F32};
		FP_TRY(fp_cpu_gemm(be, -1.0f, E, FP_PLAIN, fp_matrix_cols(fp_matrix_rows(U, begin, count), begin + count, rest),
						   FP_PLAIN, 1.0f, fp_matrix_cols(W, begin + count, rest)));
	}

cleanup:
	fp_free(scores);
	fp_free(errors.data);
	return status;
}
