/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_files.h: the fields of a checkpoint, for this folder only. */
#ifndef FP_CHECKPOINT_CHECKPOINT_FILES_H
#define FP_CHECKPOINT_CHECKPOINT_FILES_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/packed_files.h"
#include "checkpoint/quantisation.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_coding.h"
#include "checkpoint/weight_formats.h"

enum { FP_CODING_TEXT = 256, FP_MAX_JSON_FILE = 100000000 };

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
	/* of a packed checkpoint: */
	fp_packed_file *packed;     /* one for each shard; NULL: it is not packed */
	fp_tensor_list parts;       /* the tensors of the packed files */
	fp_tensor_list originals;   /* those of the files before, in the same order as `tensors` */
	fp_tensor_coding *packings; /* of the packed ones */
	/* of a checkpoint with quantised weights: */
	fp_tensor_list stored;     /* the tensors with codes and scales */
	fp_tensor_coding *codings; /* NULL: there are none, and `stored` is empty */
	fp_quantisation quantisation;
	json_t *quantisation_object; /* which that one borrows from */
	char coding[FP_CODING_TEXT];
};

/* Opens a checkpoint whose quantised weights stay as they are stored, with their scales. Packed tensors are decoded. */
fp_status fp_checkpoint_open_as_stored(fp_checkpoint **out, fp_context *ctx, const char *model);
/* Replaces the tensors of packed files by the original ones. */
fp_status fp_checkpoint_present_packed(fp_checkpoint *checkpoint, fp_context *ctx);
/* Reads quantization_config, and replaces quantised weights by what they mean. */
fp_status fp_checkpoint_present_quantised(fp_checkpoint *checkpoint, fp_context *ctx);
void fp_checkpoint_free_codings(fp_checkpoint *checkpoint);

/* Reads a JSON object from a file. The caller calls json_decref(). */
fp_status fp_read_json_object(json_t **out, fp_context *ctx, const char *path);

#endif
