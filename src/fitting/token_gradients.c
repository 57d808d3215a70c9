/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_gradients.c: the file has one slot for each layer from the first one requested. The forward pass writes each
 * layer's output into its slot. The backward pass reads it again as the input of the next layer, repeats that layer's
 * forward pass, and replaces it by the gradient. Both are rounded to bf16. That is precise enough: many models run in
 * bf16, and the gradients of single tokens are mostly noise.
 */
#include "fitting/token_gradients.h"

#include "backend/work_space.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "fitting/matrix_parts.h"

#include <unistd.h>

enum { BATCH_TOKENS = 4096 };
static const int64_t FILE_BYTES = (int64_t)4 << 30;
static const char *const FILE_NAME = "token gradients"; /* in messages */

struct fp_token_gradients {
	fp_model *model; /* borrowed */
	fp_backend *be;
	int64_t first, layers;
	int64_t windows, length, width;
	int64_t batch; /* windows at once */
	int file;
	uint16_t *host; /* a batch between the device and the file */
};

/* Memory of the passes. */
typedef struct pass_space {
	fp_matrix hidden;
	fp_workspace *workspace;
	fp_tape *tape;
	int32_t *targets;
} pass_space;

bool fp_token_gradients_wanted(const fp_settings *settings, const fp_windows *windows)
{
	return settings->fit_steps > 0 && fp_is(settings->fit_metric, "token") && windows->count > 0;
}

static int64_t batch_windows(const fp_windows *windows)
{
	int64_t batch = fp_smaller(BATCH_TOKENS / windows->length, windows->count);
	return batch > 1 ? batch : 1;
}

int64_t fp_token_gradients_windows(const fp_model *model, const fp_windows *windows)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t most = FILE_BYTES / (c->layers * c->hidden * fp_dtype_size(FP_BF16)) / windows->length;
	return fp_smaller(fp_larger(most, 1), windows->count);
}

/* The hidden states of a batch, or their gradients. */
static fp_matrix_part batch_part(fp_matrix *matrix, const fp_model *model, const fp_windows *windows)
{
	int64_t tokens = batch_windows(windows) * windows->length;
	return (fp_matrix_part){matrix, tokens, fp_model_get_config(model)->hidden, FP_F32};
}

/* The head, a layer's forward pass and a layer's backward pass are never in memory together. */
int64_t fp_token_gradients_bytes(const fp_model *model, const fp_windows *windows, int64_t held)
{
	const fp_backend *be = fp_model_backend(model);
	int64_t sequences = batch_windows(windows), tokens = sequences * windows->length;
	fp_matrix_part part = batch_part(NULL, model, windows);
	int64_t batch = fp_matrix_parts_bytes(&part, 1);
	fp_attention_shape shape = fp_model_attention_shape(model, sequences, windows->length);
	int64_t tape = fp_tape_bytes(model, tokens) + fp_attention_backward_bytes(be, &shape);
	int64_t head = fp_model_head_bytes(model) + batch;
	int64_t layer = held + fp_larger(tape, fp_workspace_bytes(model, tokens));
	return batch + fp_larger(head, layer);
}

void fp_token_gradients_free(fp_token_gradients *gradients)
{
	if (!gradients)
		return;
	if (gradients->file >= 0)
		close(gradients->file);
	fp_free(gradients->host);
	fp_free(gradients);
}

static void space_free(fp_backend *be, pass_space *space)
{
	fp_matrix_free(be, &space->hidden);
	fp_workspace_free(space->workspace);
	fp_tape_free(space->tape);
	fp_free(space->targets);
}

static int64_t offset_of(const fp_token_gradients *g, int64_t layer, int64_t window)
{
	int64_t slot = fp_larger(layer - g->first, 0); /* layers below the first share its slot */
	return ((slot * g->windows + window) * g->length) * g->width * fp_dtype_size(FP_BF16);
}

