/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_coding.c: what readers see of a checkpoint with coded tensors. */
#include "base/memory.h"
#include "base/number_text.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/fp8_tensors.h"
#include "checkpoint/integer_tensors.h"
#include <stdio.h>
#include <string.h>

/* Says how matrices are packed, and what that saves. */
static void describe_packed(fp_checkpoint *checkpoint, int64_t count)
{
	int64_t pairs = 0, before = 0, after = 0;
	for (int64_t i = 0; i < count; i++)
		pairs += checkpoint->packings[i].kind == FP_CODED_TWO_OF_FOUR;
	for (int i = 0; i < checkpoint->shard_count; i++) {
		before += checkpoint->packed[i].header_size + checkpoint->packed[i].data_size;
		after += checkpoint->files[i].size;
	}
	fp_format(checkpoint->coding, sizeof checkpoint->coding,
			  "packed: %lld matrices as 2:4, %lld by mask; %.1f MiB in place of %.1f", (long long)pairs,
			  (long long)(count - pairs), (double)after / 1048576.0, (double)before / 1048576.0);
}

fp_status fp_checkpoint_present_packed(fp_checkpoint *checkpoint, fp_context *ctx)
{
	char *path = NULL;
	fp_status status;
	checkpoint->parts = checkpoint->tensors;
	checkpoint->tensors = (fp_tensor_list){0};
	fp_packed_lists lists = {
		.parts = &checkpoint->parts, .originals = &checkpoint->originals, .seen = &checkpoint->tensors};
	FP_TRY(FP_NEW(ctx, &checkpoint->packings, checkpoint->parts.count + 1));
	FP_TRY(FP_NEW(ctx, &checkpoint->packed, checkpoint->shard_count));
	lists.codings = checkpoint->packings;
	for (int i = 0; i < checkpoint->shard_count; i++) {
		fp_free(path);
		FP_TRY(fp_join_path(&path, ctx, checkpoint->directory, checkpoint->shards[i]));
		FP_TRY(fp_packed_file_read(&checkpoint->packed[i], &lists, ctx, checkpoint->files[i], i, path));
	}
	FP_TRY(fp_tensor_list_sort(&checkpoint->tensors, ctx, checkpoint->shards));
	describe_packed(checkpoint, lists.coding_count);
	json_object_del(checkpoint->config, FP_PACKED_KEY);
cleanup:
	fp_free(path);
	return status;
}

/* The type in which readers see the weights. */
static const char *coded_type(const fp_checkpoint *checkpoint)
{
	int64_t i = 0;
	while (i < checkpoint->tensors.count - 1 && !checkpoint->tensors.items[i].coding)
		i++;
	return checkpoint->tensors.items[i].dtype_name;
}

/* Says how the scales of FP8 weights lie, by the first of them. */
static void describe_fp8(fp_checkpoint *checkpoint)
{
	const fp_tensor_coding *first = &checkpoint->codings[0];
	const int64_t *shape = first->values->shape, *block = first->block;
	char scale[64] = "matrix";
	if (block[0] == 1 && block[1] >= shape[1])
		snprintf(scale, sizeof scale, "row");
	else if (block[0] < shape[0] || block[1] < shape[1] || checkpoint->quantisation.block[0] > 0)
		snprintf(scale, sizeof scale, "block of %lld x %lld", (long long)block[0], (long long)block[1]);
	snprintf(checkpoint->coding, sizeof checkpoint->coding, "FP8 (%s) with a scale for each %s, read and written as %s",
			 first->values->dtype_name, scale, coded_type(checkpoint));
}

/* The same for integers. */
static void describe_integers(fp_checkpoint *checkpoint)
{
	const fp_tensor_coding *first = &checkpoint->codings[0];
	const int64_t rows = first->values->shape[0], groups = first->guide->elements / (rows > 0 ? rows : 1);
	char scale[64] = "matrix";
	if (first->block[0] == 1 && groups <= 1)
		snprintf(scale, sizeof scale, "row");
	else if (first->block[0] == 1)
		snprintf(scale, sizeof scale, "%lld entries", (long long)first->block[1]);
	snprintf(checkpoint->coding, sizeof checkpoint->coding,
			 "%d-bit integers with a scale%s for each %s, read and written as %s", first->bits,
			 first->zeros ? " and a zero point" : "", scale, coded_type(checkpoint));
}

