/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/basis_file.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"

#include <string.h>

/*
 * The file is this head, then all matrices as floats (R, then value and query of each layer, those that there are), then
 * the orders of the inner channels of each layer if there are any, as int32_t, then the digest of all bytes before it, as
 * uint64_t. Structures are stored as they are in memory: a run resumes only what the same program wrote.
 */
typedef struct file_head {
	char magic[8];
	int64_t numbers; /* of four bytes, behind the head */
	int64_t ordered; /* 1: with orders of inner channels */
	fp_basis_gain gain;
} file_head;

static const char magic[8] = "FPBASIS1";

/* Calls `each` for all matrices in the order of the file. */
typedef fp_status (*matrix_visitor)(fp_backend *be, fp_matrix matrix, float *numbers);

static fp_status visit(const fp_basis *basis, matrix_visitor each, float *numbers)
{
	fp_status status = FP_OK;
	if (!fp_matrix_is_absent(basis->R)) {
		FP_TRY(each(basis->be, basis->R, numbers));
		numbers += fp_matrix_size(basis->R);
	}
	for (int64_t i = 0; i < basis->layer_count; i++) {
		const fp_matrix all[2] = {basis->layers[i].value, basis->layers[i].query};
		for (int k = 0; k < 2; k++)
			if (!fp_matrix_is_absent(all[k])) {
				FP_TRY(each(basis->be, all[k], numbers));
				numbers += fp_matrix_size(all[k]);
			}
	}
cleanup:
	return status;
}

static int64_t count_floats(const fp_basis *basis)
{
	int64_t count = fp_matrix_is_absent(basis->R) ? 0 : fp_matrix_size(basis->R);
	for (int64_t i = 0; i < basis->layer_count; i++) {
		const fp_layer_basis *own = &basis->layers[i];
		count += fp_matrix_is_absent(own->value) ? 0 : fp_matrix_size(own->value);
		count += fp_matrix_is_absent(own->query) ? 0 : fp_matrix_size(own->query);
	}
	return count;
}

static fp_status download(fp_backend *be, fp_matrix matrix, float *numbers)
{
	fp_status status = be->memory->download(be, numbers, FP_F32, matrix.cols, matrix);
	return status == FP_OK ? be->memory->synchronize(be) : status;
}

static fp_status upload(fp_backend *be, fp_matrix matrix, float *numbers)
{
	fp_status status = be->memory->upload(be, matrix, numbers, FP_F32, matrix.cols);
	return status == FP_OK ? be->memory->synchronize(be) : status;
}

/* The inner channels of all layers. */
static int64_t count_channels(const fp_basis *basis, const fp_model *model)
{
	int64_t channels = 0;
	for (int64_t i = 0; i < basis->layer_count; i++)
		channels += fp_layer_channels(model, i);
	return channels;
}

static int64_t file_size(int64_t numbers)
{
	return (int64_t)(sizeof(file_head) + sizeof(uint64_t)) + numbers * (int64_t)sizeof(float);
}

/* Writes the order of a layer's channels, as they are if it has none; returns the place behind it. */
static int32_t *write_order(const fp_basis *basis, const fp_model *model, int64_t layer, int32_t *out)
{
	const int32_t *order = basis->layers[layer].inner;
	int64_t channels = fp_layer_channels(model, layer), experts = fp_model_get_config(model)->experts.inner;
	int64_t own = fp_first_channel(model, layer, 0);
	for (int64_t i = 0; i < channels; i++)
		out[i] = order ? order[i] : (int32_t)(i < own ? i : (i - own) % experts);
	return out + channels;
}

fp_status fp_basis_save(const char *path, const fp_basis *basis, const fp_model *model, const fp_basis_gain *gain)
{
	fp_context *ctx = basis->be->ctx;
	bool ordered = false;
	int64_t floats = count_floats(basis);
	for (int64_t i = 0; i < basis->layer_count; i++)
		ordered = ordered || basis->layers[i].inner;
	file_head head = {
		.numbers = floats + (ordered ? count_channels(basis, model) : 0), .ordered = ordered, .gain = *gain};
	int64_t size = file_size(head.numbers), covered = size - (int64_t)sizeof(uint64_t);
	char *bytes = NULL;
	fp_status status;
	memcpy(head.magic, magic, sizeof magic);
	FP_TRY(FP_NEW(ctx, &bytes, size));
	memcpy(bytes, &head, sizeof head);
	FP_TRY(visit(basis, download, (float *)(void *)(bytes + sizeof head)));
	int32_t *orders = (int32_t *)(void *)(bytes + sizeof head) + floats;
	for (int64_t i = 0; ordered && i < basis->layer_count; i++)
		orders = write_order(basis, model, i, orders);
	uint64_t digest = fp_digest_bytes(FP_DIGEST_START, bytes, covered);
	memcpy(bytes + covered, &digest, sizeof digest);
	FP_TRY(fp_write_file_atomic(ctx, path, bytes, size));
cleanup:
	fp_free(bytes);
	return status;
}

static bool is_complete(const char *bytes, int64_t size, int64_t floats, int64_t channels)
{
	file_head head;
	uint64_t digest;
	int64_t covered = size - (int64_t)sizeof digest;
	if (covered < (int64_t)sizeof head)
		return false;
	memcpy(&head, bytes, sizeof head);
	memcpy(&digest, bytes + covered, sizeof digest);
	return memcmp(head.magic, magic, sizeof magic) == 0 && head.numbers == floats + (head.ordered ? channels : 0) &&
		   size == file_size(head.numbers) && digest == fp_digest_bytes(FP_DIGEST_START, bytes, covered);
}

static fp_status restore_orders(fp_basis *basis, const fp_model *model, const int32_t *orders)
{
	for (int64_t i = 0; i < basis->layer_count; i++) {
		int64_t channels = fp_layer_channels(model, i);
		fp_status status = FP_NEW(basis->be->ctx, &basis->layers[i].inner, channels);
		if (status != FP_OK)
			return status;
		memcpy(basis->layers[i].inner, orders, (size_t)channels * sizeof *orders);
		orders += channels;
	}
	return FP_OK;
}

fp_status fp_basis_restore(fp_basis **out, const char *path, fp_model *model, const fp_basis_freedom *freedom,
						   bool stream, fp_basis_gain *gain)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	fp_basis *basis = NULL;
	char *bytes = NULL;
	int64_t size;
	file_head head;
	fp_status status = FP_OK;
	*out = NULL;
	if (!fp_is_file(path))
		return FP_OK;
	FP_TRY(fp_basis_new(&basis, model, freedom, stream));
	int64_t floats = count_floats(basis), channels = count_channels(basis, model);
	status = fp_read_file(&bytes, &size, ctx, path, file_size(floats + channels));
	if (status != FP_ERROR_INPUT) /* that is: longer than it can be */
		FP_TRY(status);
	if (status == FP_ERROR_INPUT || !is_complete(bytes, size, floats, channels)) {
		status = FP_OK;
		fp_log(ctx, FP_LOG_WARNING, "%s: is damaged; the basis will be learned again", path);
		goto cleanup;
	}
	memcpy(&head, bytes, sizeof head);
	FP_TRY(visit(basis, upload, (float *)(void *)(bytes + sizeof head)));
	basis->turned = stream;
	if (head.ordered)
		FP_TRY(restore_orders(basis, model, (const int32_t *)(void *)(bytes + sizeof head) + floats));
	*gain = head.gain;
	*out = basis;
	basis = NULL;
cleanup:
	fp_basis_free(basis);
	fp_free(bytes);
	return status;
}
