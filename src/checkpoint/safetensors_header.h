/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_header.h: makes the header of a safetensors file. */
#ifndef FP_CHECKPOINT_SAFETENSORS_HEADER_H
#define FP_CHECKPOINT_SAFETENSORS_HEADER_H

#include "checkpoint/checkpoint.h"

/* *out ← the 8-byte length and the JSON text, padded with spaces so that the tensors start at a multiple of 8, as the
 * reference library does. `name` is the file's, for messages. The caller frees *out with fp_free(). */
fp_status fp_safetensors_header(char **out, int64_t *size, fp_context *ctx, const json_t *header, const char *name);
/* The entry of a tensor whose bytes start at `offset` behind the header. A new reference; NULL: out of memory. */
json_t *fp_safetensors_describe(const fp_tensor_info *tensor, int64_t offset);

#endif
