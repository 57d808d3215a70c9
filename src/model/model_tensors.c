/* SPDX-License-Identifier: Apache-2.0 */
/* model_tensors.c: finds the tensors that the config requires, checks them and uploads them. */
#include "base/memory.h"
#include "model/model_parts.h"

#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 256, SHAPE_SIZE = 128 };

static const char *spell_shape(const int64_t *shape, int rank, char text[SHAPE_SIZE])
{
	size_t used = (size_t)snprintf(text, SHAPE_SIZE, "[");
	for (int i = 0; i < rank && used < SHAPE_SIZE; i++)
		used += (size_t)snprintf(text + used, SHAPE_SIZE - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
	if (used < SHAPE_SIZE)
		snprintf(text + used, SHAPE_SIZE - used, "]");
	return text;
}

/* rows = 0: a vector of `cols` entries. */
static fp_status require(const fp_model *model, const char *name, int64_t rows, int64_t cols,
						 const fp_tensor_info **out)
{
	fp_context *ctx = model->be->ctx;
	const char *directory = fp_checkpoint_directory(model->checkpoint);
	int64_t shape[2] = {rows, cols};
	const int64_t *wanted = rows ? shape : shape + 1;
	int rank = rows ? 2 : 1;
	char expected[SHAPE_SIZE];
	spell_shape(wanted, rank, expected);

	const fp_tensor_info *tensor = fp_checkpoint_find(model->checkpoint, name);
	*out = tensor;
	if (!tensor)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' is missing; config.json requires it with shape %s",
					   directory, name, expected);
	if (tensor->rank != rank || memcmp(tensor->shape, wanted, sizeof wanted[0] * (size_t)rank) != 0) {
		char found[SHAPE_SIZE];
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has shape %s, but config.json requires %s", directory,
					   name, spell_shape(tensor->shape, tensor->rank, found), expected);
	}
	if (!fp_dtype_is_weight(tensor->dtype))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has type %s; weights must be F32, F16 or BF16", directory,
					   name, tensor->dtype_name);
	return FP_OK;
}

static fp_status require_outer(const fp_model *model, const char *name, const char *kind, int64_t rows, int64_t cols,
							   const fp_tensor_info **out)
{
	char full[NAME_SIZE];
	snprintf(full, sizeof full, "%s%s.%s", model->prefix, name, kind);
	return require(model, full, rows, cols, out);
}

static fp_status require_inner(const fp_model *model, int64_t layer, const char *name, const char *kind, int64_t rows,
							   int64_t cols, const fp_tensor_info **out)
{
	char full[NAME_SIZE];
	snprintf(full, sizeof full, "%s%s.%lld.%s.%s", model->prefix, model->architecture->layers, (long long)layer, name,
			 kind);
	return require(model, full, rows, cols, out);
}

static fp_status find_layer(fp_model *model, int64_t index)
{
	fp_status status = FP_OK;
	const fp_model_config *c = &model->config;
	const fp_architecture *a = model->architecture;
	fp_layer_tensors *layer = &model->layers[index];
	int64_t queries = c->heads * c->head_dim;
	int64_t keys = c->kv_heads * c->head_dim;
	const struct {
		int64_t rows, cols;
		bool bias, present;
	} roles[FP_ROLE_COUNT] = {
		[FP_QUERY] = {queries, c->hidden, c->qkv_bias, true},
		[FP_KEY] = {keys, c->hidden, c->qkv_bias, true},
		[FP_VALUE] = {keys, c->hidden, c->qkv_bias, true},
		[FP_OUTPUT] = {c->hidden, queries, c->output_bias, true},
		[FP_GATE] = {c->inner, c->hidden, c->mlp_bias, c->gated},
		[FP_UP] = {c->inner, c->hidden, c->mlp_bias, true},
		[FP_DOWN] = {c->hidden, c->inner, c->mlp_bias, true},
	};
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (!roles[role].present)
			continue;
		FP_TRY(require_inner(model, index, a->operators[role], "weight", roles[role].rows, roles[role].cols,
							 &layer->weight[role]));
		if (roles[role].bias)
			FP_TRY(require_inner(model, index, a->operators[role], "bias", 0, roles[role].rows, &layer->bias[role]));
	}
	for (int i = 0; i < 2 && c->norm_affine; i++) {
		FP_TRY(require_inner(model, index, a->norms[i], "weight", 0, c->hidden, &layer->norm_weight[i]));
		if (c->norm == FP_LAYER_NORM)
			FP_TRY(require_inner(model, index, a->norms[i], "bias", 0, c->hidden, &layer->norm_bias[i]));
	}
	if (c->head_norm) {
		FP_TRY(require_inner(model, index, a->query_norm, "weight", 0, c->head_dim, &layer->query_norm));
		FP_TRY(require_inner(model, index, a->key_norm, "weight", 0, c->head_dim, &layer->key_norm));
	}
