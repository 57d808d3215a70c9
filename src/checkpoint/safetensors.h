/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h: the safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes without gaps.
 * The whole header is checked before any of it is used.
 */
#ifndef FP_CHECKPOINT_SAFETENSORS_H
#define FP_CHECKPOINT_SAFETENSORS_H

#include "base/file.h"
#include "checkpoint/tensor_list.h"

enum {
	FP_SAFETENSORS_PREFIX = 8,
	FP_SAFETENSORS_MAX_HEADER = 100000000
}; /* the limit of the reference implementation */

/* Appends the tensors of a file to the list, in the order of their bytes. `path` is for messages. */
fp_status fp_safetensors_read(fp_tensor_list *list, fp_context *ctx, fp_mapping file, int shard, const char *path);

/* The same for a header alone: the tensors' offsets count from its end, and *size is the number of bytes that they cover. */
fp_status fp_safetensors_read_header(fp_tensor_list *list, int64_t *size, fp_context *ctx, const char *text,
									 int64_t length, int shard, const char *path);
/* *out ← a text of __metadata__ of a file that fp_safetensors_read() accepted, or NULL. The caller frees it with
 * fp_free(). */
fp_status fp_safetensors_metadata(char **out, fp_context *ctx, fp_mapping file, const char *key);

/* Whether the header of a file that fp_safetensors_read() accepted has __metadata__.format. */
fp_status fp_safetensors_has_format(bool *out, fp_context *ctx, fp_mapping file);

/* The offset of the tensors' bytes in a file that fp_safetensors_read() accepted. */
int64_t fp_safetensors_data_start(fp_mapping file);

#endif
