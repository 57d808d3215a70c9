/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_joiner.h: collects operators that are parts of stored tensors (tensor_part.h) until the tensors are complete. */
#ifndef FP_RUN_TENSOR_JOINER_H
#define FP_RUN_TENSOR_JOINER_H

#include "checkpoint/quantised_output.h"

typedef struct fp_tensor_joiner fp_tensor_joiner;

/* The checkpoint is borrowed: what is not replaced has its bytes. Freed with fp_tensor_joiner_free(). */
fp_status fp_tensor_joiner_new(fp_tensor_joiner **out, fp_context *ctx, const fp_checkpoint *checkpoint);
void fp_tensor_joiner_free(fp_tensor_joiner *joiner); /* NULL is allowed */
/* Puts a part's bytes, which are copied, in their place. */
fp_status fp_tensor_joiner_put(fp_tensor_joiner *joiner, const fp_tensor_info *part, const void *bytes);
/* The same for rows that are quantised, with the numbers of their grid: `groups` for each row. All parts of a tensor are
 * quantised, or none. */
fp_status fp_tensor_joiner_quantise(fp_tensor_joiner *joiner, const fp_tensor_info *part, const void *bytes,
									fp_grid_numbers numbers, int64_t groups);
/* Calls done(data, tensor, bytes, numbers, groups) for each tensor of which parts were put, and forgets them. groups is 0
 * if they were not quantised. */
typedef fp_status (*fp_joined_tensor)(void *data, const fp_tensor_info *tensor, const void *bytes,
									  fp_grid_numbers numbers, int64_t groups);
fp_status fp_tensor_joiner_flush(fp_tensor_joiner *joiner, fp_joined_tensor done, void *data);

#endif
