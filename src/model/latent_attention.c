/* SPDX-License-Identifier: Apache-2.0 */
#include "model/latent_attention.h"

#include "base/numbers.h"
#include "model/model_parts.h"

int64_t fp_latent_query_width(const fp_model_config *config)
{
	return config->heads * config->head_dim;
}

int64_t fp_latent_key_value_width(const fp_model_config *config)
{
	return config->heads * (config->head_dim - config->latent.turned + config->latent.value);
}

int64_t fp_latent_width(const fp_model_config *config)
{
	return fp_larger(fp_latent_query_width(config), fp_latent_key_value_width(config));
}

int64_t fp_latent_space_bytes(const fp_model *model, int64_t tokens, fp_dtype type)
{
	const fp_model_config *c = fp_model_get_config(model);
	const fp_latent_config *latent = &c->latent;
	if (latent->rank == 0)
		return 0;
	return tokens * fp_dtype_size(type) * (latent->query_rank + 2 * latent->rank + latent->turned + fp_latent_width(c));
}

fp_status fp_latent_space_new(fp_latent_space *out, const fp_model *model, int64_t tokens, fp_dtype type)
{
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	const fp_latent_config *latent = &c->latent;
	fp_status status = FP_OK;
	*out = (fp_latent_space){0};
	if (latent->rank == 0)
		return FP_OK;
	if (latent->query_rank > 0)
		FP_TRY(fp_matrix_new(be, &out->query, tokens, latent->query_rank, type));
	FP_TRY(fp_matrix_new(be, &out->joint, tokens, latent->rank + latent->turned, type));
	FP_TRY(fp_matrix_new(be, &out->latent, tokens, latent->rank, type));
	FP_TRY(fp_matrix_new(be, &out->wide, tokens, fp_latent_width(c), type));
cleanup:
	if (status != FP_OK)
		fp_latent_space_free(be, out);
	return status;
}

void fp_latent_space_free(fp_backend *be, fp_latent_space *space)
{
	fp_matrix_free(be, &space->query);
	fp_matrix_free(be, &space->joint);
	fp_matrix_free(be, &space->latent);
	fp_matrix_free(be, &space->wide);
}

fp_status fp_latent_normalise(fp_backend *be, fp_matrix weight, fp_matrix X, fp_matrix out)
{
	return be->transformer->norm(be, FP_RMS_NORM, X, weight, (fp_matrix){0}, FP_LATENT_EPSILON, out);
}

/* Columns [first, first + count) of each head, with one head per row. */
static fp_matrix of_heads(fp_matrix X, int64_t heads, int64_t first, int64_t count)
{
	return fp_matrix_cols(fp_matrix_reshape(X, X.rows * heads, X.cols / heads), first, count);
}

static fp_status copy(fp_backend *be, bool back, fp_matrix to, fp_matrix from)
{
	return back ? be->memory->copy(be, from, to) : be->memory->copy(be, to, from);
}

fp_status fp_latent_queries(fp_backend *be, const fp_model_config *config, bool back, fp_matrix q, fp_matrix Q)
{
	int64_t heads = config->heads, turned = config->latent.turned, plain = config->head_dim - turned;
	fp_status status;
	FP_TRY(copy(be, back, of_heads(Q, heads, 0, turned), of_heads(q, heads, plain, turned)));
	FP_TRY(copy(be, back, of_heads(Q, heads, turned, plain), of_heads(q, heads, 0, plain)));
cleanup:
	return status;
}

fp_status fp_latent_keys(fp_backend *be, const fp_model_config *config, fp_matrix wide, fp_matrix r, fp_matrix K,
						 fp_matrix V)
{
	int64_t heads = config->heads, turned = config->latent.turned, plain = config->head_dim - turned;
	int64_t value = config->latent.value;
	fp_status status;
	for (int64_t h = 0; h < heads; h++)
		FP_TRY(be->memory->copy(be, fp_matrix_cols(K, h * config->head_dim, turned), r));
	FP_TRY(be->memory->copy(be, of_heads(K, heads, turned, plain), of_heads(wide, heads, 0, plain)));
	FP_TRY(be->memory->copy(be, of_heads(V, heads, 0, value), of_heads(wide, heads, plain, value)));
	if (value < config->head_dim)
		FP_TRY(be->memory->fill(be, of_heads(V, heads, value, config->head_dim - value), 0));
cleanup:
	return status;
}

