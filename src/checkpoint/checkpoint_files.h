/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_files.h: the fields of a checkpoint, for this folder only. */
#ifndef FP_CHECKPOINT_CHECKPOINT_FILES_H
#define FP_CHECKPOINT_CHECKPOINT_FILES_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantisation.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_coding.h"
#include "checkpoint/weight_formats.h"

enum { FP_CODING_TEXT = 128 };

struct fp_checkpoint {
	char *directory; /* without symbolic links */
	json_t *config;
	const fp_weight_format *format;
	const char *index_name; /* NULL if the weights are in one file */
	fp_shard_index index;   /* then empty */
	char **shards;          /* file names */
	fp_mapping *files;      /* one for each */
	int shard_count;
	fp_tensor_list tensors; /* as readers see them */
	/* of a checkpoint with coded tensors: */
	fp_tensor_list stored;     /* the tensors of the files */
	fp_tensor_coding *codings; /* NULL: there are none, and `stored` is empty */
	fp_quantisation quantisation;
	json_t *quantisation_object; /* which that one borrows from */
	char coding[FP_CODING_TEXT];
};

/* Reads a JSON object from a file. The caller calls json_decref(). */
fp_status fp_read_json_object(json_t **out, fp_context *ctx, const char *path);

#endif
