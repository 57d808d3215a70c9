/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_decode_pack.c: brings weights into the forms of cpu_decode.h, and back. */
#include "backend/cpu/cpu_backend.h"

#include "base/memory.h"
#include "base/numbers.h"
#include <string.h>

/* A row of W as `dtype` in `out`, which has room for whole pieces and is zero behind the row. */
static void fetch_row(char *out, fp_dtype dtype, fp_matrix W, int64_t row)
{
	const char *in = (const char *)W.buffer->data + (W.offset + row * W.stride) * fp_dtype_size(W.dtype);
	if (W.dtype == dtype) {
		memcpy(out, in, (size_t)(W.cols * fp_dtype_size(dtype)));
	} else if (dtype == FP_F32) {
		fp_to_float((float *)(void *)out, in, W.dtype, W.cols);
	} else if (W.dtype == FP_F32) {
		fp_from_float(out, dtype, (const float *)(const void *)in, W.cols);
	} else {
		float piece[FP_CPU_PIECE];
		for (int64_t j = 0; j < W.cols; j += FP_CPU_PIECE) {
			int64_t size = fp_smaller(FP_CPU_PIECE, W.cols - j);
			fp_to_float(piece, in + j * fp_dtype_size(W.dtype), W.dtype, size);
			fp_from_float(out + j * fp_dtype_size(dtype), dtype, piece, size);
		}
	}
}

static bool is_zero(const char *entry, int64_t size)
{
	return size == 2 ? entry[0] == 0 && entry[1] == 0
					 : entry[0] == 0 && entry[1] == 0 && entry[2] == 0 && entry[3] == 0;
}

/* --- what is written of one row's piece; each returns the place behind its values ------------------------------- */

static char *pack_mask(char *values, uint8_t *positions, const char *piece, int64_t size)
{
	uint32_t mask = 0;
	for (int j = 0; j < FP_CPU_PIECE; j++) {
		if (is_zero(piece + j * size, size))
			continue;
		mask |= (uint32_t)1 << j;
		memcpy(values, piece + j * size, (size_t)size);
		values += size;
	}
	memcpy(positions, &mask, sizeof mask);
	return values;
}

static char *pack_pairs(char *values, uint8_t *positions, const char *piece, int64_t size)
{
	for (int group = 0; group < FP_CPU_PIECE / 4; group++) {
		int place[2] = {0, 0}, found = 0;
		for (int j = 0; j < 4 && found < 2; j++)
			if (!is_zero(piece + (group * 4 + j) * size, size))
				place[found++] = j;
		if (found == 0)
			place[1] = 1;
		else if (found == 1 && place[0] == 3) /* a zero of the same group completes the pair */
			place[0] = 2, place[1] = 3;
		else if (found == 1)
			place[1] = place[0] + 1;
		for (int i = 0; i < 2; i++, values += size)
			memcpy(values, piece + (group * 4 + place[i]) * size, (size_t)size);
		positions[group / 2] |= (uint8_t)((1 << place[0] | 1 << place[1]) << (group % 2 * 4));
	}
	return values;
}

/* --- back ------------------------------------------------------------------------------------------------------- */

static const char *unpack_mask(char *piece, const char *values, uint32_t mask, int64_t size)
{
	for (int j = 0; j < FP_CPU_PIECE; j++) {
		if (mask >> j & 1) {
			memcpy(piece + j * size, values, (size_t)size);
			values += size;
		} else {
			memset(piece + j * size, 0, (size_t)size);
		}
	}
	return values;
}

/* --- whole matrices --------------------------------------------------------------------------------------------- */

typedef struct packing {
	fp_backend *be;
	fp_held *held;
	fp_matrix W;
	int64_t size;   /* of an entry, in bytes */
	int64_t pieces; /* of a row */
	int64_t blocks;
	char *rows;       /* of the block at hand, one set for each thread */
	int64_t *offsets; /* values before each block, for masks */
} packing;

static char *rows_of_thread(const packing *p, int64_t thread)
{
	return p->rows + thread * FP_CPU_BLOCK * p->pieces * FP_CPU_PIECE * p->size;
}

