/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_reader.h: the part of Python's pickle that a saved state dict consists of, as plain data.
 * Nothing is ever executed: the only callables are a short list of names with a fixed meaning, everything else is an
 * error that says what it was.
 */
#ifndef FP_CHECKPOINT_PICKLE_READER_H
#define FP_CHECKPOINT_PICKLE_READER_H

#include "checkpoint/tensor_list.h"

/* A state dict is a list of these. */
typedef struct fp_pickled_tensor {
	const char *name; /* in the pickle, not terminated */
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

/* Reads the pickle of a state dict. The caller frees *out with fp_free(); names point into `bytes`. Numbers are
 * checked to be non-negative, nothing else. */
fp_status fp_pickle_read(fp_pickled_tensor **out, int64_t *count, fp_context *ctx, const unsigned char *bytes,
						 int64_t size, const char *path);

#endif
