/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matrix.h: matrices in the memory of a device.
 *
 *   fp_buffer   owns device memory
 *   fp_matrix   a row-major view into a buffer, passed by value; owns nothing
 *
 * Only the backend can dereference a buffer. Data goes in by upload() and comes out by download() (memory_ops.h).
 */
#ifndef FP_BACKEND_MATRIX_H
#define FP_BACKEND_MATRIX_H

#include "base/context.h"
#include "tensor/dtype.h"
#include <stddef.h>

typedef struct fp_backend fp_backend;
typedef struct fp_buffer fp_buffer;

typedef struct fp_matrix {
	fp_buffer *buffer;
	int64_t offset; /* of the first element, in elements */
	int64_t rows, cols;
	int64_t stride; /* elements from one row to the next, ≥ cols */
	fp_dtype dtype;
} fp_matrix;

/* Allocates a buffer for rows × cols and views it. The caller releases it with fp_matrix_free(). */
fp_status fp_matrix_new(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype dtype);
void fp_matrix_free(fp_backend *be, fp_matrix *matrix); /* an all-zero view is allowed; leaves one */
/* *out ← m as F32: m itself, or *own, which the caller frees in either case. */
fp_status fp_matrix_widen(fp_backend *be, fp_matrix m, fp_matrix *own, fp_matrix *out);

/* The entries of a contiguous matrix that is in the host's memory, to be read and written there; else NULL. */
void *fp_matrix_on_host(const fp_backend *be, fp_matrix m);

static inline int64_t fp_matrix_size(fp_matrix m)
{
	return m.rows * m.cols;
}

/* An optional matrix that was not given. */
static inline bool fp_matrix_is_absent(fp_matrix m)
{
	return m.buffer == NULL;
}

/* Rows [first, first + rows); the same for columns. */
fp_matrix fp_matrix_rows(fp_matrix m, int64_t first, int64_t rows);
fp_matrix fp_matrix_cols(fp_matrix m, int64_t first, int64_t cols);
/* The first rows × cols elements of a contiguous matrix, viewed in another shape. */
fp_matrix fp_matrix_reshape(fp_matrix m, int64_t rows, int64_t cols);

/* For backends: true when a view has this type and lies within a buffer of `bytes` bytes. */
static inline bool fp_matrix_lies_within(fp_matrix m, fp_dtype dtype, int64_t bytes)
{
	if (m.dtype != dtype || m.rows < 0 || m.cols < 0 || m.offset < 0)
		return false;
	if (m.rows == 0 || m.cols == 0)
		return true;
	if (m.rows > 1 && m.stride < m.cols)
		return false;
	int64_t last = 0;
	int64_t elements = bytes / fp_dtype_size(dtype);
	return !__builtin_mul_overflow(m.rows - 1, m.stride, &last) && !__builtin_add_overflow(last, m.offset, &last) &&
		   !__builtin_add_overflow(last, m.cols, &last) && last <= elements;
}

#endif
