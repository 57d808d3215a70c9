/* SPDX-License-Identifier: Apache-2.0 */
/* writer_layout.h: which file every tensor of the output goes to, at which byte, and the headers of those files. */
#ifndef FP_CHECKPOINT_WRITER_LAYOUT_H
#define FP_CHECKPOINT_WRITER_LAYOUT_H

#include "checkpoint/checkpoint.h"

typedef struct fp_output_file {
	char *name;
	char *header; /* with the 8-byte length in front */
	int64_t header_size;
	int64_t size; /* of the whole file */
} fp_output_file;

typedef struct fp_output_layout {
	fp_output_file *files; /* one for each shard of the source */
	int file_count;
	int64_t *offsets; /* for each tensor of the source: its place in the file of its shard; −1: not written */
	char *index;      /* text of a new model.safetensors.index.json, or NULL */
} fp_output_layout;

/* Safetensors headers are kept byte for byte, except that a missing __metadata__.format is added; PyTorch archives
 * become safetensors. The caller frees the layout with fp_output_layout_free(). */
fp_status fp_output_layout_make(fp_output_layout *out, fp_context *ctx, const fp_checkpoint *source);
void fp_output_layout_free(fp_output_layout *layout);

#endif
