/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/streams.h"

#include "base/clock.h"

#include <string.h>

/* Enough to keep a GEMM at its peak, and on a device to make the passes over A cheap beside it; more only takes memory.
 */
enum { BATCH_TOKENS = 4096, DEVICE_BATCH_TOKENS = 16384 };
static const int64_t MOST_WORKSPACE = (int64_t)3 << 30; /* bytes: wide models take fewer tokens at a time */

static int64_t batch_windows(const fp_model *model, int64_t windows, int64_t length)
{
	int64_t batch = (fp_model_backend(model)->asynchronous ? DEVICE_BATCH_TOKENS : BATCH_TOKENS) / length;
	while (batch > 1 && fp_workspace_bytes(model, batch * length) > MOST_WORKSPACE)
		batch /= 2;
	if (batch < 1)
		batch = 1;
	return batch < windows ? batch : windows;
}

static int64_t context_width(const fp_model *model)
{
	const fp_model_config *config = fp_model_get_config(model);
	return config->heads * config->head_dim;
}

/* The dense stream goes from attention past the operator behind it within a batch; the pruned one stops between them.
 */
static int64_t context_rows(int stream, int64_t tokens, int64_t batch)
{
	return stream == FP_DENSE ? batch : tokens;
}

static fp_status embed(fp_streams *streams, const fp_windows *windows)
{
	fp_status status = FP_OK;
	for (int64_t first = 0; status == FP_OK && first < streams->windows; first += streams->batch) {
		fp_layer_state state = fp_streams_batch(streams, FP_DENSE, first);
		status = fp_model_embed(streams->model, windows->ids + first * windows->length, state.sequences, state.length,
								state.hidden);
	}
	return status;
}

fp_status fp_streams_new(fp_streams *out, fp_model *model, const fp_windows *windows, bool both)
{
	fp_backend *be = fp_model_backend(model);
	int64_t tokens = windows->count * windows->length;
	fp_status status;
	memset(out, 0, sizeof *out);
	out->model = model;
	out->windows = windows->count;
	out->length = windows->length;
	out->batch = batch_windows(model, windows->count, windows->length);
	for (int s = 0; s < (both ? FP_STREAM_COUNT : 1); s++) {
		FP_TRY(fp_matrix_new(be, &out->hidden[s], tokens, fp_model_get_config(model)->hidden, FP_F32));
		FP_TRY(fp_matrix_new(be, &out->context[s], context_rows(s, tokens, fp_streams_batch_tokens(out)),
							 context_width(model), FP_F32));
		FP_TRY(fp_workspace_new(&out->workspace[s], model, fp_streams_batch_tokens(out)));
	}
	if (windows->ids)
		FP_TRY(embed(out, windows));
	if (windows->ids && both)
		FP_TRY(fp_streams_copy(out, FP_PRUNED, FP_DENSE));
cleanup:
	if (status != FP_OK)
		fp_streams_free(out);
	return status;
}

void fp_streams_free(fp_streams *streams)
{
	if (!streams->model)
		return;
	fp_backend *be = fp_model_backend(streams->model);
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		fp_matrix_free(be, &streams->hidden[s]);
		fp_matrix_free(be, &streams->context[s]);
		fp_workspace_free(streams->workspace[s]);
	}
	memset(streams, 0, sizeof *streams);
}

int64_t fp_streams_bytes(const fp_model *model, int64_t windows, int64_t length, bool both)
{
	int64_t tokens = windows * length;
	int64_t batch = batch_windows(model, windows, length) * length;
	int64_t bytes = 0;
	for (int s = 0; s < (both ? FP_STREAM_COUNT : 1); s++)
		bytes += (tokens * fp_model_get_config(model)->hidden + context_rows(s, tokens, batch) * context_width(model)) *
					 (int64_t)sizeof(float) +
				 fp_workspace_bytes(model, batch);
	return bytes;
}

int64_t fp_streams_batch_tokens(const fp_streams *streams)
{
	return streams->batch * streams->length;
}

fp_layer_state fp_streams_batch(const fp_streams *streams, int stream, int64_t first)
{
	int64_t count = streams->windows - first < streams->batch ? streams->windows - first : streams->batch;
	int64_t row = first * streams->length;
	int64_t rows = count * streams->length;
	return (fp_layer_state){
		.sequences = count,
		.length = streams->length,
		.hidden = fp_matrix_rows(streams->hidden[stream], row, rows),
		.context = fp_matrix_rows(streams->context[stream], stream == FP_DENSE ? 0 : row, rows),
	};
}

fp_status fp_streams_copy(fp_streams *streams, int to, int from)
{
	fp_backend *be = fp_model_backend(streams->model);
	return be->ops->copy(be, streams->hidden[to], streams->hidden[from]);
}

fp_status fp_streams_forward(fp_streams *streams, int stream, const fp_layer *layer)
{
	fp_backend *be = fp_model_backend(streams->model);
	fp_context *ctx = be->ctx;
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_FORWARD);
	fp_use use = fp_backend_use(be, FP_USE_ACTIVATION);
	fp_status status = FP_OK;
	for (int64_t first = 0; status == FP_OK && first < streams->windows; first += streams->batch) {
		fp_layer_state state = fp_streams_batch(streams, stream, first);
		status = fp_check_interrupt(ctx);
		if (status == FP_OK)
			status = fp_layer_forward(layer, &state, streams->workspace[stream]);
	}
	fp_backend_use(be, use);
	fp_stage_enter(ctx, stage);
	return status;
}
