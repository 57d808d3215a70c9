/* SPDX-License-Identifier: Apache-2.0 */
/* companion_files.h: the files of a model that are not weights: config, tokenizer, templates, licence, code. */
#ifndef FP_CHECKPOINT_COMPANION_FILES_H
#define FP_CHECKPOINT_COMPANION_FILES_H

#include "base/context.h"

typedef struct fp_companion_files {
	char **names; /* relative to the model's directory; sorted */
	int64_t count, capacity;
	int64_t bytes; /* of all of them */
} fp_companion_files;

/* Lists the files to copy to the output: those that are not weights and not hidden, and `index_name` unless it is NULL.
 * The caller frees the list with fp_companion_files_free(). */
fp_status fp_companion_files_list(fp_companion_files *out, fp_context *ctx, const char *directory,
								  const char *index_name);
void fp_companion_files_free(fp_companion_files *files);
/* Copies them byte for byte. Symbolic links are followed. */
fp_status fp_companion_files_copy(const fp_companion_files *files, fp_context *ctx, const char *from, const char *to);

#endif
