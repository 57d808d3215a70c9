/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/tensor_list.h"

#include "base/memory.h"
#include <stdlib.h>
#include <string.h>

void fp_tensor_list_free(fp_tensor_list *list)
{
	for (int64_t i = 0; i < list->count; i++)
		fp_free((void *)(uintptr_t)list->items[i].name);
	fp_free(list->items);
	fp_free(list->by_name);
	*list = (fp_tensor_list){0};
}

fp_status fp_tensor_list_add(fp_tensor_list *list, fp_context *ctx, const fp_tensor_info *tensor, const char *name,
							 int64_t name_length)
{
	char *copy = NULL;
	fp_status status = FP_GROW(ctx, &list->items, &list->capacity, list->count + 1);
	if (status == FP_OK)
		status = FP_NEW(ctx, &copy, name_length + 1);
	if (status != FP_OK)
		return status;
	memcpy(copy, name, (size_t)name_length);
	list->items[list->count] = *tensor;
	list->items[list->count].name = copy;
	list->count++;
	return FP_OK;
}

static int compare_names(const void *a, const void *b, void *data)
{
	const fp_tensor_info *items = data;
	return strcmp(items[*(const int64_t *)a].name, items[*(const int64_t *)b].name);
}

fp_status fp_tensor_list_sort(fp_tensor_list *list, fp_context *ctx, char *const *shard_names)
{
	fp_free(list->by_name);
	fp_status status = FP_NEW(ctx, &list->by_name, list->count);
	if (status != FP_OK)
		return status;
	for (int64_t i = 0; i < list->count; i++)
		list->by_name[i] = i;
	qsort_r(list->by_name, (size_t)list->count, sizeof *list->by_name, compare_names, list->items);
	for (int64_t i = 1; i < list->count; i++) {
		const fp_tensor_info *a = &list->items[list->by_name[i - 1]], *b = &list->items[list->by_name[i]];
		if (strcmp(a->name, b->name) == 0)
			return fp_fail(ctx, FP_ERROR_INPUT, "tensor '%s' occurs twice, in %s and in %s; names must be unique",
						   a->name, shard_names[a->shard], shard_names[b->shard]);
	}
	return FP_OK;
}

const fp_tensor_info *fp_tensor_list_find(const fp_tensor_list *list, const char *name)
{
	int64_t low = 0, high = list->count;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		const fp_tensor_info *tensor = &list->items[list->by_name[middle]];
		int order = strcmp(tensor->name, name);
		if (order == 0)
			return tensor;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

bool fp_tensor_measure(fp_tensor_info *tensor, int64_t bits)
{
	int64_t elements = 1, total;
	for (int i = 0; i < tensor->rank; i++)
		if (!fp_multiply_checked(elements, tensor->shape[i], &elements))
			return false;
	if (!fp_multiply_checked(elements, bits, &total) || total % 8 != 0)
		return false;
	tensor->elements = elements;
	tensor->bytes = total / 8;
	return true;
}
