/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_files.h: the files of a packed checkpoint (docs/packed.md): safetensors whose __metadata__ has the header of the
 * original file and the forms of its packed matrices, and a config that says so.
 */
#ifndef FP_CHECKPOINT_PACKED_FILES_H
#define FP_CHECKPOINT_PACKED_FILES_H

#include "base/file.h"
#include "checkpoint/packed_tensor.h"
#include "checkpoint/tensor_list.h"

/* The key of __metadata__ and of config.json. */
#define FP_PACKED_KEY "fistapruner_packed"
enum { FP_PACKED_VERSION = 1, FP_PACKED_MAX_NAME = 1024 /* bytes of a part's name, with the NUL */ };

/* What the names of the parts end in. */
#define FP_PACKED_VALUES ".values"
#define FP_PACKED_MASK ".mask"
#define FP_PACKED_POSITIONS ".positions"

typedef struct fp_packed_file {
	char *header; /* of the original file, with the 8-byte length */
	int64_t header_size;
	int64_t data_size; /* of the original tensors */
	uint64_t digest;   /* of the whole original file */
} fp_packed_file;

void fp_packed_file_free(fp_packed_file *file);

/* The tensors of a packed checkpoint, at three stages. */
typedef struct fp_packed_lists {
	const fp_tensor_list *parts; /* of the packed files, sorted */
	fp_tensor_list *originals;   /* as the headers of the original files describe them */
	fp_tensor_list *seen;        /* the same with their codings or their places in the packed files */
	fp_tensor_coding *codings;   /* room for parts->count */
	int64_t coding_count;
} fp_packed_lists;

/* Reads one packed file, whose parts are listed already, and appends its tensors. `path` is for messages. */
fp_status fp_packed_file_read(fp_packed_file *out, fp_packed_lists *lists, fp_context *ctx, fp_mapping file, int shard,
							  const char *path);
/* The text of __metadata__ for a file; forms: an object from tensor to "mask" or "2:4". The caller frees it with free(). */
char *fp_packed_metadata(fp_mapping original, int64_t header_size, json_t *forms);
/* The name of a form in the metadata. */
const char *fp_packed_form(fp_coding_kind kind);

/* *out ← config.json's text with the key behind its first brace, and the other way round. Fails if the key is there
 * already, or if it is not where it was written. The caller frees it with fp_free(). */
fp_status fp_packed_config_mark(char **out, fp_context *ctx, const char *text, const char *path);
fp_status fp_packed_config_restore(char **out, fp_context *ctx, const char *text, const char *path);

#endif
