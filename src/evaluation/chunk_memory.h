/* SPDX-License-Identifier: Apache-2.0 */
/* chunk_memory.h: how much of a text is evaluated at a time. */
#ifndef FP_EVALUATION_CHUNK_MEMORY_H
#define FP_EVALUATION_CHUNK_MEMORY_H

#include "model/model.h"

/* *out ← bytes for hidden states and workspace: `memory`, or if that is 0 the default: 512 MiB, or on a
 * device a quarter of its free memory if that is more. Every chunk of the text loads all layers again,
 * and copying them to a device is slow. */
fp_status fp_evaluation_memory(fp_backend *be, int64_t memory, int64_t *out);
/* Tokens that pass through a layer together: 2048, or on a device up to 16384 if their workspace fits
 * into half of `bytes`. */
int64_t fp_evaluation_batch(const fp_model *model, int64_t bytes);

#endif