cleanup:
	return status;
}

/* The prefix depends on the class that the model was saved from. */
static const char *find_prefix(const fp_model *model)
{
	const fp_architecture *a = model->architecture;
	for (int i = 0; i < FP_MAX_PREFIXES && a->prefixes[i]; i++) {
		char name[NAME_SIZE];
		snprintf(name, sizeof name, "%s%s.weight", a->prefixes[i], a->embedding);
		if (fp_checkpoint_find(model->checkpoint, name))
			return a->prefixes[i];
	}
	return a->prefixes[0];
}

fp_status fp_model_find_tensors(fp_model *model)
{
	fp_status status = FP_OK;
	const fp_model_config *c = &model->config;
	const fp_architecture *a = model->architecture;
	model->prefix = find_prefix(model);
	FP_TRY(require_outer(model, a->embedding, "weight", c->vocabulary, c->embedding, &model->embedding));
	if (!c->rotary)
		FP_TRY(require_outer(model, a->positions, "weight", c->positions + c->position_offset, c->hidden,
							 &model->positions));
	if (c->embedding != c->hidden) {
		FP_TRY(require_outer(model, a->project_in, "weight", c->hidden, c->embedding, &model->project_in));
		FP_TRY(require_outer(model, a->project_out, "weight", c->embedding, c->hidden, &model->project_out));
	}
	for (int64_t i = 0; i < c->layers; i++)
		FP_TRY(find_layer(model, i));
	if (c->final_norm && c->norm_affine) {
		FP_TRY(require_outer(model, a->final_norm, "weight", 0, c->hidden, &model->final_weight));
		if (c->norm == FP_LAYER_NORM)
			FP_TRY(require_outer(model, a->final_norm, "bias", 0, c->hidden, &model->final_bias));
	}
	model->head = model->embedding;
	if (!c->tied) {
		char name[NAME_SIZE];
		snprintf(name, sizeof name, "%s.weight", a->head);
		FP_TRY(require(model, name, c->vocabulary, c->embedding, &model->head));
	}
cleanup:
	return status;
}

fp_dtype fp_model_held_type(const fp_model *model, const fp_tensor_info *tensor)
{
	return fp_backend_rounds(model->be, FP_USE_ACTIVATION) ? tensor->dtype : FP_F32;
}

fp_status fp_model_start_upload(const fp_model *model, const fp_tensor_info *tensor, fp_dtype type, fp_matrix *out)
{
	fp_status status;
	fp_backend *be = model->be;
	int64_t cols = tensor->shape[tensor->rank - 1];
	int64_t rows = tensor->rank == 2 ? tensor->shape[0] : 1;
	const void *bytes = model->overlay ? fp_overlay_data(model->overlay, tensor) : NULL;
	if (!bytes)
		bytes = fp_checkpoint_data(model->checkpoint, tensor);
	if (fp_backend_uploads_async(be)) {
		FP_TRY(be->transfer->upload_async(be, out, rows, cols, type, bytes, tensor->dtype));
	} else {
		FP_TRY(fp_matrix_new(be, out, rows, cols, type));
		FP_TRY(be->memory->upload(be, *out, bytes, tensor->dtype, cols));
	}
	fp_checkpoint_forget(model->checkpoint, tensor);
cleanup:
	if (status != FP_OK)
		fp_matrix_free(be, out);
	return status;
}

fp_status fp_model_check_finite(const fp_model *model, const fp_tensor_info *tensor, fp_matrix matrix)
{
	fp_backend *be = model->be;
	int finite = 0;
	fp_status status = be->linear->finite(be, matrix, &finite);
	if (status == FP_OK && !finite)
		status = fp_fail(be->ctx, FP_ERROR_INPUT, "%s: tensor '%s' contains NaN or infinity",
						 fp_checkpoint_directory(model->checkpoint), tensor->name);
	return status;
}

fp_status fp_model_upload(const fp_model *model, const fp_tensor_info *tensor, fp_matrix *out)
{
	fp_status status;
	FP_TRY(fp_model_start_upload(model, tensor, FP_F32, out));
	FP_TRY(fp_model_check_finite(model, tensor, *out));
cleanup:
	if (status != FP_OK)
		fp_matrix_free(model->be, out);
	return status;
}
