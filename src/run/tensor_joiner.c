/* SPDX-License-Identifier: Apache-2.0 */
#include "run/tensor_joiner.h"

#include "base/memory.h"
#include "checkpoint/tensor_part.h"

#include <string.h>

typedef struct joined_tensor {
	const fp_tensor_info *tensor; /* borrowed from the checkpoint */
	char *bytes;
} joined_tensor;

struct fp_tensor_joiner {
	fp_context *ctx;
	const fp_checkpoint *checkpoint;
	joined_tensor *tensors; /* of one layer */
	int64_t count, capacity;
};

fp_status fp_tensor_joiner_new(fp_tensor_joiner **out, fp_context *ctx, const fp_checkpoint *checkpoint)
{
	fp_status status = FP_NEW(ctx, out, 1);
	if (status == FP_OK)
		**out = (fp_tensor_joiner){.ctx = ctx, .checkpoint = checkpoint};
	return status;
}

static void forget(fp_tensor_joiner *joiner)
{
	for (int64_t i = 0; i < joiner->count; i++)
		fp_free(joiner->tensors[i].bytes);
	joiner->count = 0;
}

void fp_tensor_joiner_free(fp_tensor_joiner *joiner)
{
	if (!joiner)
		return;
	forget(joiner);
	fp_free(joiner->tensors);
	fp_free(joiner);
}

/* *out ← the tensor as it is so far; at first with the checkpoint's bytes. */
static fp_status find(fp_tensor_joiner *joiner, const fp_tensor_info *tensor, joined_tensor **out)
{
	char *bytes = NULL;
	const void *stored;
	void *own = NULL;
	fp_status status;
	for (int64_t i = 0; i < joiner->count; i++)
		if (joiner->tensors[i].tensor == tensor) {
			*out = &joiner->tensors[i];
			return FP_OK;
		}
	FP_TRY(FP_GROW(joiner->ctx, &joiner->tensors, &joiner->capacity, joiner->count + 1));
	FP_TRY(fp_checkpoint_read(&stored, &own, joiner->ctx, joiner->checkpoint, tensor));
	bytes = own;
	if (!bytes) {
		FP_TRY(FP_NEW(joiner->ctx, &bytes, tensor->bytes));
		memcpy(bytes, stored, (size_t)tensor->bytes);
	}
	fp_checkpoint_forget(joiner->checkpoint, tensor);
	*out = &joiner->tensors[joiner->count++];
	**out = (joined_tensor){tensor, bytes};
cleanup:
	return status;
}

fp_status fp_tensor_joiner_put(fp_tensor_joiner *joiner, const fp_tensor_info *part, const void *bytes)
{
	joined_tensor *joined;
	fp_status status = find(joiner, part->whole, &joined);
	if (status == FP_OK)
		fp_tensor_part_scatter(part, bytes, joined->bytes);
	return status;
}

fp_status fp_tensor_joiner_flush(fp_tensor_joiner *joiner, fp_joined_tensor done, void *data)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < joiner->count; i++)
		FP_TRY(done(data, joiner->tensors[i].tensor, joiner->tensors[i].bytes));
	forget(joiner);
cleanup:
	return status;
}
