/* SPDX-License-Identifier: Apache-2.0 */
/* room.h: how much of a text is taken through a model at a time. */
#ifndef FP_EVALUATION_CHUNK_MEMORY_H
#define FP_EVALUATION_CHUNK_MEMORY_H

#include "model/model.h"

/* *out ← bytes for hidden states and work space: those asked for, or where that is 0 the usual. Every chunk of the text
 * has all layers loaded anew, so on a device, where they cross a bus and the memory is there to be used, it is a
 * quarter of what is free; on a CPU 512 MiB. */
fp_status fp_evaluation_memory(fp_backend *be, int64_t memory, int64_t *out);
/* Tokens that pass a layer together: enough to fill the products, or on a device as many as half the room takes. */
int64_t fp_evaluation_batch(const fp_model *model, int64_t room);

#endif
