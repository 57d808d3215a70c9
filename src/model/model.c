/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: opens a model and embeds tokens. */
#include "model/model.h"

#include "base/memory.h"
#include "model/model_parts.h"

#include <math.h>
#include <string.h>

enum { GATHER_ROWS = 1024 }; /* embedding rows uploaded at a time */

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
	if (c->experts.active > c->experts.count)
		return fp_config_fail(reader, "num_experts_per_tok", "must be at most the number of experts, %lld, but is %lld",
							  (long long)c->experts.count, (long long)c->experts.active);
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
		[FP_QUERY] = 0, [FP_KEY] = 0, [FP_VALUE] = 0, [FP_OUTPUT] = 1, [FP_GATE] = 2, [FP_UP] = 2, [FP_DOWN] = 3,
	};
	return groups[fp_operator_role(number)];
}

const char *fp_role_name(int number)
{
	static const char *const names[FP_ROLE_COUNT] = {
		[FP_QUERY] = "q",   [FP_KEY] = "k", [FP_VALUE] = "v",   [FP_OUTPUT] = "o",
		[FP_GATE] = "gate", [FP_UP] = "up", [FP_DOWN] = "down",
	};
	return names[fp_operator_role(number)];
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

static fp_status check_ids(const fp_model *model, const int32_t *ids, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (ids[i] < 0 || ids[i] >= model->config.vocabulary)
			return fp_fail(model->be->ctx, FP_ERROR_INPUT,
						   "%s: token id %d is outside the model's vocabulary of %lld; the tokenizer does not belong "
						   "to this model",
						   fp_checkpoint_directory(model->checkpoint), (int)ids[i],
						   (long long)model->config.vocabulary);
	return FP_OK;
}

/* *out ← the bytes of the embedding. Those of a coded one are kept: generate reads a row of them at a time. */
static fp_status read_table(fp_model *model, const void **out)
{
	*out = model->decoded_table;
	if (*out)
		return FP_OK;
	return fp_checkpoint_read(out, &model->decoded_table, model->be->ctx, model->checkpoint, model->embedding);
}

/* Copies embedding rows from `data`, the bytes of the table, so that the whole table is never converted to floats. `rows`
 * has space for GATHER_ROWS. */
static fp_status gather(fp_model *model, const char *data, const int32_t *ids, int64_t count, char *rows, fp_matrix out)
{
	fp_backend *be = model->be;
	const fp_tensor_info *table = model->embedding;
	int64_t width = model->config.embedding;
	int64_t row_bytes = width * fp_dtype_size(table->dtype);
#pragma omp parallel for num_threads(be->threads) schedule(static)
	for (int64_t i = 0; i < count; i++)
		memcpy(rows + i * row_bytes, data + ids[i] * row_bytes, (size_t)row_bytes);
	int finite = 1;
	fp_status status;
	FP_TRY(be->memory->upload(be, out, rows, table->dtype, width));
	FP_TRY(be->linear->finite(be, out, &finite)); /* waits for the upload, so that `rows` can be reused */
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_INPUT, "%s: tensor '%s' contains NaN or infinity",
						 fp_checkpoint_directory(model->checkpoint), table->name);
cleanup:
	return status;
}

/* Scales and normalises embedded tokens, if the model does. */
static fp_status finish_embedding(fp_model *model, fp_matrix X)
{
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	fp_matrix *norm = model->embedding_norm;
	fp_status status = FP_OK;
	if (c->embedding_scale > 0)
		FP_TRY(be->linear->axpby(be, c->embedding_scale, X, 0, X));
	if (!c->embedding_norm)
		goto cleanup;
	if (fp_matrix_is_absent(norm[0])) {
		FP_TRY(fp_model_upload(model, model->embedding_norm_weight, &norm[0]));
		FP_TRY(fp_model_finish_norm(model, norm[0]));
	}
	if (model->embedding_norm_bias && fp_matrix_is_absent(norm[1]))
		FP_TRY(fp_model_upload(model, model->embedding_norm_bias, &norm[1]));
	FP_TRY(be->transformer->norm(be, c->norm, X, norm[0], norm[1], c->norm_epsilon, X));
cleanup:
	return status;
}

fp_status fp_model_embed(fp_model *model, const int32_t *ids, int64_t sequences, int64_t length, fp_matrix out)
{
	return fp_model_embed_at(model, ids, sequences, length, NULL, out);
}

/* Adds the learned positions of sequence s, from first[s] on. */
static fp_status add_positions(fp_model *model, int64_t sequences, int64_t length, const int64_t *first, fp_matrix out)
{
	fp_backend *be = model->be;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(model->position_rows))
		FP_TRY(fp_model_upload(model, model->positions, &model->position_rows));
	for (int64_t s = 0; s < sequences; s++) {
		int64_t begin = model->config.position_offset + (first ? first[s] : 0);
		FP_TRY(be->linear->axpby(be, 1, fp_matrix_rows(model->position_rows, begin, length), 1,
								 fp_matrix_rows(out, s * length, length)));
	}
cleanup:
	return status;
}

fp_status fp_model_embed_at(fp_model *model, const int32_t *ids, int64_t sequences, int64_t length,
							const int64_t *first, fp_matrix out)
{
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	int64_t total = sequences * length;
	int64_t block = total < GATHER_ROWS ? total : GATHER_ROWS;
	char *rows = NULL;
	const void *table;
	fp_matrix unprojected = {0};
	fp_status status;
	FP_REQUIRE(be, out.rows == total && out.cols == c->hidden);
	FP_TRY(fp_model_check_length(model, length));
	for (int64_t s = 0; first && s < sequences; s++)
		FP_TRY(fp_model_check_length(model, first[s] + length));
	FP_TRY(check_ids(model, ids, total));
	FP_TRY(FP_NEW(be->ctx, &rows, block * c->embedding * fp_dtype_size(model->embedding->dtype)));
	if (model->project_in) {
		if (fp_matrix_is_absent(model->input_projection))
			FP_TRY(fp_model_upload(model, model->project_in, &model->input_projection));
		FP_TRY(fp_matrix_new(be, &unprojected, block, c->embedding, FP_F32));
	}
	FP_TRY(read_table(model, &table));
	for (int64_t row = 0; row < total; row += block) {
		int64_t count = total - row < block ? total - row : block;
		fp_matrix part = fp_matrix_rows(out, row, count);
		fp_matrix gathered = model->project_in ? fp_matrix_rows(unprojected, 0, count) : part;
		FP_TRY(gather(model, table, ids + row, count, rows, gathered));
		if (model->project_in)
			FP_TRY(fp_linear(be, gathered, model->input_projection, (fp_matrix){0}, false, part));
		FP_TRY(finish_embedding(model, part));
	}
	fp_checkpoint_forget(model->checkpoint, model->embedding);
	if (model->positions)
		FP_TRY(add_positions(model, sequences, length, first, out));
	if (model->basis)
		FP_TRY(fp_turn_rows(model->basis, out));
cleanup:
	fp_matrix_free(be, &unprojected);
	fp_free(rows);
	return status;
}

int64_t fp_model_embedding_bytes(const fp_model *model)
{
	int64_t positions = model->positions ? model->positions->elements : 0;
	int64_t projection = model->project_in ? model->project_in->elements : 0;
	return (positions + projection) * (int64_t)sizeof(float);
}
