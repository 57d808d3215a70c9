/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perplexity.c:
 *
 *     perplexity = exp(mean of −log p(next token))     over length − 1 tokens of each window
 *
 * Layers are loaded one at a time. A chunk of windows, as many as fit into memory, passes through a
 * layer in batches of a few thousand tokens, enough for fast matrix products.
 */
#include "evaluation/perplexity.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "evaluation/chunk_memory.h"
#include "model/layer.h"

#include <math.h>

typedef struct evaluation {
	fp_model *model;
	const fp_windows *windows;
	int64_t chunk, batch; /* windows in memory; windows through a layer at a time */
	fp_workspace *workspace;
	fp_matrix hidden; /* chunk·length × hidden */
	int32_t *targets; /* batch·length */
	float *losses;    /* batch·length */
	int64_t done;     /* windows × (layers + head) so far */
	double sum;
} evaluation;

static void plan(evaluation *e, int64_t memory)
{
	const fp_windows *w = e->windows;
	int64_t hidden_bytes = w->length * fp_model_get_config(e->model)->hidden * (int64_t)sizeof(float);
	e->batch = fp_evaluation_batch(e->model, memory) / w->length;
	if (e->batch < 1)
		e->batch = 1;
	int64_t available = memory - fp_workspace_bytes(e->model, e->batch * w->length);
	e->chunk = available / hidden_bytes / e->batch * e->batch; /* whole batches */
	if (e->chunk < e->batch)
		e->chunk = e->batch;
	if (e->chunk > w->count)
		e->chunk = w->count;
	if (e->batch > e->chunk)
		e->batch = e->chunk;
}

static fp_status step_done(evaluation *e, int64_t windows)
{
	fp_context *ctx = fp_model_backend(e->model)->ctx;
	e->done += windows;
	fp_report_progress(ctx, "evaluating", e->done, e->windows->count * (fp_model_get_config(e->model)->layers + 1));
	return fp_check_interrupt(ctx);
}

static fp_matrix batch_hidden(const evaluation *e, int64_t first, int64_t count)
{
	return fp_matrix_rows(e->hidden, first * e->windows->length, count * e->windows->length);
}

static fp_status run_layers(evaluation *e, int64_t count)
{
	fp_status status = FP_OK;
	fp_layer *layer = NULL;
	fp_backend *be = fp_model_backend(e->model);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	for (int64_t index = 0; index < fp_model_get_config(e->model)->layers; index++) {
		FP_TRY(fp_layer_load(&layer, e->model, index));
		for (int64_t first = 0; first < count; first += e->batch) {
			int64_t sequences = fp_smaller(e->batch, count - first);
			fp_layer_state state = {
				.sequences = sequences, .length = e->windows->length, .hidden = batch_hidden(e, first, sequences)};
			FP_TRY(fp_layer_forward(layer, &state, e->workspace));
			FP_TRY(step_done(e, sequences));
		}
		fp_layer_free(layer);
		layer = NULL;
	}
cleanup:
	fp_layer_free(layer);
	return status;
}

static fp_status score(evaluation *e, const int32_t *ids, int64_t count)
{
	fp_status status = FP_OK;
	int64_t length = e->windows->length;
	for (int64_t first = 0; first < count; first += e->batch) {
		int64_t sequences = fp_smaller(e->batch, count - first);
		const int32_t *batch_ids = ids + first * length;
		for (int64_t i = 0; i < sequences * length; i++)
			e->targets[i] = i % length == length - 1 ? -1 : batch_ids[i + 1];
		FP_TRY(fp_model_loss(e->model, batch_hidden(e, first, sequences), e->targets, e->losses, NULL));
		for (int64_t i = 0; i < sequences * length; i++)
			e->sum += e->losses[i];
		FP_TRY(step_done(e, sequences));
	}
cleanup:
	return status;
}

static fp_status check_windows(const fp_model *model, const fp_windows *windows)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	if (windows->count < 1)
		return fp_fail(ctx, FP_ERROR_INPUT, "the text has no window of %lld tokens to evaluate",
					   (long long)windows->length);
	if (windows->length < 2)
		return fp_fail(ctx, FP_ERROR_USAGE, "a sequence length of %lld leaves no token to predict; use 2 or more",
					   (long long)windows->length);
	return fp_model_check_length(model, windows->length);
}

fp_status fp_perplexity(fp_perplexity_result *out, fp_model *model, const fp_windows *windows, int64_t memory)
{
	fp_status status;
	fp_backend *be = fp_model_backend(model);
	evaluation e = {.model = model, .windows = windows};
	*out = (fp_perplexity_result){0};
	FP_TRY(check_windows(model, windows));
	FP_TRY(fp_evaluation_memory(be, memory, &memory));
	plan(&e, memory);
	FP_TRY(fp_workspace_new(&e.workspace, model, e.batch * windows->length));
	FP_TRY(fp_matrix_new(be, &e.hidden, e.chunk * windows->length, fp_model_get_config(model)->hidden, FP_F32));
	FP_TRY(FP_NEW(be->ctx, &e.targets, e.batch * windows->length));
	FP_TRY(FP_NEW(be->ctx, &e.losses, e.batch * windows->length));
	for (int64_t first = 0; first < windows->count; first += e.chunk) {
		int64_t count = fp_smaller(e.chunk, windows->count - first);
		const int32_t *ids = windows->ids + first * windows->length;
		FP_TRY(fp_model_embed(model, ids, count, windows->length, batch_hidden(&e, 0, count)));
		FP_TRY(run_layers(&e, count));
		FP_TRY(score(&e, ids, count));
	}
	out->windows = windows->count;
	out->tokens = windows->count * (windows->length - 1);
	out->mean_loss = e.sum / (double)out->tokens;
	out->perplexity = exp(out->mean_loss);
cleanup:
	fp_free(e.losses);
	fp_free(e.targets);
	fp_matrix_free(be, &e.hidden);
	fp_workspace_free(e.workspace);
	return status;
}
