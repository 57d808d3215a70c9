/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_reader.h: reads the subset of Python's pickle that a state dict consists of.
 * Nothing is executed: a short list of callables has a fixed meaning, and any other is an error that names it.
 */
#ifndef FP_CHECKPOINT_PICKLE_READER_H
#define FP_CHECKPOINT_PICKLE_READER_H

#include "checkpoint/tensor_list.h"

/* One tensor of a state dict. */
typedef struct fp_pickled_tensor {
	const char *name; /* in the pickle, without a NUL */
	int64_t name_length;
	const char *storage_key; /* likewise */
	int64_t storage_key_length;
	fp_dtype dtype;
	const char *dtype_name;
	int64_t element_size;
	int64_t storage_elements;
	int64_t first_element; /* in the storage */
	int rank;
	int64_t shape[FP_MAX_RANK], stride[FP_MAX_RANK];
} fp_pickled_tensor;

/* Reads the pickle of a state dict. Names point into `bytes`. Numbers are checked only to be non-negative. The caller
 * frees *out with fp_free(). */
fp_status fp_pickle_read(fp_pickled_tensor **out, int64_t *count, fp_context *ctx, const unsigned char *bytes,
						 int64_t size, const char *path);

#endif
