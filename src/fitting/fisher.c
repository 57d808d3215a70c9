/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fisher.c: the forward pass writes the output of each layer to the file. The backward pass reads it as the input of
 * the next layer, repeats that layer's forward pass, and computes the gradient from the one of the layer above, which
 * stays on the device. Hidden states are rounded to bf16 in the file: many models run in bf16.
 */
#include "fitting/fisher.h"

#include "backend/work_space.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "fitting/fisher_file.h"

enum {
	BATCH_TOKENS = 4096,
	LEAST_TOKENS = 32768,  /* of Σ ggᵀ, if the text has them */
	TOKENS_PER_FEATURE = 8 /* and so many times the hidden size: its rank is then full */
};
static const int64_t STATE_BYTES = (int64_t)8 << 30;    /* of hidden states in the file */
static const int64_t GRADIENT_BYTES = (int64_t)4 << 30; /* of the gradients of all layers, if they are kept */

struct fp_fisher {
	fp_model *model; /* borrowed */
	fp_backend *be;
	fp_fisher_file file;
	/* during the passes only */
	fp_matrix hidden;   /* of a batch */
	fp_matrix gradient; /* of all windows */
	int32_t *targets;   /* of a batch */
};

bool fp_fisher_wanted(const fp_settings *settings, const fp_windows *windows)
{
	return settings->fit_steps > 0 && fp_is(settings->fit_metric, "token") && windows->count > 0;
}

bool fp_fisher_keeps_gradients(const fp_settings *settings)
{
	return settings->adapt > 0;
}

int64_t fp_fisher_windows(const fp_model *model, const fp_settings *settings, const fp_windows *windows)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t tokens = fp_larger(LEAST_TOKENS, TOKENS_PER_FEATURE * c->hidden);
	int64_t most = (tokens + windows->length - 1) / windows->length;
	if (fp_fisher_keeps_gradients(settings))
		most = GRADIENT_BYTES / (c->layers * c->hidden * fp_dtype_size(FP_BF16)) / windows->length;
	return fp_smaller(fp_larger(most, 1), windows->count);
}

static fp_fisher_file plan_file(const fp_model *model, const fp_settings *settings, const fp_windows *windows,
								int64_t state_bytes, int64_t first, int64_t end)
{
	int64_t batch = fp_smaller(BATCH_TOKENS / windows->length, windows->count);
	fp_fisher_file file = {.be = fp_model_backend(model),
						   .layers = fp_model_get_config(model)->layers,
						   .first = first,
						   .end = end,
						   .windows = fp_fisher_windows(model, settings, windows),
						   .length = windows->length,
						   .width = fp_model_get_config(model)->hidden,
						   .batch = fp_larger(batch, 1),
						   .slot_limit = state_bytes > 0 ? state_bytes : STATE_BYTES,
						   .keeps_outputs = fp_fisher_keeps_gradients(settings)};
	fp_fisher_file_plan(&file);
	return file;
}

/* The head, a layer's pass and a matrix are never in memory together. */
int64_t fp_fisher_bytes(const fp_model *model, const fp_settings *settings, const fp_windows *windows, int64_t held)
{
	const fp_backend *be = fp_model_backend(model);
	fp_fisher_file f = plan_file(model, settings, windows, 0, 0, 0);
	int64_t tokens = f.batch * f.length, entries = tokens * f.width;
	int64_t states = (entries + f.windows * f.length * f.width) * fp_dtype_size(FP_F32);
	fp_attention_shape shape = fp_model_attention_shape(model, f.batch, f.length);
	int64_t tape = fp_tape_bytes(model, tokens) + fp_attention_backward_bytes(be, &shape);
	int64_t layer = held + fp_larger(tape, fp_workspace_bytes(model, tokens));
	int64_t matrix =
		f.width * f.width * fp_dtype_size(FP_F32) + fp_product_bytes(be, FP_USE_REFINEMENT, entries, entries);
	return states + fp_larger(fp_model_head_bytes(model), fp_larger(layer, matrix));
}

/* Through each layer twice forward (three times with a stride) and once backward by the inputs, then Σ ggᵀ; through the
 * head once each. */
double fp_fisher_flops(const fp_model *model, const fp_settings *settings, const fp_windows *windows, int64_t weights)
{
	const fp_model_config *c = fp_model_get_config(model);
	fp_fisher_file f = plan_file(model, settings, windows, 0, 0, 0);
	double layer = (f.stride > 1 ? 8 : 6) * (double)weights + 2 * (double)(c->hidden * c->hidden);
	double head = 4 * (double)(c->vocabulary * c->embedding);
	return (double)(f.windows * f.length) * ((double)c->layers * layer + head);
}

