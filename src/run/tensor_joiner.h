/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_joiner.h: collects operators that are parts of stored tensors (tensor_part.h) until the tensors are complete. */
#ifndef FP_RUN_TENSOR_JOINER_H
#define FP_RUN_TENSOR_JOINER_H

#include "checkpoint/checkpoint.h"

typedef struct fp_tensor_joiner fp_tensor_joiner;

/* The checkpoint is borrowed: what is not replaced has its bytes. Freed with fp_tensor_joiner_free(). */
fp_status fp_tensor_joiner_new(fp_tensor_joiner **out, fp_context *ctx, const fp_checkpoint *checkpoint);
void fp_tensor_joiner_free(fp_tensor_joiner *joiner); /* NULL is allowed */
/* Puts a part's bytes, which are copied, in their place. */
fp_status fp_tensor_joiner_put(fp_tensor_joiner *joiner, const fp_tensor_info *part, const void *bytes);
/* Calls done(data, tensor, bytes) for each tensor of which parts were put, and forgets them. */
typedef fp_status (*fp_joined_tensor)(void *data, const fp_tensor_info *tensor, const void *bytes);
fp_status fp_tensor_joiner_flush(fp_tensor_joiner *joiner, fp_joined_tensor done, void *data);

#endif