fp_status fp_latent_keys_backward(fp_backend *be, const fp_model_config *config, fp_matrix dK, fp_matrix dV,
								  fp_matrix dwide, fp_matrix dr)
{
	int64_t heads = config->heads, turned = config->latent.turned, plain = config->head_dim - turned;
	int64_t value = config->latent.value;
	fp_status status;
	for (int64_t h = 0; h < heads; h++)
		FP_TRY(be->linear->axpby(be, 1, fp_matrix_cols(dK, h * config->head_dim, turned), h > 0 ? 1.0F : 0.0F, dr));
	FP_TRY(be->memory->copy(be, of_heads(dwide, heads, 0, plain), of_heads(dK, heads, turned, plain)));
	FP_TRY(be->memory->copy(be, of_heads(dwide, heads, plain, value), of_heads(dV, heads, 0, value)));
cleanup:
	return status;
}

fp_status fp_latent_context(fp_backend *be, const fp_model_config *config, bool back, fp_matrix context,
							fp_matrix narrow)
{
	int64_t heads = config->heads, value = config->latent.value, rest = config->head_dim - value;
	fp_status status;
	FP_TRY(copy(be, back, of_heads(narrow, heads, 0, value), of_heads(context, heads, 0, value)));
	if (back && rest > 0)
		FP_TRY(be->memory->fill(be, of_heads(context, heads, value, rest), 0));
cleanup:
	return status;
}

fp_status fp_latents_make(const fp_layer *layer, fp_latent_space *space, fp_matrix x)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	bool latent_queries = c->latent.query_rank > 0;
	fp_matrix joint = fp_matrix_rows(space->joint, 0, x.rows);
	fp_matrix query = latent_queries ? fp_matrix_rows(space->query, 0, x.rows)
									 : fp_matrix_reshape(space->wide, x.rows, fp_latent_query_width(c));
	const fp_role roles[] = {latent_queries ? FP_QUERY_A : FP_QUERY, FP_KEY_VALUE_A};
	fp_status status;
	FP_TRY(fp_layer_apply_all(layer, 2, roles, x, (const fp_matrix[]){query, joint}));
	if (latent_queries)
		FP_TRY(fp_latent_normalise(be, layer->query_latent_norm, query, query));
	FP_TRY(fp_latent_normalise(be, layer->latent_norm, fp_matrix_cols(joint, 0, c->latent.rank),
							   fp_matrix_rows(space->latent, 0, x.rows)));
cleanup:
	return status;
}

fp_status fp_latents_expand(const fp_layer *layer, fp_latent_space *space, fp_matrix Q, fp_matrix K, fp_matrix V)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	int64_t rows = Q.rows;
	fp_matrix q = fp_matrix_reshape(space->wide, rows, fp_latent_query_width(c));
	fp_matrix wide = fp_matrix_reshape(space->wide, rows, fp_latent_key_value_width(c));
	fp_matrix r = fp_matrix_cols(fp_matrix_rows(space->joint, 0, rows), c->latent.rank, c->latent.turned);
	fp_status status;
	if (c->latent.query_rank > 0)
		FP_TRY(fp_layer_apply(layer, FP_QUERY_B, fp_matrix_rows(space->query, 0, rows), false, q));
	FP_TRY(fp_latent_queries(be, c, false, q, Q));
	FP_TRY(fp_layer_apply(layer, FP_KEY_VALUE_B, fp_matrix_rows(space->latent, 0, rows), false, wide));
	FP_TRY(fp_latent_keys(be, c, wide, r, K, V));
cleanup:
	return status;
}
