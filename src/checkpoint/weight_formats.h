/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weight_formats.h: the file formats that weights are read from, one row each (weight_formats.c).
 * To add one, write its reader and add its row. The output is always safetensors.
 */
#ifndef FP_CHECKPOINT_WEIGHT_FORMATS_H
#define FP_CHECKPOINT_WEIGHT_FORMATS_H

#include "base/file.h"
#include "checkpoint/tensor_list.h"

typedef struct fp_weight_format {
	const char *name;
	const char *file;   /* recognised by this file, */
	const char *index;  /* or by this index of shards */
	const char *ending; /* that every shard's name must have */
	const char *prefix; /* left out of the name when a file is converted to safetensors; may be "" */
	bool is_packed;     /* sparse tensors are packed (packed_files.h) */
	bool is_output;     /* files keep their names, headers and offsets; other formats are converted */
	/* Appends the tensors of a mapped file to the list; `path` is for messages. */
	fp_status (*read)(fp_tensor_list *list, fp_context *ctx, fp_mapping file, int shard, const char *path);
} fp_weight_format;

/* The rows, in the order in which they are looked for; NULL behind the last. */
const fp_weight_format *fp_weight_format_at(int index);

#endif
