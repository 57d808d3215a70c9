/* SPDX-License-Identifier: Apache-2.0 */
#include "run/tensor_joiner.h"

#include "base/memory.h"
#include "checkpoint/tensor_part.h"

#include <string.h>

typedef struct joined_tensor {
	const fp_tensor_info *tensor; /* borrowed from the checkpoint */
	char *bytes;
	float *scales, *zeros; /* of a quantised one, else NULL */
	int64_t groups;        /* of each row */
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
	for (int64_t i = 0; i < joiner->count; i++) {
		fp_free(joiner->tensors[i].bytes);
		fp_free(joiner->tensors[i].scales);
		fp_free(joiner->tensors[i].zeros);
	}
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
	**out = (joined_tensor){.tensor = tensor, .bytes = bytes};
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

/* *to ← the numbers of a part's rows among those of the whole, which are allocated. */
static fp_status scatter_numbers(fp_tensor_joiner *joiner, float **to, const fp_tensor_info *part, const float *from,
								 int64_t groups)
{
	fp_status status = FP_OK;
	if (!*to)
		status = FP_NEW(joiner->ctx, to, part->whole->shape[0] * groups);
	for (int64_t row = 0; status == FP_OK && row < part->shape[0]; row++) {
		int64_t place = part->first + row / part->run * part->step + row % part->run;
		memcpy(*to + place * groups, from + row * groups, (size_t)groups * sizeof **to);
	}
	return status;
}

fp_status fp_tensor_joiner_quantise(fp_tensor_joiner *joiner, const fp_tensor_info *part, const void *bytes,
									fp_grid_numbers numbers, int64_t groups)
{
	joined_tensor *joined;
	fp_status status;
	FP_TRY(find(joiner, part->whole, &joined));
	fp_tensor_part_scatter(part, bytes, joined->bytes);
	joined->groups = groups;
	FP_TRY(scatter_numbers(joiner, &joined->scales, part, numbers.scales, groups));
	if (numbers.zeros)
		FP_TRY(scatter_numbers(joiner, &joined->zeros, part, numbers.zeros, groups));
cleanup:
	return status;
}

fp_status fp_tensor_joiner_flush(fp_tensor_joiner *joiner, fp_joined_tensor done, void *data)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < joiner->count; i++) {
		const joined_tensor *one = &joiner->tensors[i];
		FP_TRY(done(data, one->tensor, one->bytes, (fp_grid_numbers){one->scales, one->zeros}, one->groups));
	}
	forget(joiner);
cleanup:
	return status;
}
