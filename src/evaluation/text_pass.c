/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/text_pass.h"

#include "base/numbers.h"
#include "evaluation/chunk_memory.h"
#include "model/layer.h"

fp_status fp_evaluation_step(fp_context *ctx, fp_evaluation_progress *progress, int64_t windows)
{
	progress->done += windows;
	fp_report_progress(ctx, "evaluating", progress->done, progress->total);
	return fp_check_interrupt(ctx);
}

void fp_next_tokens(int32_t *targets, const int32_t *ids, int64_t windows, int64_t length)
{
	for (int64_t i = 0; i < windows * length; i++)
		targets[i] = i % length == length - 1 ? -1 : ids[i + 1];
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

fp_status fp_text_pass_plan(fp_text_pass *pass, fp_model *model, const fp_windows *windows, int64_t memory,
							int64_t batch_memory)
{
	int64_t hidden_bytes = windows->length * fp_model_get_config(model)->hidden * (int64_t)sizeof(float);
	fp_status status = check_windows(model, windows);
	if (status != FP_OK)
		return status;
	pass->model = model;
	pass->windows = windows;
	pass->batch = fp_evaluation_batch(model, batch_memory) / windows->length;
	if (pass->batch < 1)
		pass->batch = 1;
	int64_t available = memory - fp_workspace_bytes(model, pass->batch * windows->length);
	pass->chunk = available / hidden_bytes / pass->batch * pass->batch; /* whole batches */
	if (pass->chunk < pass->batch)
		pass->chunk = pass->batch;
	pass->chunk = fp_smaller(pass->chunk, windows->count);
	pass->batch = fp_smaller(pass->batch, pass->chunk);
	return FP_OK;
}

fp_matrix fp_text_pass_hidden(const fp_text_pass *pass, int64_t first, int64_t count)
{
	return fp_matrix_rows(pass->hidden, first * pass->windows->length, count * pass->windows->length);
}

static fp_status run_layers(fp_text_pass *pass, fp_workspace *workspace, int64_t count)
{
	fp_status status = FP_OK;
	fp_layer *layer = NULL;
	fp_backend *be = fp_model_backend(pass->model);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	for (int64_t index = 0; index < fp_model_get_config(pass->model)->layers; index++) {
		FP_TRY(fp_layer_load(&layer, pass->model, index));
		for (int64_t first = 0; first < count; first += pass->batch) {
			int64_t sequences = fp_smaller(pass->batch, count - first);
			fp_layer_state state = {.sequences = sequences,
									.length = pass->windows->length,
									.hidden = fp_text_pass_hidden(pass, first, sequences)};
			FP_TRY(fp_layer_forward(layer, &state, workspace));
			FP_TRY(fp_evaluation_step(be->ctx, pass->progress, sequences));
		}
		fp_layer_free(layer);
		layer = NULL;
	}
cleanup:
	fp_layer_free(layer);
	return status;
}

fp_use fp_head_use(const fp_backend *be)
{
	return be->precision == FP_PRECISION_BF16 || !be->asynchronous ? FP_USE_ACTIVATION : FP_USE_EXACT;
}

fp_status fp_text_pass_run(fp_text_pass *pass, int64_t first, int64_t count)
{
	fp_status status;
	fp_workspace *workspace = NULL;
	fp_model *model = pass->model;
	int64_t length = pass->windows->length;
	FP_TRY(fp_workspace_new(&workspace, model, pass->batch * length));
	if (fp_matrix_is_absent(pass->hidden))
		FP_TRY(fp_matrix_new(fp_model_backend(model), &pass->hidden, pass->chunk * length,
							 fp_model_get_config(model)->hidden, FP_F32));
	FP_TRY(
		fp_model_embed(model, pass->windows->ids + first * length, count, length, fp_text_pass_hidden(pass, 0, count)));
	FP_TRY(run_layers(pass, workspace, count));
cleanup:
	fp_workspace_free(workspace);
	return status;
}

void fp_text_pass_free(fp_text_pass *pass)
{
	if (pass->model)
		fp_matrix_free(fp_model_backend(pass->model), &pass->hidden);
}
