/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_list.h: the tensors of a checkpoint, in file order, with a look-up by name. */
#ifndef FP_CHECKPOINT_TENSOR_LIST_H
#define FP_CHECKPOINT_TENSOR_LIST_H

#include "checkpoint/checkpoint.h"

typedef struct fp_tensor_list {
	fp_tensor_info *items;
	int64_t count, capacity;
	int64_t *by_name; /* indices, set by fp_tensor_list_sort() */
} fp_tensor_list;

void fp_tensor_list_free(fp_tensor_list *list);
/* Appends a copy of *tensor and of the name. */
fp_status fp_tensor_list_add(fp_tensor_list *list, fp_context *ctx, const fp_tensor_info *tensor, const char *name,
							 int64_t name_length);
/* Prepares fp_tensor_list_find(). Fails if two tensors have the same name; shard_names is for that message. */
fp_status fp_tensor_list_sort(fp_tensor_list *list, fp_context *ctx, char *const *shard_names);
const fp_tensor_info *fp_tensor_list_find(const fp_tensor_list *list, const char *name);

/* Sets elements and bytes from rank, shape and the bits of one element. False if the product overflows or is not a
 * whole number of bytes. */
bool fp_tensor_measure(fp_tensor_info *tensor, int64_t bits);

#endif
