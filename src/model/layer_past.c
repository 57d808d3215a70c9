/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_past.c: attention of new tokens over the keys and values that are kept of the tokens before them.
 *
 * Sequences in neighbouring slots that have equally many tokens go through the device together; in general every
 * sequence has its own positions.
 */
#include "model/layer_workspace.h"
#include "model/model_parts.h"

/* Whether the next sequence can go through the device with this one. */
static bool continues(const fp_past_sequence *one, const fp_past_sequence *next)
{
	return next->slot == one->slot + 1 && next->count == one->count && next->whole == one->whole;
}

/* Appends X, `run` sequences of `length` tokens, to their rows in the cache. */
static fp_status append(fp_backend *be, const fp_past *past, const fp_past_sequence *first, int64_t run, int64_t length,
						fp_matrix X, fp_matrix cache)
{
	fp_status status = FP_OK;
	int64_t row = first->slot * past->capacity + first->count;
	if (length == 1) { /* one row of each slot */
		fp_matrix rows = fp_matrix_rows(cache, row, 1);
		rows.rows = run;
		rows.stride *= past->capacity;
		return be->memory->copy(be, rows, X);
	}
	for (int64_t s = 0; s < run; s++)
		FP_TRY(be->memory->copy(be, fp_matrix_rows(cache, row + s * past->capacity, length),
								fp_matrix_rows(X, s * length, length)));
cleanup:
	return status;
}

static fp_status attend_run(const fp_layer *layer, const fp_layer_state *state, int64_t first, int64_t run,
							fp_workspace *workspace, fp_matrix Q, fp_matrix K, fp_matrix V, fp_matrix context)
{
	fp_status status;
	fp_backend *be = workspace->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	const fp_past *past = state->past;
	const fp_past_sequence *sequence = &past->sequences[first];
	const fp_token_range tokens = {.first = sequence->count, .length = state->length, .whole = sequence->whole};
	int64_t row = first * state->length, rows = run * state->length;
	fp_attention_shape shape = fp_layer_attention_shape(layer, run, state->length);
	shape.past = sequence->count;
	shape.key_rows = past->capacity;
	shape.key_bias = workspace->positions.key_bias;
	Q = fp_matrix_rows(Q, row, rows);
	K = fp_matrix_rows(K, row, rows);
	V = fp_matrix_rows(V, row, rows);
	FP_TRY(fp_layer_prepare_heads(layer, layer->query_norm, c->heads, tokens, workspace, Q));
	FP_TRY(fp_layer_prepare_heads(layer, layer->key_norm, c->kv_heads, tokens, workspace, K));
	FP_TRY(append(be, past, sequence, run, state->length, K, past->keys));
	FP_TRY(append(be, past, sequence, run, state->length, V, past->values));
	int64_t begin = sequence->slot * past->capacity;
	FP_TRY(be->transformer->attention(be, &shape, Q, fp_matrix_rows(past->keys, begin, run * past->capacity),
									  fp_matrix_rows(past->values, begin, run * past->capacity),
									  fp_matrix_rows(context, row, rows)));
cleanup:
	return status;
}

fp_status fp_layer_past_attention(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace,
								  fp_matrix Q, fp_matrix K, fp_matrix V, fp_matrix context)
{
	fp_status status = FP_OK;
	const fp_past_sequence *sequences = state->past->sequences;
	for (int64_t first = 0, run; first < state->sequences; first += run) {
		run = 1;
		while (first + run < state->sequences && continues(&sequences[first + run - 1], &sequences[first + run]))
			run++;
		FP_TRY(attend_run(layer, state, first, run, workspace, Q, K, V, context));
	}
cleanup:
	return status;
}

fp_status fp_layer_check_past(const fp_layer *layer, const fp_layer_state *state, const fp_workspace *workspace)
{
	fp_backend *be = workspace->be;
	const fp_past *past = state->past;
	fp_status status = FP_OK;
	FP_REQUIRE(be, !state->packing && past->keys.dtype == workspace->type && past->values.dtype == workspace->type);
	for (int64_t s = 0; s < state->sequences; s++) {
		const fp_past_sequence *one = &past->sequences[s];
		FP_REQUIRE(be, one->slot >= 0 && (one->slot + 1) * past->capacity <= past->keys.rows);
		FP_REQUIRE(be, one->count >= 0 && one->count + state->length <= one->whole && one->whole <= past->capacity);
		FP_TRY(fp_model_check_length(layer->model, one->whole));
	}
cleanup:
	return status;
}
