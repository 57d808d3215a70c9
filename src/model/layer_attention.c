/* SPDX-License-Identifier: Apache-2.0 */
/* layer_attention.c: attention of one layer: its heads' norms and positions, and sequences that share rows. */
#include "model/layer_workspace.h"
#include "model/model_parts.h"

fp_status fp_layer_normalise_heads(const fp_layer *layer, fp_matrix norm, int64_t heads, fp_matrix X, fp_matrix Y)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	if (c->head_norm == FP_HEADS_NORM_EACH) {
		X = fp_matrix_reshape(X, X.rows * heads, c->head_dim);
		Y = fp_matrix_reshape(Y, Y.rows * heads, c->head_dim);
	}
	return be->transformer->norm(be, FP_RMS_NORM, X, norm, (fp_matrix){0}, c->norm_epsilon, Y);
}

fp_status fp_layer_prepare_heads(const fp_layer *layer, fp_matrix norm, int64_t heads, fp_token_range tokens,
								 fp_workspace *workspace, fp_matrix X)
{
	fp_status status = FP_OK;
	if (!fp_matrix_is_absent(norm))
		FP_TRY(fp_layer_normalise_heads(layer, norm, heads, X, X));
	FP_TRY(fp_rotate_heads(workspace->be, fp_model_get_config(layer->model), &workspace->positions, layer->index,
						   tokens, false, heads, X));
cleanup:
	return status;
}

fp_attention_shape fp_layer_attention_shape(const fp_layer *layer, int64_t sequences, int64_t length)
{
	fp_attention_shape shape = fp_model_attention_shape(layer->model, sequences, length);
	shape.window = fp_config_window(fp_model_get_config(layer->model), layer->index);
	return shape;
}

int64_t fp_packing_width(const fp_model *model)
{
	const fp_model_config *c = fp_model_get_config(model);
	return 2 * (c->heads + c->kv_heads) * c->head_dim;
}

/* Copies rows from packed to unpacked, or with `pack` the other way. */
static fp_status copy_rows(fp_backend *be, const fp_packing *packing, fp_matrix packed, fp_matrix unpacked, bool pack)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < packing->span_count; i++) {
		const fp_row_span *span = &packing->spans[i];
		fp_matrix packed_rows = fp_matrix_rows(packed, span->packed, span->rows);
		fp_matrix unpacked_rows = fp_matrix_rows(unpacked, span->unpacked, span->rows);
		if (pack && span->copy)
			continue;
		FP_TRY(pack ? be->memory->copy(be, packed_rows, unpacked_rows)
					: be->memory->copy(be, unpacked_rows, packed_rows));
	}
cleanup:
	return status;
}

/* context ← attention(Q, K, V), each with sequences · length rows. */
static fp_status attention(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace, fp_matrix Q,
						   fp_matrix K, fp_matrix V, fp_matrix context)
{
	fp_status status;
	const fp_model_config *c = fp_model_get_config(layer->model);
	const fp_token_range tokens = {.length = state->length, .whole = state->length};
	fp_attention_shape shape = fp_layer_attention_shape(layer, state->sequences, state->length);
	shape.key_bias = workspace->positions.key_bias;
	if (state->past)
		return fp_layer_past_attention(layer, state, workspace, Q, K, V, context);
	FP_TRY(fp_layer_prepare_heads(layer, layer->query_norm, c->heads, tokens, workspace, Q));
	FP_TRY(fp_layer_prepare_heads(layer, layer->key_norm, c->kv_heads, tokens, workspace, K));
	FP_TRY(workspace->be->transformer->attention(workspace->be, &shape, Q, K, V, context));
cleanup:
	return status;
}

/* A contiguous matrix of `cols` columns that starts rows·skipped elements into the packing's workspace. */
static fp_matrix unpacked_part(const fp_layer_state *state, int64_t skipped, int64_t cols)
{
	fp_matrix part = state->packing->workspace;
	part.rows = state->sequences * state->length;
	part.offset += part.rows * skipped;
	part.cols = part.stride = cols;
	return part;
}

/* The same for packed Q, K, V and state->context. */
static fp_status packed_attention(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace,
								  fp_matrix Q, fp_matrix K, fp_matrix V)
{
	fp_status status;
	const fp_packing *packing = state->packing;
	fp_matrix unpacked_Q = unpacked_part(state, 0, Q.cols);
	fp_matrix unpacked_K = unpacked_part(state, Q.cols, K.cols);
	fp_matrix unpacked_V = unpacked_part(state, Q.cols + K.cols, V.cols);
	fp_matrix unpacked_context = unpacked_part(state, Q.cols + K.cols + V.cols, state->context.cols);
	/* No token attends to the padding, which comes last, but uninitialised memory may hold NaN. */
	FP_TRY(workspace->be->memory->fill(workspace->be, unpacked_part(state, 0, Q.cols + K.cols + V.cols), 0));
	FP_TRY(copy_rows(workspace->be, packing, Q, unpacked_Q, false));
	FP_TRY(copy_rows(workspace->be, packing, K, unpacked_K, false));
	FP_TRY(copy_rows(workspace->be, packing, V, unpacked_V, false));
	FP_TRY(attention(layer, state, workspace, unpacked_Q, unpacked_K, unpacked_V, unpacked_context));
	FP_TRY(copy_rows(workspace->be, packing, state->context, unpacked_context, true));
cleanup:
	return status;
}

fp_status fp_layer_attention(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace, fp_matrix Q,
							 fp_matrix K, fp_matrix V)
{
	return state->packing ? packed_attention(layer, state, workspace, Q, K, V)
						  : attention(layer, state, workspace, Q, K, V, state->context);
}
