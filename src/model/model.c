/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: opens a model. */
#include "model/model.h"

#include "base/memory.h"
#include "model/model_parts.h"

#include <math.h>
#include <string.h>

/* The rules for every architecture. */
static fp_status check_config(const fp_config_reader *reader, const fp_model_config *c)
{
	if (c->heads % c->kv_heads != 0)
		return fp_config_fail(reader, "num_key_value_heads",
							  "must divide num_attention_heads, but %lld does not divide %lld", (long long)c->kv_heads,
							  (long long)c->heads);
	if (c->heads * c->head_dim > FP_MAX_DIMENSION)
		return fp_config_fail(reader, "head_dim", "times num_attention_heads must be at most %lld, but is %lld",
							  (long long)FP_MAX_DIMENSION, (long long)(c->heads * c->head_dim));
	return FP_OK;
}

fp_status fp_model_open(fp_model **out, fp_backend *be, const fp_checkpoint *checkpoint)
{
	fp_status status;
	fp_model *model = NULL;
	fp_config_reader reader = {
		.ctx = be->ctx,
		.directory = fp_checkpoint_directory(checkpoint),
		.section = "",
		.object = fp_checkpoint_config(checkpoint),
	};
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &model, 1));
	model->be = be;
	model->checkpoint = checkpoint;
	FP_TRY(fp_architecture_find(&model->architecture, &reader));
	FP_TRY(fp_checkpoint_check_weights(checkpoint, be->ctx));
	FP_TRY(model->architecture->read_config(&reader, &model->config));
	FP_TRY(check_config(&reader, &model->config));
	FP_TRY(FP_NEW(be->ctx, &model->layers, model->config.layers));
	FP_TRY(fp_model_find_tensors(model));
	*out = model;
	model = NULL;
cleanup:
	fp_model_close(model);
	return status;
}

void fp_model_close(fp_model *model)
{
	if (!model)
		return;
	fp_model_drop_head(model);
	fp_model_forget_tensors(model);
	fp_matrix_free(model->be, &model->position_rows);
	fp_matrix_free(model->be, &model->input_projection);
	fp_matrix_free(model->be, &model->embedding_norm[0]);
	fp_matrix_free(model->be, &model->embedding_norm[1]);
	fp_free(model->decoded_table);
	fp_free(model);
}

const fp_model_config *fp_model_get_config(const fp_model *model)
{
	return &model->config;
}

const char *fp_model_architecture(const fp_model *model)
{
	return model->architecture->name;
}

void fp_model_set_overlay(fp_model *model, const fp_overlay *overlay)
{
	model->overlay = overlay;
}

void fp_model_set_basis(fp_model *model, const fp_basis *basis)
{
	if (model->basis != basis)
		fp_model_drop_head(model); /* it is in the basis before */
	model->basis = basis;
}

const fp_basis *fp_model_basis(const fp_model *model)
{
	return model->basis;
}

fp_backend *fp_model_backend(const fp_model *model)
{
	return model->be;
}

const fp_checkpoint *fp_model_checkpoint(const fp_model *model)
{
	return model->checkpoint;
}

int fp_model_operators(const fp_model *model)
{
	return FP_ROLE_COUNT + (int)(FP_EXPERT_ROLES * model->config.experts.count);
}

const fp_tensor_info *fp_model_operator(const fp_model *model, int64_t layer, int number)
{
	if (layer < 0 || layer >= model->config.layers || number < 0 || number >= fp_model_operators(model))
		return NULL;
	return model->layers[layer].weight[number];
}

const fp_tensor_info *fp_model_operator_bias(const fp_model *model, int64_t layer, int number)
{
	if (layer < 0 || layer >= model->config.layers || number < 0 || number >= fp_model_operators(model))
		return NULL;
	return model->layers[layer].bias[number];
}

fp_attention_shape fp_model_attention_shape(const fp_model *model, int64_t sequences, int64_t length)
{
	const fp_model_config *c = &model->config;
	int64_t window = c->window;
	for (int64_t layer = 0; layer < c->layers; layer++)
		window = fp_config_window(c, layer) > 0 ? window : 0;
	return (fp_attention_shape){.sequences = sequences,
								.length = length,
								.heads = c->heads,
								.kv_heads = c->kv_heads,
								.head_dim = c->head_dim,
								.window = window,
								.scale = c->attention_scale > 0 ? c->attention_scale
																: (float)(1.0 / sqrt((double)c->head_dim)),
								.soft_cap = c->score_cap,
								.key_bias = {.rows = c->alibi ? c->heads : 0, .cols = c->alibi ? c->positions : 0}};
}

int fp_role_group(int number)
{
	static const int groups[FP_ROLE_COUNT] = {
		[FP_QUERY] = FP_GROUP_ATTENTION,
		[FP_KEY] = FP_GROUP_ATTENTION,
		[FP_VALUE] = FP_GROUP_ATTENTION,
		[FP_QUERY_A] = FP_GROUP_ATTENTION,
		[FP_KEY_VALUE_A] = FP_GROUP_ATTENTION,
		[FP_QUERY_B] = FP_GROUP_QUERY,
		[FP_KEY_VALUE_B] = FP_GROUP_KEY_VALUE,
		[FP_OUTPUT] = FP_GROUP_OUTPUT,
		[FP_GATE] = FP_GROUP_FEED,
		[FP_UP] = FP_GROUP_FEED,
		[FP_DOWN] = FP_GROUP_DOWN,
	};
	return groups[fp_operator_role(number)];
}

const char *fp_role_name(int number)
{
	static const char *const names[FP_ROLE_COUNT] = {
		[FP_QUERY] = "q",          [FP_KEY] = "k",       [FP_VALUE] = "v",          [FP_QUERY_A] = "q_a",
		[FP_KEY_VALUE_A] = "kv_a", [FP_QUERY_B] = "q_b", [FP_KEY_VALUE_B] = "kv_b", [FP_OUTPUT] = "o",
		[FP_GATE] = "gate",        [FP_UP] = "up",       [FP_DOWN] = "down",
	};
	return names[fp_operator_role(number)];
}

bool fp_model_has_group(const fp_model *model, int group)
{
	const fp_latent_config *latent = &model->config.latent;
	return group == FP_GROUP_QUERY ? latent->query_rank > 0 : group != FP_GROUP_KEY_VALUE || latent->rank > 0;
}

int64_t fp_model_default_length(const fp_model *model)
{
	enum { LONGEST_REPORTED = 8192 };
	return model->config.positions < LONGEST_REPORTED ? model->config.positions : LONGEST_REPORTED;
}

fp_status fp_model_check_length(const fp_model *model, int64_t length)
{
	if (length < 1 || length > model->config.positions)
		return fp_fail(model->be->ctx, FP_ERROR_USAGE,
					   "a sequence length of %lld is out of range: %s has %lld positions (max_position_embeddings); "
					   "use --sequence-length %lld or less",
					   (long long)length, fp_checkpoint_directory(model->checkpoint),
					   (long long)model->config.positions, (long long)model->config.positions);
	return FP_OK;
}
