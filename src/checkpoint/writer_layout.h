/* SPDX-License-Identifier: Apache-2.0 */
/* writer_layout.h: which file every tensor of the output goes to, at which byte, and the headers of those files. */
#ifndef FP_CHECKPOINT_WRITER_LAYOUT_H
#define FP_CHECKPOINT_WRITER_LAYOUT_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantised_output.h"

typedef struct fp_output_file {
	char *name;
	char *header; /* with the 8-byte length in front */
	int64_t header_size;
	int64_t size; /* of the whole file */
} fp_output_file;

/* What the output has that the source has not, or has in another form. */
typedef struct fp_output_change {
	/* a tensor that the source lacks or, a tied head, has as the embedding's; NULL: none. Its name must live as long as the
	 * output is written. */
	const fp_tensor_info *added;
	const fp_grid_format *format; /* of quantised matrices; NULL: there are none */
	const bool *quantised;        /* by tensor of the source; borrowed */
	const json_t *quantisation;   /* quantization_config of config.json; borrowed */
} fp_output_change;

typedef struct fp_output_layout {
	fp_output_file *files; /* one for each shard of the source, or more if its tensors were coded */
	int file_count;
	/* for each tensor of the source, and then for the added one: its file, and its place in it; −1: not written */
	int *file_of;
	int64_t *offsets;
	fp_quantised_tensor *quantised; /* for each tensor of the source: its parts, if it is; NULL: none is */
	int64_t quantised_count;
	bool unties;          /* a head that the source has under two names gets bytes of its own */
	fp_tensor_info added; /* goes to the last file; without a name: none */
	char *index;          /* text of a new model.safetensors.index.json, or NULL */
} fp_output_layout;

/* Safetensors headers are kept byte for byte, except that a missing __metadata__.format and the added tensor are added;
 * PyTorch archives become safetensors, packed files those that they were made from. Coded tensors are written as readers
 * see them, and quantised ones as their parts: such files get new headers, and a shard that would be larger than the
 * largest of the source is split. change: NULL: none. exact: nothing is added to headers. The caller frees the layout with
 * fp_output_layout_free(). */
fp_status fp_output_layout_make(fp_output_layout *out, fp_context *ctx, const fp_checkpoint *source,
								const fp_output_change *change, bool exact);
void fp_output_layout_free(fp_output_layout *layout);

#endif