/* Replaces the tensors of the files by those that readers see. */
static fp_status present_coded(fp_checkpoint *checkpoint, fp_context *ctx)
{
	bool fp8 = checkpoint->quantisation.kind == FP_QUANTISED_FP8;
	char packed[FP_CODING_TEXT];
	fp_status status;
	snprintf(packed, sizeof packed, "%s", checkpoint->coding);
	FP_TRY(FP_NEW(ctx, &checkpoint->codings, checkpoint->tensors.count + 1));
	checkpoint->stored = checkpoint->tensors;
	checkpoint->tensors = (fp_tensor_list){0};
	if (fp8)
		FP_TRY(fp_fp8_present(&checkpoint->tensors, checkpoint->codings, ctx, &checkpoint->stored,
							  &checkpoint->quantisation, checkpoint->directory));
	else
		FP_TRY(fp_integer_present(&checkpoint->tensors, checkpoint->codings, ctx, &checkpoint->stored,
								  checkpoint->files, &checkpoint->quantisation, checkpoint->directory));
	FP_TRY(fp_tensor_list_sort(&checkpoint->tensors, ctx, checkpoint->shards));
	if (!checkpoint->codings[0].values)
		snprintf(checkpoint->coding, sizeof checkpoint->coding, "%s by its config, but no tensor is",
				 fp8 ? "FP8" : "integers");
	else if (fp8)
		describe_fp8(checkpoint);
	else
		describe_integers(checkpoint);
	if (packed[0]) {
		size_t used = strlen(checkpoint->coding);
		snprintf(checkpoint->coding + used, sizeof checkpoint->coding - used, "; %s", packed);
	}
	json_object_del(checkpoint->config, "quantization_config");
cleanup:
	return status;
}

fp_status fp_checkpoint_present_quantised(fp_checkpoint *checkpoint, fp_context *ctx)
{
	char *path = NULL;
	fp_status status;
	FP_TRY(fp_join_path(&path, ctx, checkpoint->directory, "config.json"));
	checkpoint->quantisation_object = json_incref(json_object_get(checkpoint->config, "quantization_config"));
	FP_TRY(fp_quantisation_read(&checkpoint->quantisation, ctx, checkpoint->config, path));
	if (checkpoint->quantisation.kind == FP_QUANTISED_FP8 || checkpoint->quantisation.kind == FP_QUANTISED_INTEGERS)
		FP_TRY(present_coded(checkpoint, ctx));
cleanup:
	fp_free(path);
	return status;
}

void fp_checkpoint_free_codings(fp_checkpoint *checkpoint)
{
	for (int i = 0; checkpoint->packed && i < checkpoint->shard_count; i++)
		fp_packed_file_free(&checkpoint->packed[i]);
	fp_free(checkpoint->packed);
	fp_tensor_list_free(&checkpoint->parts);
	fp_tensor_list_free(&checkpoint->originals);
	fp_free(checkpoint->packings);
	fp_tensor_list_free(&checkpoint->stored);
	fp_free(checkpoint->codings);
	json_decref(checkpoint->quantisation_object);
}

fp_status fp_checkpoint_check_weights(const fp_checkpoint *checkpoint, fp_context *ctx)
{
	char *path = NULL;
	fp_status status = FP_OK;
	if (checkpoint->quantisation.kind != FP_QUANTISED_OTHER)
		return FP_OK;
	FP_TRY(fp_join_path(&path, ctx, checkpoint->directory, "config.json"));
	status = fp_quantisation_refuse(&checkpoint->quantisation, ctx, path);
cleanup:
	fp_free(path);
	return status;
}

const char *fp_checkpoint_coding(const fp_checkpoint *checkpoint)
{
	return checkpoint->coding[0] ? checkpoint->coding : NULL;
}

fp_status fp_checkpoint_read(const void **bytes, void **own, fp_context *ctx, const fp_checkpoint *checkpoint,
							 const fp_tensor_info *tensor)
{
	const fp_tensor_coding *coding = tensor->coding;
	const void *values = NULL;
	void *unpacked = NULL;
	char *decoded = NULL;
	fp_status status;
	*own = NULL;
	*bytes = fp_checkpoint_data(checkpoint, tensor);
	if (!coding)
		return FP_OK;
	FP_TRY(fp_checkpoint_read(&values, &unpacked, ctx, checkpoint, coding->values)); /* two levels at most */
	FP_TRY(FP_NEW(ctx, &decoded, tensor->bytes));
	status = fp_tensor_decode(decoded, ctx, tensor, values, fp_checkpoint_data(checkpoint, coding->guide),
							  coding->zeros ? fp_checkpoint_data(checkpoint, coding->zeros) : NULL);
	if (status != FP_OK) {
		fp_fail_in(ctx, status, "%s", checkpoint->directory);
		goto cleanup;
	}
	*bytes = *own = decoded;
	decoded = NULL;
cleanup:
	fp_free(unpacked);
	fp_free(decoded);
	return status;
}