static fp_status write_slot(const fp_token_gradients *g, int64_t layer, int64_t window, fp_matrix rows)
{
	fp_status status;
	FP_TRY(g->be->memory->download(g->be, g->host, FP_BF16, rows.cols, rows));
	FP_TRY(g->be->memory->synchronize(g->be));
	FP_TRY(fp_write_at(g->be->ctx, g->file, FILE_NAME, g->host, fp_matrix_size(rows) * fp_dtype_size(FP_BF16),
					   offset_of(g, layer, window)));
cleanup:
	return status;
}

static fp_status read_slot(const fp_token_gradients *g, int64_t layer, int64_t window, fp_matrix rows)
{
	fp_status status;
	FP_TRY(fp_read_at(g->be->ctx, g->file, FILE_NAME, g->host, fp_matrix_size(rows) * fp_dtype_size(FP_BF16),
					  offset_of(g, layer, window)));
	FP_TRY(g->be->memory->upload(g->be, rows, g->host, FP_BF16, rows.cols));
	FP_TRY(g->be->memory->synchronize(g->be)); /* the next call writes to g->host */
cleanup:
	return status;
}

/* Writes the layer's outputs for all windows into its slot. */
static fp_status forward_layer(const fp_token_gradients *g, const fp_windows *windows, int64_t index, pass_space *space)
{
	fp_layer *layer = NULL;
	fp_status status = fp_layer_load(&layer, g->model, index);
	for (int64_t window = 0; status == FP_OK && window < g->windows; window += g->batch) {
		int64_t count = fp_smaller(g->batch, g->windows - window);
		fp_layer_state state = {
			.sequences = count, .length = g->length, .hidden = fp_matrix_rows(space->hidden, 0, count * g->length)};
		FP_TRY(fp_check_interrupt(g->be->ctx));
		if (index == 0)
			FP_TRY(fp_model_embed(g->model, windows->ids + window * g->length, count, g->length, state.hidden));
		else
			FP_TRY(read_slot(g, index - 1, window, state.hidden));
		FP_TRY(fp_layer_forward(layer, &state, space->workspace));
		FP_TRY(write_slot(g, index, window, state.hidden));
	}
cleanup:
	fp_layer_free(layer);
	return status;
}

/* Replaces the outputs of the last layer by their gradients. */
static fp_status backward_head(const fp_token_gradients *g, const fp_windows *windows, pass_space *space)
{
	fp_matrix gradient = {0};
	fp_matrix_part batch = batch_part(&gradient, g->model, windows);
	fp_status status = fp_matrix_parts_new(g->be, &batch, 1);
	for (int64_t window = 0; status == FP_OK && window < g->windows; window += g->batch) {
		int64_t rows = fp_smaller(g->batch, g->windows - window) * g->length;
		const int32_t *ids = windows->ids + window * g->length;
		fp_matrix hidden = fp_matrix_rows(space->hidden, 0, rows), part = fp_matrix_rows(gradient, 0, rows);
		for (int64_t i = 0; i < rows; i++)
			space->targets[i] = (i + 1) % g->length == 0 ? -1 : ids[i + 1];
		FP_TRY(fp_check_interrupt(g->be->ctx));
		FP_TRY(read_slot(g, g->layers - 1, window, hidden));
		FP_TRY(fp_model_loss_gradient(g->model, hidden, space->targets, part));
		FP_TRY(write_slot(g, g->layers - 1, window, part));
	}
cleanup:
	fp_matrix_free(g->be, &gradient);
	fp_model_drop_head(g->model);
	return status;
}

