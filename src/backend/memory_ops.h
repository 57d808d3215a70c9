/* SPDX-License-Identifier: Apache-2.0 */
/* memory_ops.h: memory of a device, and data on its way in and out. backend.h has the conventions. */
#ifndef FP_BACKEND_MEMORY_OPS_H
#define FP_BACKEND_MEMORY_OPS_H

#include "backend/matrix.h"

/* Required. */
typedef struct fp_memory_operations {
	fp_status (*allocate)(fp_backend *be, fp_buffer **out, int64_t bytes); /* the content is undefined */
	void (*release)(fp_backend *be, fp_buffer *buffer);                    /* NULL is allowed */
	/* Host → device and back, converting between weight types. stride in elements of the host type. */
	fp_status (*upload)(fp_backend *be, fp_matrix out, const void *host, fp_dtype dtype, int64_t stride);
	fp_status (*download)(fp_backend *be, void *host, fp_dtype dtype, int64_t stride, fp_matrix in);
	fp_status (*copy)(fp_backend *be, fp_matrix out, fp_matrix in); /* same shape; converts between weight types */
	fp_status (*fill)(fp_backend *be, fp_matrix out, float value);  /* F32, U8; BF16 where gemm() takes it */
	fp_status (*synchronize)(fp_backend *be);
	/* Free and total bytes of the device's memory. */
	fp_status (*available)(fp_backend *be, int64_t *available, int64_t *total);
	/* Optional: the first entry of a view, where the device's memory is the host's. Called by fp_matrix_on_host() only. */
	void *(*address)(fp_matrix m);
} fp_memory_operations;

/* Optional: transfers that overlap with computation. */
typedef struct fp_transfer_operations {
	/* With FP_CAN_UPLOAD_ASYNC. *out ← a new matrix of a weight type from contiguous host memory. The transfer does not
	 * wait for the work queued before it, so it cannot reuse memory which that work still holds. */
	fp_status (*upload_async)(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype type,
							  const void *host, fp_dtype dtype);

	/* The rest with FP_CAN_DOWNLOAD_ASYNC. */
	/* X (F32) and out (a weight type, contiguous) ← X rounded to out's type, with −0.0 replaced by +0.0; *zeros ← the
	 * number of zeros; *finite ← 1 if all entries are finite, else 0. */
	fp_status (*round_weights)(fp_backend *be, fp_matrix X, fp_matrix out, int64_t *zeros, int *finite);
	/* Host memory that the device can write to directly (pinned); the content is undefined. */
	fp_status (*allocate_host)(fp_backend *be, void **out, int64_t bytes);
	void (*release_host)(fp_backend *be, void *host); /* NULL is allowed */
	/* Starts to copy a contiguous matrix, without conversion, to such memory. Until end_download() returns, the matrix
	 * must stay as it is and the bytes are not there yet. One transfer at a time. */
	fp_status (*begin_download)(fp_backend *be, void *host, fp_matrix in);
	fp_status (*end_download)(fp_backend *be);
} fp_transfer_operations;

#endif
