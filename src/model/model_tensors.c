/* SPDX-License-Identifier: Apache-2.0 */
/* model_tensors.c: finds the tensors that the config requires, checks them and uploads them. */
#include "base/memory.h"
#include "model/latent_attention.h"
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

/* count = 0: a matrix; rows = 0: a vector of `cols` entries. */
static fp_status require_shape(const fp_model *model, const char *name, int64_t count, int64_t rows, int64_t cols,
							   const fp_tensor_info **out)
{
	fp_context *ctx = model->be->ctx;
	const char *directory = fp_checkpoint_directory(model->checkpoint);
	int64_t shape[3] = {count, rows, cols};
	int rank = count ? 3 : rows ? 2 : 1;
	const int64_t *wanted = shape + 3 - rank;
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
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has type %s; weights must be F32, F16 or BF16%s",
					   directory, name, tensor->dtype_name,
					   fp_dtype_is_fp8(tensor->dtype) ? ", or FP8 that quantization_config of config.json describes"
													  : "");
	return FP_OK;
}

static fp_status require(const fp_model *model, const char *name, int64_t rows, int64_t cols,
						 const fp_tensor_info **out)
{
	return require_shape(model, name, 0, rows, cols, out);
}

static fp_status require_outer(const fp_model *model, const char *name, const char *kind, int64_t rows, int64_t cols,
							   const fp_tensor_info **out)
{
	char full[NAME_SIZE];
	snprintf(full, sizeof full, "%s%s.%s", model->prefix, name, kind);
	return require(model, full, rows, cols, out);
}

fp_status fp_model_require(const fp_model *model, int64_t layer, const char *name, const char *kind, int64_t rows,
						   int64_t cols, const fp_tensor_info **out)
{
	char full[NAME_SIZE];
	snprintf(full, sizeof full, "%s%s.%lld.%s.%s", model->prefix, model->architecture->layers, (long long)layer, name,
			 kind);
	return require(model, full, rows, cols, out);
}

fp_status fp_model_require_stack(const fp_model *model, int64_t layer, const char *name, int64_t count, int64_t rows,
								 int64_t cols, bool *turned, const fp_tensor_info **out)
{
	char full[NAME_SIZE];
	snprintf(full, sizeof full, "%s%s.%lld.%s", model->prefix, model->architecture->layers, (long long)layer, name);
	const fp_tensor_info *found = fp_checkpoint_find(model->checkpoint, full);
	bool turns = turned && found && found->rank == 3 && found->shape[1] == cols && found->shape[2] == rows;
	turns = turns && rows != cols;
	if (turned)
		*turned = turns;
	return require_shape(model, full, count, turns ? cols : rows, turns ? rows : cols, out);
}

/* Where a role lies in its stored tensor: that one's rows, and those of the role as in fp_tensor_info. */
typedef struct role_place {
	int64_t stored, first, run, step;
} role_place;

static role_place place_of(const fp_model_config *c, fp_role role, int64_t rows)
{
	int64_t group = c->heads / c->kv_heads, d = c->head_dim, queries = c->heads * d, keys = c->kv_heads * d;
	bool qkv = role == FP_QUERY || role == FP_KEY || role == FP_VALUE;
	if (qkv && c->qkv_layout == FP_QKV_STACKED)
		return (role_place){queries + 2 * keys, role == FP_QUERY ? 0 : queries + (role == FP_VALUE ? keys : 0), rows,
							rows};
	if (qkv && c->qkv_layout == FP_QKV_BY_HEAD) {
		int64_t first = role == FP_QUERY ? 0 : (group + (role == FP_VALUE)) * d;
		return (role_place){queries + 2 * keys, first, role == FP_QUERY ? group * d : d, (group + 2) * d};
	}
	if ((role == FP_GATE || role == FP_UP) && c->gate_up_stacked)
		return (role_place){2 * c->inner, role == FP_UP ? c->inner : 0, rows, rows};
	return (role_place){rows, 0, rows, rows};
}

fp_status fp_model_take_part(const fp_model *model, const fp_tensor_info *stored, const char *what,
							 const fp_part_place *place, fp_tensor_info *part, const fp_tensor_info **out)
{
	char *name = NULL;
	int64_t size = (int64_t)strlen(stored->name) + 32;
	fp_status status = FP_NEW(model->be->ctx, &name, size);
	if (status != FP_OK)
		return status;
	snprintf(name, (size_t)size, "%s%s%s", stored->name, what[0] ? ":" : "", what);
	fp_tensor_part(part, stored, name, place);
	*out = part;
	return FP_OK;
}