static void free_space(fp_fisher *s)
{
	fp_matrix_free(s->be, &s->hidden);
	fp_matrix_free(s->be, &s->gradient);
	fp_free(s->targets);
	s->targets = NULL;
}

void fp_fisher_free(fp_fisher *fisher)
{
	if (!fisher)
		return;
	free_space(fisher);
	fp_fisher_file_close(&fisher->file);
	fp_free(fisher);
}

/* The windows of the batch that begins at `window`, and their gradients. */
static int64_t batch_count(const fp_fisher *s, int64_t window)
{
	return fp_smaller(s->file.batch, s->file.windows - window);
}

static fp_matrix gradient_rows(const fp_fisher *s, int64_t window)
{
	return fp_matrix_rows(s->gradient, window * s->file.length, batch_count(s, window) * s->file.length);
}

/* Writes the layer's outputs for all windows into its slot. */
static fp_status forward_layer(const fp_fisher *s, const fp_windows *windows, int64_t index)
{
	int64_t length = s->file.length;
	fp_layer *layer = NULL;
	fp_workspace *workspace = NULL;
	fp_status status;
	FP_TRY(fp_layer_load(&layer, s->model, index));
	FP_TRY(fp_workspace_new(&workspace, s->model, s->file.batch * length));
	for (int64_t window = 0; window < s->file.windows; window += s->file.batch) {
		int64_t count = batch_count(s, window);
		fp_layer_state state = {
			.sequences = count, .length = length, .hidden = fp_matrix_rows(s->hidden, 0, count * length)};
		FP_TRY(fp_check_interrupt(s->be->ctx));
		if (index == 0)
			FP_TRY(fp_model_embed(s->model, windows->ids + window * length, count, length, state.hidden));
		else
			FP_TRY(fp_fisher_read_slot(&s->file, index - 1, window, state.hidden));
		FP_TRY(fp_layer_forward(layer, &state, workspace));
		FP_TRY(fp_fisher_write_slot(&s->file, index, window, state.hidden));
	}
cleanup:
	fp_workspace_free(workspace);
	fp_layer_free(layer);
	return status;
}

/* gradient ← by the outputs of the last layer */
static fp_status backward_head(const fp_fisher *s, const fp_windows *windows)
{
	int64_t length = s->file.length;
	fp_status status = FP_OK;
	for (int64_t window = 0; window < s->file.windows; window += s->file.batch) {
		fp_matrix part = gradient_rows(s, window), hidden = fp_matrix_rows(s->hidden, 0, part.rows);
		const int32_t *ids = windows->ids + window * length;
		for (int64_t i = 0; i < part.rows; i++)
			s->targets[i] = (i + 1) % length == 0 ? -1 : ids[i + 1];
		FP_TRY(fp_check_interrupt(s->be->ctx));
		FP_TRY(fp_fisher_read_slot(&s->file, s->file.layers - 1, window, hidden));
		FP_TRY(fp_model_loss_gradient(s->model, hidden, s->targets, part));
	}
cleanup:
	fp_model_drop_head(s->model);
	return status;
}

/* gradient: by the outputs of a layer ← by its inputs, the outputs of the layer below */
static fp_status backward_layer(const fp_fisher *s, int64_t index)
{
	fp_backend *be = s->be;
	fp_layer *layer = NULL;
	fp_tape *tape = NULL;
	fp_status status;
	FP_TRY(fp_layer_load(&layer, s->model, index));
	FP_TRY(fp_tape_new(&tape, s->model, s->file.batch * s->file.length));
	for (int64_t window = 0; window < s->file.windows; window += s->file.batch) {
		fp_matrix part = gradient_rows(s, window), input = fp_matrix_rows(s->hidden, 0, part.rows), output, below;
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(fp_fisher_read_slot(&s->file, index - 1, window, input));
		FP_TRY(fp_layer_forward_taped(layer, batch_count(s, window), s->file.length, input, tape, &output));
		FP_TRY(be->memory->copy(be, output, part));
		FP_TRY(fp_layer_backward_input(layer, tape, &below));
		FP_TRY(be->memory->copy(be, part, below));
	}
cleanup:
	fp_tape_free(tape);
	fp_layer_free(layer);
	return status;
}

