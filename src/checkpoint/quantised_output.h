/* SPDX-License-Identifier: Apache-2.0 */
/* quantised_output.h: how a matrix is written on a grid (tensor/grid_format.h): the tensors that compressed-tensors reads in
 * its place, and their bytes. */
#ifndef FP_CHECKPOINT_QUANTISED_OUTPUT_H
#define FP_CHECKPOINT_QUANTISED_OUTPUT_H

#include "checkpoint/tensor_coding.h"
#include "tensor/grid_format.h"

enum { FP_QUANTISED_PARTS = 4 };

/* The grid of a matrix: scales and zero points of each group, row by row. */
typedef struct fp_grid_numbers {
	const float *scales;
	const float *zeros; /* NULL: the format is symmetric */
} fp_grid_numbers;

/* A matrix and the tensors that are stored in its place. It refers to itself and must not be moved. */
typedef struct fp_quantised_tensor {
	const fp_grid_format *format;
	int count; /* of parts; 0: it is stored as it is */
	fp_tensor_info parts[FP_QUANTISED_PARTS];
	int64_t offsets[FP_QUANTISED_PARTS]; /* the caller's */
	fp_tensor_coding coding;             /* of the matrix, by the parts */
	fp_tensor_info matrix;               /* with that coding */
	char *names;
} fp_quantised_tensor;

/* tensor: a matrix of a weight type with at least one entry, whose name ends in ".weight" and lives as long as *out. Freed
 * with fp_quantised_tensor_free(). */
fp_status fp_quantised_tensor_new(fp_quantised_tensor *out, fp_context *ctx, const fp_tensor_info *tensor,
								  const fp_grid_format *format);
void fp_quantised_tensor_free(fp_quantised_tensor *tensor); /* all zero is allowed */
/* Bytes of all parts. */
int64_t fp_quantised_tensor_bytes(const fp_quantised_tensor *tensor);

/* parts ← memory for each part; freed with fp_quantised_parts_free(), which allows NULL. */
fp_status fp_quantised_parts_new(char *parts[FP_QUANTISED_PARTS], fp_context *ctx, const fp_quantised_tensor *tensor);
void fp_quantised_parts_free(char *parts[FP_QUANTISED_PARTS]);
/* parts[i] ← the bytes of part i, for a matrix that lies on the grid; one that does not is an error. */
fp_status fp_quantised_encode(char *const *parts, fp_context *ctx, const fp_quantised_tensor *tensor, const void *bytes,
							  fp_grid_numbers numbers);
/* bytes ← the matrix, from its parts. */
fp_status fp_quantised_decode(void *bytes, fp_context *ctx, const fp_quantised_tensor *tensor, char *const *parts);

#endif
