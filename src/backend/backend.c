/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: helpers that work with any backend. */
#include "backend/backend.h"

#include <math.h>
#include <string.h>

void fp_backend_close(fp_backend *be)
{
	if (be)
		be->close(be);
}

int64_t fp_pattern_zeros(const fp_pattern *pattern, int64_t entries)
{
	double zeros = floor(pattern->sparsity * (double)entries);
	if (!(zeros > 0))
		return 0;
	return zeros >= (double)entries ? entries : (int64_t)zeros;
}

fp_status fp_matrix_new(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype dtype)
{
	memset(out, 0, sizeof *out);
	int64_t size = fp_dtype_size(dtype);
	FP_REQUIRE(be, rows >= 0 && cols >= 0 && size > 0);
	int64_t limit = INT64_MAX / size;
	if (rows > 0 && cols > limit / rows)
		return fp_fail(be->ctx, FP_ERROR_MEMORY,
					   "a matrix of %lld × %lld %s is too large: its size in bytes is out of range", (long long)rows,
					   (long long)cols, fp_dtype_name(dtype));
	fp_buffer *buffer;
	fp_status status = be->memory->allocate(be, &buffer, rows * cols * size);
	if (status == FP_OK)
		*out = (fp_matrix){.buffer = buffer, .rows = rows, .cols = cols, .stride = cols, .dtype = dtype};
	return status;
}

void fp_matrix_free(fp_backend *be, fp_matrix *matrix)
{
	if (matrix->buffer)
		be->memory->release(be, matrix->buffer);
	memset(matrix, 0, sizeof *matrix);
}

fp_status fp_matrix_widen(fp_backend *be, fp_matrix m, fp_matrix *own, fp_matrix *out)
{
	*own = (fp_matrix){0};
	*out = m;
	if (m.dtype == FP_F32)
		return FP_OK;
	fp_status status = fp_matrix_new(be, own, m.rows, m.cols, FP_F32);
	*out = *own;
	return status == FP_OK ? be->memory->copy(be, *own, m) : status;
}

void *fp_matrix_on_host(const fp_backend *be, fp_matrix m)
{
	bool contiguous = m.rows <= 1 || m.stride == m.cols;
	return be->memory->address && contiguous ? be->memory->address(m) : NULL;
}

fp_status fp_mean(fp_backend *be, fp_matrix vector, double *out)
{
	fp_matrix ones = {0};
	double sum;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &ones, 1, vector.cols, FP_F32));
	FP_TRY(be->memory->fill(be, ones, 1.0F));
	FP_TRY(be->linear->dot(be, vector, ones, &sum));
	*out = vector.cols > 0 ? sum / (double)vector.cols : 0;
cleanup:
	fp_matrix_free(be, &ones);
	return status;
}

fp_matrix fp_matrix_rows(fp_matrix m, int64_t first, int64_t rows)
{
	m.offset += first * m.stride;
	m.rows = rows;
	return m;
}

fp_matrix fp_matrix_cols(fp_matrix m, int64_t first, int64_t cols)
{
	m.offset += first;
	m.cols = cols;
	return m;
}

fp_matrix fp_matrix_reshape(fp_matrix m, int64_t rows, int64_t cols)
{
	m.rows = rows;
	m.cols = cols;
	m.stride = cols;
	return m;
}

fp_use_scope fp_use_begin(fp_backend *be, fp_use use)
{
	fp_use_scope scope = {be, be->use};
	be->use = use;
	return scope;
}

void fp_use_end(fp_use_scope *scope)
{
	scope->be->use = scope->before;
}

fp_dtype fp_backend_operand(const fp_backend *be, fp_use use)
{
	if (!fp_backend_can(be, FP_CAN_MULTIPLY_NARROW) || be->precision != FP_PRECISION_BF16)
		return FP_F32;
	return use == FP_USE_ACTIVATION ? FP_BF16 : use == FP_USE_ITERATION ? FP_F16 : FP_F32;
}

bool fp_backend_rounds(const fp_backend *be, fp_use use)
{
	return fp_backend_operand(be, use) == FP_BF16;
}

bool fp_backend_uploads_async(const fp_backend *be)
{
	return fp_backend_can(be, FP_CAN_UPLOAD_ASYNC) && !be->frugal;
}
