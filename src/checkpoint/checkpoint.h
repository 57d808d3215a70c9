/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.h: a Hugging Face model directory, read-only and memory-mapped.
 * Opening checks all headers. Each tensor then has a name, a type, a shape and its bytes.
 */
#ifndef FP_CHECKPOINT_CHECKPOINT_H
#define FP_CHECKPOINT_CHECKPOINT_H

#include "base/context.h"
#include "tensor/dtype.h"
#include <jansson.h>

enum { FP_MAX_RANK = 8 };

typedef struct fp_tensor_info {
	const char *name; /* borrowed from the checkpoint */
	fp_dtype dtype;
	const char *dtype_name; /* as in the file, also for FP_OTHER_DTYPE */
	int rank;
	int64_t shape[FP_MAX_RANK];
	int64_t elements, bytes;
	int shard;      /* index of its file */
	int64_t offset; /* of its first byte in that file */
	/* NULL: a tensor of the checkpoint. Otherwise a matrix or vector that is stored within this one (tensor_part.h): row
	 * r of it is row first + r/run·step + r%run of `whole`, or column if that is transposed; `base` entries of `whole`
	 * are before the matrix that has these rows. */
	const struct fp_tensor_info *whole;
	int64_t base, first, run, step;
	bool transposed;
	/* NULL: stored as it is. Otherwise it is decoded when it is read (tensor_coding.h), and `offset` means nothing. */
	const struct fp_tensor_coding *coding;
} fp_tensor_info;

typedef struct fp_checkpoint fp_checkpoint;

/* model: a directory, or org/name[@revision] in the Hugging Face cache (hub_cache.h). Reads config.json and the
 * weights, in the first format of weight_formats.h that the directory has. The caller closes it with
 * fp_checkpoint_close(). */
fp_status fp_checkpoint_open(fp_checkpoint **out, fp_context *ctx, const char *model);
void fp_checkpoint_close(fp_checkpoint *checkpoint); /* NULL is allowed */

const char *fp_checkpoint_directory(const fp_checkpoint *checkpoint); /* without symbolic links. Borrowed */
/* config.json, an object, without what only says how tensors are coded. Borrowed. */
const json_t *fp_checkpoint_config(const fp_checkpoint *checkpoint);
/* How tensors are coded, for people: "FP8 with …, read and written as BF16". NULL: they are not. Borrowed.
 */
const char *fp_checkpoint_coding(const fp_checkpoint *checkpoint);
/* Fails if the weights are quantised in a form that is not read. Such a checkpoint can be listed, but not run. */
fp_status fp_checkpoint_check_weights(const fp_checkpoint *checkpoint, fp_context *ctx);

/* The files with weights: one file, or the shards in order. Names are relative to the directory. Borrowed. */
int fp_checkpoint_shard_count(const fp_checkpoint *checkpoint);
const char *fp_checkpoint_shard_name(const fp_checkpoint *checkpoint, int shard);

int64_t fp_checkpoint_tensor_count(const fp_checkpoint *checkpoint);
const fp_tensor_info *fp_checkpoint_tensor(const fp_checkpoint *checkpoint, int64_t index);  /* in file order */
const fp_tensor_info *fp_checkpoint_find(const fp_checkpoint *checkpoint, const char *name); /* NULL: no such tensor */

/* *bytes ← the tensor's, row-major and little-endian, maybe unaligned. A tensor that is stored as it is lies in the mapped
 * file, and *own is NULL; one with a coding is decoded to memory that the caller frees: fp_free(*own). */
fp_status fp_checkpoint_read(const void **bytes, void **own, fp_context *ctx, const fp_checkpoint *checkpoint,
							 const fp_tensor_info *tensor);
/* The same for a tensor that is stored as it is; NULL for others. Borrowed until the checkpoint is closed. */
const void *fp_checkpoint_data(const fp_checkpoint *checkpoint, const fp_tensor_info *tensor);
/* Releases a tensor's pages, so that reading a large model does not fill the memory. */
void fp_checkpoint_forget(const fp_checkpoint *checkpoint, const fp_tensor_info *tensor);

#endif
