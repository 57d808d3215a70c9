/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.h: a Hugging Face model directory, read-only and memory-mapped.
 * Opening validates every header in full; afterwards each tensor is a name, a type, a shape and a run of bytes.
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
	const char *dtype_name; /* as the file spells it, also where dtype is FP_OTHER_DTYPE */
	int rank;
	int64_t shape[FP_MAX_RANK];
	int64_t elements, bytes;
	int shard;      /* which file */
	int64_t offset; /* of its first byte in that file */
} fp_tensor_info;

typedef struct fp_checkpoint fp_checkpoint;

/* MODEL is a directory, or org/name[@revision] to be found in the Hugging Face cache (HF_HUB_CACHE, HF_HOME,
 * ~/.cache/huggingface). Reads config.json, then weights in the first format of weight_formats.h that is there. The
 * caller closes it with fp_checkpoint_close(). */
fp_status fp_checkpoint_open(fp_checkpoint **out, fp_context *ctx, const char *model);
void fp_checkpoint_close(fp_checkpoint *checkpoint); /* NULL is allowed */

const char *fp_checkpoint_directory(const fp_checkpoint *checkpoint); /* the real directory. Borrowed */
const json_t *fp_checkpoint_config(const fp_checkpoint *checkpoint);  /* config.json, an object. Borrowed */

/* The files that hold weights, in order: model.safetensors, or the shards. Names are relative to the directory.
 * Borrowed. */
int fp_checkpoint_shard_count(const fp_checkpoint *checkpoint);
const char *fp_checkpoint_shard_name(const fp_checkpoint *checkpoint, int shard);

int64_t fp_checkpoint_tensor_count(const fp_checkpoint *checkpoint);
const fp_tensor_info *fp_checkpoint_tensor(const fp_checkpoint *checkpoint, int64_t index);  /* in file order */
const fp_tensor_info *fp_checkpoint_find(const fp_checkpoint *checkpoint, const char *name); /* NULL: no such tensor */

/* The tensor's bytes, row-major, little-endian; possibly unaligned. Borrowed until the checkpoint is closed. */
const void *fp_checkpoint_data(const fp_checkpoint *checkpoint, const fp_tensor_info *tensor);
/* Says that a tensor's pages are not needed soon, so that reading a large model does not fill the memory. */
void fp_checkpoint_forget(const fp_checkpoint *checkpoint, const fp_tensor_info *tensor);

#endif