/* *out ← the stored tensor if the role is all of it, else `part`, whose name is the tensor's and the role's. */
static fp_status take_role(const fp_model *model, const fp_tensor_info *stored, fp_role role, int64_t rows,
						   const role_place *place, fp_tensor_info *part, const fp_tensor_info **out)
{
	bool transposed = model->architecture->transposed && stored->rank == 2, shared = place->stored != rows;
	const fp_part_place within = {
		.rows = rows, .first = place->first, .run = place->run, .step = place->step, .transposed = transposed};
	*out = stored;
	if (!transposed && !shared)
		return FP_OK;
	return fp_model_take_part(model, stored, shared ? fp_role_name(role) : "", &within, part, out);
}

static fp_status find_operator(fp_model *model, int64_t index, fp_role role, int64_t rows, int64_t cols, bool bias)
{
	fp_layer_tensors *layer = &model->layers[index];
	const char *name = model->architecture->operators[role];
	bool transposed = model->architecture->transposed;
	role_place place = place_of(&model->config, role, rows);
	const fp_tensor_info *stored;
	fp_status status;
	FP_TRY(fp_model_require(model, index, name, "weight", transposed ? cols : place.stored,
							transposed ? place.stored : cols, &stored));
	FP_TRY(take_role(model, stored, role, rows, &place, &layer->weight_part[role], &layer->weight[role]));
	if (bias) {
		FP_TRY(fp_model_require(model, index, name, "bias", 0, place.stored, &stored));
		FP_TRY(take_role(model, stored, role, rows, &place, &layer->bias_part[role], &layer->bias[role]));
	}
cleanup:
	return status;
}

static fp_status find_norms(fp_model *model, int64_t index)
{
	fp_status status = FP_OK;
	const fp_model_config *c = &model->config;
	const fp_architecture *a = model->architecture;
	fp_layer_tensors *layer = &model->layers[index];
	const bool present[FP_NORM_COUNT] = {
		[FP_NORM_ATTENTION] = c->pre_norm || c->sum_norm,
		[FP_NORM_FEED] = (c->pre_norm && !c->shared_norm) || c->sum_norm,
		[FP_NORM_BEHIND_ATTENTION] = c->branch_norm,
		[FP_NORM_BEHIND_FEED] = c->branch_norm,
	};
	for (int i = 0; i < FP_NORM_COUNT && c->norm_affine; i++) {
		const char *name = i < 2 && c->norm_names[i] ? c->norm_names[i] : a->norms[i];
		if (!present[i])
			continue;
		FP_TRY(fp_model_require(model, index, name, "weight", 0, c->hidden, &layer->norm_weight[i]));
		if (c->norm_bias)
			FP_TRY(fp_model_require(model, index, name, "bias", 0, c->hidden, &layer->norm_bias[i]));
	}
	if (c->head_norm != FP_HEADS_PLAIN) {
		bool each = c->head_norm == FP_HEADS_NORM_EACH;
		FP_TRY(fp_model_require(model, index, a->query_norm, "weight", 0, (each ? 1 : c->heads) * c->head_dim,
								&layer->query_norm));
		FP_TRY(fp_model_require(model, index, a->key_norm, "weight", 0, (each ? 1 : c->kv_heads) * c->head_dim,
								&layer->key_norm));
	}
	if (c->latent.query_rank > 0)
		FP_TRY(fp_model_require(model, index, a->query_latent_norm, "weight", 0, c->latent.query_rank,
								&layer->query_latent_norm));
	if (c->latent.rank > 0)
		FP_TRY(fp_model_require(model, index, a->latent_norm, "weight", 0, c->latent.rank, &layer->latent_norm));
cleanup:
	return status;
}

