/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/overlay.h"

#include "base/memory.h"

#include <string.h>

typedef struct replaced_tensor {
	const fp_tensor_info *tensor; /* borrowed from the checkpoint */
	char *bytes;
} replaced_tensor;

struct fp_overlay {
	fp_context *ctx;
	replaced_tensor *tensors; /* hundreds at most: searched one by one */
	int64_t count, capacity;
};

fp_status fp_overlay_new(fp_overlay **out, fp_context *ctx)
{
	fp_status status = FP_NEW(ctx, out, 1);
	if (status == FP_OK)
		(*out)->ctx = ctx;
	return status;
}

void fp_overlay_free(fp_overlay *overlay)
{
	if (!overlay)
		return;
	for (int64_t i = 0; i < overlay->count; i++)
		fp_free(overlay->tensors[i].bytes);
	fp_free(overlay->tensors);
	fp_free(overlay);
}

static replaced_tensor *find(const fp_overlay *overlay, const fp_tensor_info *tensor)
{
	for (int64_t i = 0; i < overlay->count; i++)
		if (overlay->tensors[i].tensor == tensor)
			return &overlay->tensors[i];
	return NULL;
}

fp_status fp_overlay_replace(fp_overlay *overlay, const fp_tensor_info *tensor, const void *bytes)
{
	replaced_tensor *replaced = find(overlay, tensor);
	fp_status status = FP_OK;
	if (!replaced) {
		char *copy = NULL;
		FP_TRY(FP_GROW(overlay->ctx, &overlay->tensors, &overlay->capacity, overlay->count + 1));
		FP_TRY(FP_NEW(overlay->ctx, &copy, tensor->bytes));
		replaced = &overlay->tensors[overlay->count++];
		*replaced = (replaced_tensor){.tensor = tensor, .bytes = copy};
	}
	memcpy(replaced->bytes, bytes, (size_t)tensor->bytes);
cleanup:
	return status;
}

const void *fp_overlay_data(const fp_overlay *overlay, const fp_tensor_info *tensor)
{
	const replaced_tensor *replaced = find(overlay, tensor);
	return replaced ? replaced->bytes : NULL;
}