/* The rows of a block as the held type; rows behind the last are zero. */
static char *fetch_block(const packing *p, int64_t thread, int64_t block)
{
	char *rows = rows_of_thread(p, thread);
	int64_t length = p->pieces * FP_CPU_PIECE * p->size;
	for (int64_t r = 0; r < FP_CPU_BLOCK; r++) {
		int64_t row = block * FP_CPU_BLOCK + r;
		if (row < p->W.rows)
			fetch_row(rows + r * length, p->held->dtype, p->W, row);
		else
			memset(rows + r * length, 0, (size_t)length);
	}
	return rows;
}

/* Nonzeros of each block and whether 2:4 is possible. */
static void count_blocks(const packing *p, fp_held_counts *total)
{
	int64_t length = p->pieces * FP_CPU_PIECE * p->size;
	bool pairs = p->W.cols % 4 == 0;
	int64_t nonzeros = 0;
	int threads = p->be->threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : nonzeros) reduction(&& : pairs)
	for (int64_t t = 0; t < threads; t++) {
		for (int64_t block = t; block < p->blocks; block += threads) {
			fp_held_counts counts = {0, pairs};
			const char *rows = fetch_block(p, t, block);
			for (int64_t r = 0; r < FP_CPU_BLOCK; r++)
				fp_held_count(&counts, rows + r * length, p->W.cols, p->size);
			p->offsets[block + 1] = counts.nonzeros;
			nonzeros += counts.nonzeros;
			pairs = pairs && counts.two_of_four;
		}
	}
	for (int64_t block = 0; block < p->blocks; block++)
		p->offsets[block + 1] += p->offsets[block];
	*total = (fp_held_counts){nonzeros, pairs};
}

static void pack_block(const packing *p, const char *rows, int64_t block)
{
	const fp_held *held = p->held;
	int64_t length = p->pieces * FP_CPU_PIECE * p->size;
	char *values = (char *)held->values.buffer->data;
	if (held->form == FP_HELD_DENSE) {
		memcpy(values + block * FP_CPU_BLOCK * length, rows, (size_t)(FP_CPU_BLOCK * length));
		return;
	}
	uint8_t *positions = fp_cpu_bytes(held->positions) + block * p->pieces * FP_CPU_BLOCK * 4;
	values += held->form == FP_HELD_MASK ? p->offsets[block] * p->size : block * FP_CPU_BLOCK * length / 2;
	for (int64_t i = 0; i < p->pieces; i++)
		for (int64_t r = 0; r < FP_CPU_BLOCK; r++, positions += 4) {
			const char *piece = rows + r * length + i * FP_CPU_PIECE * p->size;
			values = held->form == FP_HELD_MASK ? pack_mask(values, positions, piece, p->size)
												: pack_pairs(values, positions, piece, p->size);
		}
}

static fp_status allocate_parts(const packing *p)
{
	fp_status status;
	fp_held *held = p->held;
	int64_t entries = p->blocks * FP_CPU_BLOCK * p->pieces * FP_CPU_PIECE;
	int64_t values = held->form == FP_HELD_DENSE ? entries : held->form == FP_HELD_MASK ? held->nonzeros : entries / 2;
	FP_TRY(fp_matrix_new(p->be, &held->values, 1, values * p->size + FP_CPU_SLACK, FP_U8));
	FP_TRY(p->be->memory->fill(p->be, held->values, 0.0F)); /* entries that a form leaves out are zero */
	held->bytes = values * p->size;
	if (held->form != FP_HELD_DENSE) {
		FP_TRY(fp_matrix_new(p->be, &held->positions, 1, entries / 8, FP_U8));
		FP_TRY(p->be->memory->fill(p->be, held->positions, 0.0F));
		held->bytes += entries / 8;
	}
	if (held->form == FP_HELD_MASK) {
		FP_TRY(fp_matrix_new(p->be, &held->offsets, 1, p->blocks + 1, FP_I64));
		memcpy(held->offsets.buffer->data, p->offsets, (size_t)(p->blocks + 1) * sizeof *p->offsets);
		held->bytes += p->blocks * (int64_t)sizeof *p->offsets;
	}
cleanup:
	return status;
}