static fp_status find_layer(fp_model *model, int64_t index)
{
	fp_status status = FP_OK;
	const fp_model_config *c = &model->config;
	fp_layer_tensors *layer = &model->layers[index];
	const fp_latent_config *latent = &c->latent;
	bool sparse = fp_config_has_experts(c, index), latents = latent->rank > 0, latent_queries = latent->query_rank > 0;
	int64_t queries = c->heads * c->head_dim;
	int64_t keys = c->kv_heads * c->head_dim;
	const struct {
		int64_t rows, cols;
		bool bias, present;
	} roles[FP_ROLE_COUNT] = {
		[FP_QUERY] = {queries, c->hidden, c->qkv_bias && !latents, !latent_queries},
		[FP_KEY] = {keys, c->hidden, c->qkv_bias, !latents},
		[FP_VALUE] = {keys, c->hidden, c->qkv_bias, !latents},
		[FP_QUERY_A] = {latent->query_rank, c->hidden, c->qkv_bias, latent_queries},
		[FP_KEY_VALUE_A] = {latent->rank + latent->turned, c->hidden, c->qkv_bias, latents},
		[FP_QUERY_B] = {queries, latent->query_rank, false, latent_queries},
		[FP_KEY_VALUE_B] = {fp_latent_key_value_width(c), latent->rank, false, latents},
		[FP_OUTPUT] = {c->hidden, c->heads * fp_config_value_dim(c), c->output_bias, true},
		[FP_GATE] = {c->inner, c->hidden, c->mlp_bias, c->gated && !sparse},
		[FP_UP] = {c->inner, c->hidden, c->mlp_bias, !sparse},
		[FP_DOWN] = {c->hidden, c->inner, c->mlp_bias, !sparse},
	};
	FP_TRY(FP_NEW(model->be->ctx, &layer->weight, fp_model_operators(model)));
	FP_TRY(FP_NEW(model->be->ctx, &layer->bias, fp_model_operators(model)));
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (roles[role].present)
			FP_TRY(find_operator(model, index, (fp_role)role, roles[role].rows, roles[role].cols, roles[role].bias));
	if (sparse)
		FP_TRY(fp_model_find_experts(model, index));
	FP_TRY(find_norms(model, index));
cleanup:
	return status;
}

void fp_model_forget_tensors(fp_model *model)
{
	for (int64_t i = 0; model->layers && i < model->config.layers; i++) {
		for (int role = 0; role < FP_ROLE_COUNT; role++) {
			fp_free((char *)model->layers[i].weight_part[role].name);
			fp_free((char *)model->layers[i].bias_part[role].name);
		}
		for (int64_t k = 0; model->layers[i].expert_part && k < FP_EXPERT_ROLES * model->config.experts.count; k++)
			fp_free((char *)model->layers[i].expert_part[k].name);
		fp_free(model->layers[i].expert_part);
		fp_free(model->layers[i].weight);
		fp_free(model->layers[i].bias);
	}
	fp_free(model->layers);
	model->layers = NULL;
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

/* The head's name, which changed in some families. */
static const char *find_head(const fp_model *model)
{
	const fp_architecture *a = model->architecture;
	char name[NAME_SIZE];
	snprintf(name, sizeof name, "%s.weight", a->head);
	return a->old_head && !fp_checkpoint_find(model->checkpoint, name) ? a->old_head : a->head;
}

/* A tied model whose file has a head that differs from the embedding uses that head, as in transformers since version 5.
 * Files with the embedding's bytes twice are common. */
static fp_status untie_own_head(fp_model *model, const char *head)
{
	fp_context *ctx = model->be->ctx;
	const fp_tensor_info *tensors[2] = {model->embedding};
	const void *bytes[2];
	void *own[2] = {NULL, NULL};
	char name[NAME_SIZE];
	fp_status status = FP_OK;
	snprintf(name, sizeof name, "%s.weight", head);
	tensors[1] = fp_checkpoint_find(model->checkpoint, name);
	if (!model->config.tied || !tensors[1] || tensors[1]->rank != 2 ||
		memcmp(tensors[0]->shape, tensors[1]->shape, 2 * sizeof tensors[0]->shape[0]) != 0)
		return FP_OK;
	for (int i = 0; i < 2; i++)
		FP_TRY(fp_checkpoint_read(&bytes[i], &own[i], ctx, model->checkpoint, tensors[i]));
	if (tensors[0]->dtype == tensors[1]->dtype && memcmp(bytes[0], bytes[1], (size_t)tensors[0]->bytes) == 0)
		goto cleanup;
	fp_log(ctx, FP_LOG_WARNING,
		   "%s: '%s' differs from the embedding, to which config.json ties it; it is used, as by transformers 5 (older "
		   "versions used the embedding)",
		   fp_checkpoint_directory(model->checkpoint), name);
	model->config.tied = false;
	model->config.overrides_tie = true;
cleanup:
	fp_free(own[0]);
	fp_free(own[1]);
	return status;
}

fp_status fp_model_find_tensors(fp_model *model)
{
	fp_status status = FP_OK;
	const fp_model_config *c = &model->config;
	const fp_architecture *a = model->architecture;
	model->prefix = find_prefix(model);
	FP_TRY(require_outer(model, a->embedding, "weight", c->vocabulary, c->embedding, &model->embedding));
	if (c->embedding_norm) {
		FP_TRY(require_outer(model, a->embedding_norm, "weight", 0, c->embedding, &model->embedding_norm_weight));
		if (c->norm_bias)
			FP_TRY(require_outer(model, a->embedding_norm, "bias", 0, c->embedding, &model->embedding_norm_bias));
	}
	if (!c->rotary && !c->alibi)
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
		if (c->norm_bias)
			FP_TRY(require_outer(model, a->final_norm, "bias", 0, c->hidden, &model->final_bias));
	}
	const char *head = find_head(model);
	FP_TRY(untie_own_head(model, head));
	model->head = model->embedding;
	if (!c->tied) {
		char name[NAME_SIZE];
		snprintf(name, sizeof name, "%s.weight", head);
		FP_TRY(require(model, name, c->vocabulary, c->embedding, &model->head));
	}
	if (c->head_bias) {
		char name[NAME_SIZE];
		snprintf(name, sizeof name, "%s.bias", head);
		FP_TRY(require(model, name, 0, c->vocabulary, &model->head_bias));
	}
cleanup:
	return status;
}

