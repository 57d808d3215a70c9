/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_ops.h: products of few rows with weights that are held for decoding. Required. backend.h has the conventions.
 *
 * A token at a time, a product takes as long as its weights take to be read, so zeros pay only if they are not read. A
 * held matrix has the form that takes the fewest bytes:
 *
 *     dense    all entries
 *     mask     one bit for each entry, and the entries whose bits are not all zero
 *     2:4      for each group of four of a row two entries and their positions, two bits each
 *
 * How a form lies in memory is the backend's own affair; docs/formats.md has the forms as files have them.
 */
#ifndef FP_BACKEND_DECODE_OPS_H
#define FP_BACKEND_DECODE_OPS_H

#include "backend/matrix.h"

typedef enum fp_held_form {
	FP_HELD_DENSE,
	FP_HELD_MASK,
	FP_HELD_TWO_OF_FOUR,
	FP_HELD_SMALLEST, /* only as a wish: whichever of the three takes the fewest bytes */
} fp_held_form;

enum { FP_HELD_FORMS = 3, FP_DECODE_BATCH = 8, FP_DECODE_PARTS = 4 };

typedef struct fp_held {
	fp_held_form form;
	fp_dtype dtype;      /* of the entries: F32, F16 or BF16 */
	int64_t rows, cols;  /* outputs, inputs */
	int64_t nonzeros;    /* entries whose bits are not all zero */
	int64_t bytes;       /* of the device's memory, read once in a product */
	fp_matrix values;    /* bytes, as the backend wants them; so the next two */
	fp_matrix positions; /* where the values stand; absent if dense or among the values */
	fp_matrix offsets;   /* where the values of some rows begin; absent unless FP_HELD_MASK */
	uint8_t granules[8]; /* the backend's own: of each part of a row, if that is the same in all rows */
	int copies;          /* the backend's own: of the input that a product needs */
} fp_held;

typedef struct fp_decode_operations {
	/* *out ← W, rounded to `dtype`, in the given form. FP_HELD_TWO_OF_FOUR is an error of the caller unless
	 * fp_held_count() allows it. The caller frees it with fp_held_free(), W as before. */
	fp_status (*hold)(fp_backend *be, fp_held *out, fp_matrix W, fp_dtype dtype, fp_held_form form);
	/* out ← W, of any weight type */
	fp_status (*expand)(fp_backend *be, const fp_held *W, fp_matrix out);
	/* Y[i] ← X W[i]ᵀ, or with `add` Y[i] + X W[i]ᵀ, for `count` matrices (1 to FP_DECODE_PARTS) of the same number of
	 * inputs; X has 1 to FP_DECODE_BATCH rows. X and Y may be BF16 where gemm()'s operands may. Sums in float, in an
	 * order that depends on shapes, form and type only: a row of Y does not depend on the other rows of X. */
	fp_status (*multiply)(fp_backend *be, fp_matrix X, int count, const fp_held *const *W, bool add,
						  const fp_matrix *Y);
	/* *seconds ← the time in which the device reads `bytes` bytes once from memory that no cache can hold; the best of
	 * a few */
	fp_status (*read_time)(fp_backend *be, int64_t bytes, double *seconds);
} fp_decode_operations;

/* What decides the form of a matrix on the host. */
typedef struct fp_held_counts {
	int64_t nonzeros;
	bool two_of_four; /* the columns are in groups of four with at most two nonzeros in each */
} fp_held_counts;

/* Counts a row of `cols` entries of `size` bytes (2 or 4) into *counts, which starts as {0, cols % 4 == 0}. */
void fp_held_count(fp_held_counts *counts, const void *row, int64_t cols, int64_t size);
/* The form of the fewest bytes. Dense unless another saves a tenth: what it saves in reading, it costs in computing. */
fp_held_form fp_held_choose(const fp_held_counts *counts, int64_t rows, int64_t cols, int64_t size);
/* "dense", "mask", "2:4". Borrowed. */
const char *fp_held_form_name(fp_held_form form);
void fp_held_free(fp_backend *be, fp_held *held); /* an all-zero one is allowed; leaves one */

#endif