/* Replaces the inputs of the layer, the outputs of the one below, by their gradients. */
static fp_status backward_layer(const fp_token_gradients *g, int64_t index, pass_space *space)
{
	fp_layer *layer = NULL;
	fp_status status = fp_layer_load(&layer, g->model, index);
	for (int64_t window = 0; status == FP_OK && window < g->windows; window += g->batch) {
		int64_t count = fp_smaller(g->batch, g->windows - window);
		fp_matrix input = fp_matrix_rows(space->hidden, 0, count * g->length), output, gradient;
		FP_TRY(fp_check_interrupt(g->be->ctx));
		FP_TRY(read_slot(g, index - 1, window, input));
		FP_TRY(fp_layer_forward_taped(layer, count, g->length, input, space->tape, &output));
		FP_TRY(read_slot(g, index, window, output));
		FP_TRY(fp_layer_backward_input(layer, space->tape, &gradient));
		FP_TRY(write_slot(g, index - 1, window, gradient));
	}
cleanup:
	fp_layer_free(layer);
	return status;
}

static fp_status run_passes(const fp_token_gradients *g, const fp_windows *windows, pass_space *space)
{
	int64_t tokens = g->batch * g->length;
	FP_PRODUCTS_FOR(g->be, FP_USE_ACTIVATION);
	fp_matrix_part batch = batch_part(&space->hidden, g->model, windows);
	fp_status status;
	FP_TRY(FP_NEW(g->be->ctx, &space->targets, tokens));
	FP_TRY(fp_matrix_parts_new(g->be, &batch, 1));
	FP_TRY(fp_workspace_new(&space->workspace, g->model, tokens));
	for (int64_t layer = 0; layer < g->layers; layer++)
		FP_TRY(forward_layer(g, windows, layer, space));
	fp_workspace_free(space->workspace);
	space->workspace = NULL;
	FP_TRY(backward_head(g, windows, space));
	FP_TRY(fp_tape_new(&space->tape, g->model, tokens));
	for (int64_t layer = g->layers - 1; layer > g->first; layer--)
		FP_TRY(backward_layer(g, layer, space));
cleanup:
	return status;
}

fp_status fp_token_gradients_new(fp_token_gradients **out, fp_model *model, const fp_windows *windows, int64_t first,
								 const char *folder)
{
	fp_backend *be = fp_model_backend(model);
	fp_token_gradients *g = NULL;
	pass_space space = {0};
	double started = fp_clock();
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FIT);
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &g, 1));
	*g = (fp_token_gradients){.model = model,
							  .be = be,
							  .first = first,
							  .layers = fp_model_get_config(model)->layers,
							  .windows = fp_token_gradients_windows(model, windows),
							  .length = windows->length,
							  .width = fp_model_get_config(model)->hidden,
							  .batch = batch_windows(windows),
							  .file = -1};
	FP_TRY(FP_NEW(be->ctx, &g->host, g->batch * g->length * g->width));
	FP_TRY(fp_scratch_file(&g->file, be->ctx, folder, offset_of(g, g->layers, 0)));
	FP_TRY(run_passes(g, windows, &space));
	fp_log(be->ctx, FP_LOG_INFO, "token gradients: %lld layers, %lld windows, %.1f s", (long long)(g->layers - first),
		   (long long)g->windows, fp_clock() - started);
	*out = g;
	g = NULL;
cleanup:
	space_free(be, &space);
	fp_token_gradients_free(g);
	fp_stage_enter(be->ctx, stage);
	return status;
}

int64_t fp_token_gradients_count(const fp_token_gradients *gradients)
{
	return gradients->windows;
}

fp_status fp_token_gradients_read(const fp_token_gradients *gradients, int64_t layer, int64_t first, int64_t windows,
								  fp_matrix out)
{
	const fp_token_gradients *g = gradients;
	fp_status status = FP_OK;
	FP_REQUIRE(g->be, layer >= g->first && layer < g->layers && first >= 0 && first + windows <= g->windows);
	FP_REQUIRE(g->be, out.rows == windows * g->length && out.cols == g->width);
	for (int64_t window = 0; window < windows; window += g->batch) {
		int64_t count = fp_smaller(g->batch, windows - window);
		FP_TRY(read_slot(g, layer, first + window, fp_matrix_rows(out, window * g->length, count * g->length)));
	}
cleanup:
	return status;
}