/* Writes Σ ggᵀ, and the gradients in place of the layer's outputs if they are kept. */
static fp_status store_layer(const fp_fisher *s, int64_t layer)
{
	FP_PRODUCTS_FOR(s->be, FP_USE_REFINEMENT);
	fp_backend *be = s->be;
	fp_matrix sum = {0};
	fp_status status = FP_OK;
	if (layer >= s->file.end)
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &sum, s->file.width, s->file.width, FP_F32));
	FP_TRY(be->memory->fill(be, sum, 0));
	for (int64_t window = 0; window < s->file.windows; window += s->file.batch) {
		fp_matrix part = gradient_rows(s, window);
		FP_TRY(be->linear->gram(be, part, 1, sum));
		if (s->file.keeps_outputs)
			FP_TRY(fp_fisher_write_slot(&s->file, layer, window, part));
	}
	FP_TRY(fp_fisher_write_matrix(&s->file, layer, sum));
cleanup:
	fp_matrix_free(be, &sum);
	return status;
}

static fp_status run_passes(fp_fisher *s, const fp_windows *windows)
{
	FP_PRODUCTS_FOR(s->be, FP_USE_ACTIVATION);
	const fp_fisher_file *f = &s->file;
	int64_t last = f->layers - 1;
	fp_status status;
	FP_TRY(FP_NEW(s->be->ctx, &s->targets, f->batch * f->length));
	FP_TRY(fp_matrix_new(s->be, &s->hidden, f->batch * f->length, f->width, FP_F32));
	for (int64_t layer = 0; layer <= last; layer++)
		FP_TRY(forward_layer(s, windows, layer));
	FP_TRY(fp_matrix_new(s->be, &s->gradient, f->windows * f->length, f->width, FP_F32));
	FP_TRY(backward_head(s, windows));
	FP_TRY(store_layer(s, last));
	for (int64_t layer = last; layer > f->first; layer--) {
		if (fp_fisher_file_shares_below(f, layer)) /* the same bits as the first time */
			for (int64_t below = layer - f->stride + 1; below < layer; below++)
				FP_TRY(forward_layer(s, windows, below));
		FP_TRY(backward_layer(s, layer));
		FP_TRY(store_layer(s, layer - 1));
	}
cleanup:
	free_space(s);
	return status;
}

fp_status fp_fisher_new(fp_fisher **out, const fp_fisher_request *request)
{
	fp_backend *be = fp_model_backend(request->model);
	fp_fisher *s = NULL;
	double started = fp_clock();
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FIT);
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &s, 1));
	*s = (fp_fisher){.model = request->model, .be = be};
	s->file = plan_file(request->model, request->settings, request->windows, request->state_bytes, request->first,
						request->end);
	FP_TRY(fp_fisher_file_open(&s->file, request->folder));
	FP_TRY(run_passes(s, request->windows));
	fp_log(be->ctx, FP_LOG_INFO, "Fisher's matrices: %lld layers, %lld windows, %.1f s",
		   (long long)(request->end - request->first), (long long)s->file.windows, fp_clock() - started);
	*out = s;
	s = NULL;
cleanup:
	fp_fisher_free(s);
	fp_stage_enter(be->ctx, stage);
	return status;
}

int64_t fp_fisher_tokens(const fp_fisher *fisher)
{
	return fisher->file.windows * fisher->file.length;
}

fp_status fp_fisher_read(const fp_fisher *fisher, int64_t layer, fp_matrix out)
{
	const fp_fisher_file *f = &fisher->file;
	FP_REQUIRE(f->be, layer >= f->first && layer < f->end && out.rows == f->width && out.cols == f->width);
	return fp_fisher_read_matrix(f, layer, out);
}

int64_t fp_fisher_gradient_windows(const fp_fisher *fisher)
{
	return fisher->file.keeps_outputs ? fisher->file.windows : 0;
}

fp_status fp_fisher_read_gradients(const fp_fisher *fisher, int64_t layer, int64_t first, int64_t windows,
								   fp_matrix out)
{
	const fp_fisher_file *f = &fisher->file;
	fp_status status = FP_OK;
	FP_REQUIRE(f->be, f->keeps_outputs && layer >= f->first && layer < f->end);
	FP_REQUIRE(f->be, first >= 0 && first + windows <= f->windows);
	FP_REQUIRE(f->be, out.rows == windows * f->length && out.cols == f->width);
	for (int64_t window = 0; window < windows; window += f->batch) {
		int64_t count = fp_smaller(f->batch, windows - window);
		fp_matrix rows = fp_matrix_rows(out, window * f->length, count * f->length);
		FP_TRY(fp_fisher_read_slot(f, layer, first + window, rows));
	}
cleanup:
	return status;
}
