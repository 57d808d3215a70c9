/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/layer_inputs.h"

#include "base/numbers.h"

/* Moments of d inputs need several times d tokens; small models get enough of them for a stable estimate anyway. */
enum { TOKENS_PER_INPUT = 8, LEAST_TOKENS = 32768, BATCH_TOKENS = 4096 };

static int64_t window_count(const fp_model *model, const fp_windows *windows)
{
	int64_t tokens = fp_larger(TOKENS_PER_INPUT * fp_model_get_config(model)->hidden, LEAST_TOKENS);
	return fp_smaller((tokens + windows->length - 1) / windows->length, windows->count);
}

static int64_t batch_windows(int64_t windows, int64_t length)
{
	return fp_larger(fp_smaller(BATCH_TOKENS / length, windows), 1);
}

fp_status fp_text_stream_open(fp_text_stream *out, fp_model *model, const fp_windows *windows)
{
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	int64_t count = window_count(model, windows), batch = batch_windows(count, windows->length);
	fp_status status;
	*out = (fp_text_stream){.model = model, .windows = count, .length = windows->length, .batch = batch};
	FP_TRY(fp_matrix_new(be, &out->hidden, count * windows->length, c->hidden, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->context, batch * windows->length, c->heads * c->head_dim, FP_F32));
	FP_TRY(fp_workspace_new(&out->workspace, model, batch * windows->length));
	FP_TRY(fp_model_embed(model, windows->ids, count, windows->length, out->hidden));
cleanup:
	if (status != FP_OK)
		fp_text_stream_free(out);
	return status;
}

void fp_text_stream_free(fp_text_stream *stream)
{
	if (!stream->model)
		return;
	fp_backend *be = fp_model_backend(stream->model);
	fp_matrix_free(be, &stream->hidden);
	fp_matrix_free(be, &stream->context);
	fp_workspace_free(stream->workspace);
	*stream = (fp_text_stream){0};
}

int64_t fp_text_stream_tokens(const fp_model *model, const fp_windows *windows)
{
	return window_count(model, windows) * windows->length;
}

int64_t fp_text_stream_bytes(const fp_model *model, const fp_windows *windows)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t count = window_count(model, windows), batch = batch_windows(count, windows->length);
	int64_t floats = count * windows->length * c->hidden + batch * windows->length * c->heads * c->head_dim;
	return floats * (int64_t)sizeof(float) + fp_workspace_bytes(model, batch * windows->length) +
		   fp_model_embedding_bytes(model);
}

int64_t fp_group_inputs(const fp_model *model, int group)
{
	const fp_model_config *c = fp_model_get_config(model);
	const int64_t inputs[FP_GROUP_COUNT] = {c->hidden, c->heads * c->head_dim, c->hidden, c->inner};
	return inputs[group];
}

void fp_layer_inputs_free(fp_backend *be, fp_layer_inputs *inputs)
{
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		fp_matrix_free(be, &inputs->H[group]);
	fp_matrix_free(be, &inputs->inner);
}

/* Adds a batch of windows to all sums, and moves it past the layer. */
static fp_status pass_batch(fp_layer_inputs *out, fp_text_stream *stream, const fp_layer *layer, int64_t first)
{
	fp_backend *be = fp_model_backend(stream->model);
	int64_t count = fp_smaller(stream->batch, stream->windows - first), rows = count * stream->length;
	fp_layer_state state = {.sequences = count,
							.length = stream->length,
							.hidden = fp_matrix_rows(stream->hidden, first * stream->length, rows),
							.context = fp_matrix_rows(stream->context, 0, rows)};
	fp_status status;
	FP_TRY(fp_check_interrupt(be->ctx));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		fp_matrix X;
		FP_TRY(fp_layer_input(layer, group, &state, stream->workspace, &X));
		if (!fp_matrix_is_absent(out->H[group]))
			FP_TRY(be->linear->gram(be, X, first > 0, out->H[group]));
		if (group == FP_GROUP_COUNT - 1)
			FP_TRY(be->gradients->column_squares(be, X, first > 0, out->inner));
		FP_TRY(fp_layer_advance(layer, group, X, &state, stream->workspace));
	}
cleanup:
	return status;
}

fp_status fp_layer_inputs_measure(fp_layer_inputs *out, fp_text_stream *stream, const fp_layer *layer, unsigned groups)
{
	fp_backend *be = fp_model_backend(stream->model);
	float share = 1.0F / (float)(stream->windows * stream->length);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	fp_status status = FP_OK;
	*out = (fp_layer_inputs){0};
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		int64_t n = fp_group_inputs(stream->model, group);
		if (groups & 1U << group)
			FP_TRY(fp_matrix_new(be, &out->H[group], n, n, FP_F32));
	}
	FP_TRY(fp_matrix_new(be, &out->inner, 1, fp_group_inputs(stream->model, FP_GROUP_COUNT - 1), FP_F32));
	for (int64_t first = 0; first < stream->windows; first += stream->batch)
		FP_TRY(pass_batch(out, stream, layer, first));
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		if (groups & 1U << group) {
			FP_TRY(be->linear->mirror(be, out->H[group]));
			FP_TRY(be->linear->axpby(be, 0, out->H[group], share, out->H[group]));
		}
	FP_TRY(be->linear->axpby(be, 0, out->inner, share, out->inner));
cleanup:
	if (status != FP_OK)
		fp_layer_inputs_free(be, out);
	return status;
}
