/* SPDX-License-Identifier: Apache-2.0 */
/* shard_index.h: the index of a sharded checkpoint, such as model.safetensors.index.json: the file of each tensor. */
#ifndef FP_CHECKPOINT_SHARD_INDEX_H
#define FP_CHECKPOINT_SHARD_INDEX_H

#include "base/context.h"
#include <jansson.h>

typedef struct fp_shard_index {
	json_t *root;  /* the whole document */
	char **shards; /* file names, sorted, unique */
	int shard_count;
} fp_shard_index;

/* `text` needs no NUL; every shard's name must have the ending; `path` is for messages. The caller frees the index with
 * fp_shard_index_free(). */
fp_status fp_shard_index_parse(fp_shard_index *out, fp_context *ctx, const char *text, int64_t size, const char *ending,
							   const char *path);
void fp_shard_index_free(fp_shard_index *index);
/* weight_map: tensor to file name. Borrowed. */
json_t *fp_shard_index_map(const fp_shard_index *index);

#endif