fp_status fp_cpu_hold(fp_backend *be, fp_held *out, fp_matrix W, fp_dtype dtype, fp_held_form form)
{
	fp_status status;
	packing p = {be, out, W, fp_dtype_size(dtype), fp_cpu_pieces(W.cols), fp_cpu_block_count(W.rows), NULL, NULL};
	fp_held_counts counts;
	int threads = be->threads;
	memset(out, 0, sizeof *out);
	FP_REQUIRE(be, fp_dtype_is_weight(dtype) && fp_dtype_is_weight(W.dtype) && fp_cpu_is_view(W, W.dtype));
	out->dtype = dtype;
	out->rows = W.rows;
	out->cols = W.cols;
	FP_TRY(FP_NEW(be->ctx, &p.rows, threads * FP_CPU_BLOCK * p.pieces * FP_CPU_PIECE * p.size));
	FP_TRY(FP_NEW(be->ctx, &p.offsets, p.blocks + 1));
	count_blocks(&p, &counts);
	out->nonzeros = counts.nonzeros;
	out->form = form == FP_HELD_SMALLEST ? fp_held_choose(&counts, W.rows, W.cols, p.size) : form;
	if (out->form == FP_HELD_TWO_OF_FOUR && !counts.two_of_four) {
		status = fp_fail(be->ctx, FP_ERROR_INTERNAL, "%s: the matrix is not 2:4", __func__);
		goto cleanup;
	}
	FP_TRY(allocate_parts(&p));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
	for (int64_t t = 0; t < threads; t++)
		for (int64_t block = t; block < p.blocks; block += threads)
			pack_block(&p, fetch_block(&p, t, block), block);

cleanup:
	fp_free(p.rows);
	fp_free(p.offsets);
	if (status != FP_OK)
		fp_held_free(be, out);
	return status;
}

/* Writes the entries of a row's piece, which are `cols` of the held type. */
static void store_piece(fp_matrix out, int64_t row, int64_t col, int64_t cols, const char *piece, fp_dtype dtype)
{
	float floats[FP_CPU_PIECE];
	char *to = (char *)out.buffer->data + (out.offset + row * out.stride + col) * fp_dtype_size(out.dtype);
	if (out.dtype == dtype) {
		memcpy(to, piece, (size_t)(cols * fp_dtype_size(dtype)));
		return;
	}
	fp_to_float(floats, piece, dtype, cols);
	fp_from_float(to, out.dtype, floats, cols);
}

fp_status fp_cpu_expand(fp_backend *be, const fp_held *W, fp_matrix out)
{
	FP_REQUIRE(be, fp_dtype_is_weight(out.dtype) && fp_cpu_is_view(out, out.dtype));
	FP_REQUIRE(be, out.rows == W->rows && out.cols == W->cols);
	int64_t size = fp_dtype_size(W->dtype), pieces = fp_cpu_pieces(W->cols), blocks = fp_cpu_block_count(W->rows);
	const char *all = W->values.buffer->data;
#pragma omp parallel for num_threads(be->threads)
	for (int64_t block = 0; block < blocks; block++) {
		const int64_t *offsets = W->form == FP_HELD_MASK ? W->offsets.buffer->data : NULL;
		int64_t before = offsets ? offsets[block] : block * FP_CPU_BLOCK * pieces * FP_CPU_PIECE / 2;
		const char *values = all + before * size;
		const uint8_t *positions =
			W->form == FP_HELD_DENSE ? NULL : fp_cpu_bytes(W->positions) + block * pieces * FP_CPU_BLOCK * 4;
		for (int64_t i = 0; i < pieces; i++)
			for (int64_t r = 0; r < FP_CPU_BLOCK; r++) {
				char piece[FP_CPU_PIECE * 4];
				int64_t row = block * FP_CPU_BLOCK + r, col = i * FP_CPU_PIECE;
				if (positions) {
					uint32_t mask;
					memcpy(&mask, positions, sizeof mask);
					positions += sizeof mask;
					values = unpack_mask(piece, values, mask, size);
				} else {
					memcpy(piece, all + (row * pieces + i) * FP_CPU_PIECE * size, (size_t)(FP_CPU_PIECE * size));
				}
				if (row < W->rows)
					store_piece(out, row, col, fp_smaller(FP_CPU_PIECE, W->cols - col), piece, W->dtype);
			}
	}
	return FP_OK;
}