fp_dtype fp_model_held_type(const fp_model *model, const fp_tensor_info *tensor)
{
	return fp_backend_rounds(model->be, FP_USE_ACTIVATION) ? tensor->dtype : FP_F32;
}

/* *bytes ← a stored tensor's, or those that replace them. *own: as of fp_checkpoint_read(). */
static fp_status stored_bytes(const fp_model *model, const fp_tensor_info *tensor, void **own, const void **bytes)
{
	*own = NULL;
	*bytes = model->overlay ? fp_overlay_data(model->overlay, tensor) : NULL;
	return *bytes ? FP_OK : fp_checkpoint_read(bytes, own, model->be->ctx, model->checkpoint, tensor);
}

/* *bytes ← the tensor's; *own: memory of its own, which the caller frees, if they are not stored like that. */
static fp_status tensor_bytes(const fp_model *model, const fp_tensor_info *tensor, void **own, const void **bytes)
{
	int64_t offset;
	char *part = NULL;
	fp_status status;
	FP_TRY(stored_bytes(model, tensor->whole ? tensor->whole : tensor, own, bytes));
	if (!tensor->whole)
		return FP_OK;
	if (fp_tensor_part_is_contiguous(tensor, &offset)) {
		*bytes = (const char *)*bytes + offset;
		return FP_OK;
	}
	FP_TRY(FP_NEW(model->be->ctx, &part, tensor->bytes));
	fp_tensor_part_gather(tensor, *bytes, part);
	fp_free(*own);
	*bytes = *own = part;
cleanup:
	return status;
}

fp_status fp_model_start_upload(const fp_model *model, const fp_tensor_info *tensor, fp_dtype type, fp_matrix *out)
{
	fp_status status;
	fp_backend *be = model->be;
	int64_t cols = tensor->shape[tensor->rank - 1];
	int64_t rows = tensor->rank == 2 ? tensor->shape[0] : 1;
	void *own = NULL;
	const void *bytes;
	FP_TRY(tensor_bytes(model, tensor, &own, &bytes));
	if (fp_backend_uploads_async(be) && !own) {
		FP_TRY(be->transfer->upload_async(be, out, rows, cols, type, bytes, tensor->dtype));
	} else {
		FP_TRY(fp_matrix_new(be, out, rows, cols, type));
		FP_TRY(be->memory->upload(be, *out, bytes, tensor->dtype, cols));
	}
	if (own)
		FP_TRY(be->memory->synchronize(be)); /* before the bytes are freed */
	fp_checkpoint_forget(model->checkpoint, tensor->whole ? tensor->whole : tensor);
cleanup:
	fp_free(own);
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

fp_status fp_model_finish_norm(const fp_model *model, fp_matrix weight)
{
	fp_backend *be = model->be;
	fp_matrix one = {0};
	fp_status status = FP_OK;
	if (!model->config.norm_plus_one)
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &one, weight.rows, weight.cols, FP_F32));
	FP_TRY(be->memory->fill(be, one, 1));
	FP_TRY(be->linear->axpby(be, 1, one, 1, weight));
cleanup:
	fp_matrix_free(be, &one);
	return status;
}
