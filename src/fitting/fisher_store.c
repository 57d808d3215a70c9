/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fisher_store.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/numbers.h"

#include <unistd.h>

static const char *const FILE_NAME = "Fisher matrices"; /* in messages */

/* Slots: one for each output that is kept, and one for each between two of them. */
static int64_t kept_count(const fp_fisher_store *f, int64_t stride)
{
	return (f->layers - f->first + stride - 1) / stride;
}

static int64_t slot_count(const fp_fisher_store *f, int64_t stride)
{
	return kept_count(f, stride) + stride - 1;
}

static int64_t slot_bytes(const fp_fisher_store *f)
{
	return f->windows * f->length * f->width * fp_dtype_size(FP_BF16);
}

void fp_fisher_store_plan(fp_fisher_store *f)
{
	f->file = -1;
	f->stride = 1;
	for (int64_t stride = 2; stride <= f->layers - f->first && !f->keeps_slots; stride++) {
		if (slot_count(f, f->stride) * slot_bytes(f) <= f->slot_limit)
			break;
		if (slot_count(f, stride) < slot_count(f, f->stride))
			f->stride = stride;
	}
}

/* The first row of a window in a layer's slot, counted over all slots. */
static int64_t slot_row(const fp_fisher_store *f, int64_t layer, int64_t window)
{
	int64_t state = fp_larger(layer - f->first, 0), between = state % f->stride;
	int64_t slot = between == 0 ? state / f->stride : kept_count(f, f->stride) + between - 1;
	return (slot * f->windows + window) * f->length;
}

int64_t fp_fisher_store_slot_bytes(const fp_fisher_store *f)
{
	return slot_count(f, f->stride) * slot_bytes(f);
}

/* The first row of a layer's matrix, counted over all matrices. */
static int64_t matrix_row(const fp_fisher_store *f, int64_t layer)
{
	return (layer - f->first) * f->width;
}

int64_t fp_fisher_store_matrix_bytes(const fp_fisher_store *f)
{
	return matrix_row(f, f->end) * f->width * fp_dtype_size(FP_F32);
}

static int64_t matrix_offset(const fp_fisher_store *f, int64_t layer, int64_t row)
{
	int64_t rows = matrix_row(f, layer) + row;
	return (f->resident ? 0 : fp_fisher_store_slot_bytes(f)) + rows * f->width * fp_dtype_size(FP_F32);
}

int64_t fp_fisher_store_file_bytes(const fp_fisher_store *f)
{
	return matrix_offset(f, f->holds ? f->first : f->end, 0);
}

bool fp_fisher_store_shares_below(const fp_fisher_store *f, int64_t layer)
{
	return f->stride > 1 && (layer - f->first) % f->stride == 0 && layer < f->layers - 1;
}

fp_status fp_fisher_store_open(fp_fisher_store *f, const char *folder)
{
	fp_status status = FP_OK;
	if (f->resident)
		FP_TRY(fp_matrix_new(f->be, &f->slots, slot_count(f, f->stride) * f->windows * f->length, f->width, FP_BF16));
	if (f->holds)
		FP_TRY(fp_matrix_new(f->be, &f->matrices, matrix_row(f, f->end), f->width, FP_F32));
	if (fp_fisher_store_file_bytes(f) == 0)
		goto cleanup;
	FP_TRY(FP_NEW(f->be->ctx, &f->host, fp_larger(f->batch * f->length, 2) * f->width));
	FP_TRY(fp_scratch_file(&f->file, f->be->ctx, folder, fp_fisher_store_file_bytes(f)));
cleanup:
	if (status != FP_OK)
		fp_fisher_store_close(f);
	return status;
}

void fp_fisher_store_drop_slots(fp_fisher_store *f)
{
	if (!f->keeps_slots)
		fp_matrix_free(f->be, &f->slots);
}

void fp_fisher_store_close(fp_fisher_store *f)
{
	if (f->be) {
		fp_matrix_free(f->be, &f->slots);
		fp_matrix_free(f->be, &f->matrices);
	}
	if (f->host && f->file >= 0)
		close(f->file);
	fp_free(f->host);
	f->host = NULL;
	f->file = -1;
}

static fp_status write_rows(const fp_fisher_store *f, fp_matrix rows, fp_dtype type, int64_t offset)
{
	fp_status status;
	FP_TRY(f->be->memory->download(f->be, f->host, type, rows.cols, rows));
	FP_TRY(f->be->memory->synchronize(f->be));
	FP_TRY(fp_write_parallel(f->be->ctx, f->be->threads, f->file, FILE_NAME, f->host,
							 fp_matrix_size(rows) * fp_dtype_size(type), offset));
cleanup:
	return status;
}

static fp_status read_rows(const fp_fisher_store *f, fp_matrix rows, fp_dtype type, int64_t offset)
{
	fp_status status;
	FP_TRY(fp_read_parallel(f->be->ctx, f->be->threads, f->file, FILE_NAME, f->host,
							fp_matrix_size(rows) * fp_dtype_size(type), offset));
	FP_TRY(f->be->memory->upload(f->be, rows, f->host, type, rows.cols));
	FP_TRY(f->be->memory->synchronize(f->be)); /* the next call writes to f->host */
cleanup:
	return status;
}

fp_status fp_fisher_write_slot(const fp_fisher_store *f, int64_t layer, int64_t window, fp_matrix rows)
{
	int64_t first = slot_row(f, layer, window);
	if (f->resident)
		return f->be->memory->copy(f->be, fp_matrix_rows(f->slots, first, rows.rows), rows);
	return write_rows(f, rows, FP_BF16, first * f->width * fp_dtype_size(FP_BF16));
}

fp_status fp_fisher_read_slot(const fp_fisher_store *f, int64_t layer, int64_t window, fp_matrix rows)
{
	int64_t first = slot_row(f, layer, window);
	if (f->resident)
		return f->be->memory->copy(f->be, rows, fp_matrix_rows(f->slots, first, rows.rows));
	return read_rows(f, rows, FP_BF16, first * f->width * fp_dtype_size(FP_BF16));
}

/* Rows [first, …) of a matrix of floats, as many as the buffer for a batch of bf16 can hold. */
static fp_matrix buffer_rows(const fp_fisher_store *f, fp_matrix matrix, int64_t first)
{
	int64_t most = fp_larger(f->batch * f->length / 2, 1);
	return fp_matrix_rows(matrix, first, fp_smaller(most, matrix.rows - first));
}

fp_status fp_fisher_write_matrix(const fp_fisher_store *f, int64_t layer, fp_matrix matrix)
{
	fp_status status = FP_OK;
	if (f->holds)
		return f->be->memory->copy(f->be, fp_matrix_rows(f->matrices, matrix_row(f, layer), f->width), matrix);
	for (int64_t row = 0; row < matrix.rows && status == FP_OK;) {
		fp_matrix part = buffer_rows(f, matrix, row);
		status = write_rows(f, part, FP_F32, matrix_offset(f, layer, row));
		row += part.rows;
	}
	return status;
}

fp_status fp_fisher_read_matrix(const fp_fisher_store *f, int64_t layer, fp_matrix out)
{
	fp_status status = FP_OK;
	if (f->holds)
		return f->be->memory->copy(f->be, out, fp_matrix_rows(f->matrices, matrix_row(f, layer), f->width));
	for (int64_t row = 0; row < out.rows && status == FP_OK;) {
		fp_matrix part = buffer_rows(f, out, row);
		status = read_rows(f, part, FP_F32, matrix_offset(f, layer, row));
		row += part.rows;
	}
	return status;
}
