/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_parts.h: a list of matrices from which both the allocation and its estimate in bytes are made. */
#ifndef FP_FITTING_MATRIX_PARTS_H
#define FP_FITTING_MATRIX_PARTS_H

#include "backend/backend.h"

typedef struct fp_matrix_part {
	fp_matrix *matrix;
	int64_t rows, cols;
	fp_dtype dtype;
} fp_matrix_part;

/* Allocates all of them. On failure the caller frees those that exist: the others stay as they were. */
static inline fp_status fp_matrix_parts_new(fp_backend *be, const fp_matrix_part *parts, int count)
{
	fp_status status = FP_OK;
	for (int i = 0; i < count && status == FP_OK; i++)
		status = fp_matrix_new(be, parts[i].matrix, parts[i].rows, parts[i].cols, parts[i].dtype);
	return status;
}

/* Bytes that fp_matrix_parts_new() allocates. */
static inline int64_t fp_matrix_parts_bytes(const fp_matrix_part *parts, int count)
{
	int64_t bytes = 0;
	for (int i = 0; i < count; i++)
		bytes += parts[i].rows * parts[i].cols * fp_dtype_size(parts[i].dtype);
	return bytes;
}

#endif
