/* SPDX-License-Identifier: Apache-2.0 */
/* The error of hidden states behind each layer: zero without changes, and by hand for a layer that adds nothing. */
#include "evaluation/hidden_error.h"
#include "model/layer.h"
#include "model_fixture.h"

#include <math.h>
#include <stdlib.h>

static fp_status no_overlay(void *data, int64_t layer, fp_overlay **out)
{
	(void)data, (void)layer;
	*out = NULL;
	return FP_OK;
}

/* *out ← an overlay in which the operators that write into the residual stream of `layer` are zero */
static void silence(model_fixture *f, int64_t layer, fp_overlay **out)
{
	static const fp_role roles[] = {FP_OUTPUT, FP_DOWN};
	assert_ok(f->ctx, fp_overlay_new(out, f->ctx));
	for (int i = 0; i < 2; i++) {
		const fp_tensor_info *tensor = fp_model_operator(f->model, layer, roles[i]);
		void *zeros = calloc(1, (size_t)tensor->bytes);
		assert_ok(f->ctx, fp_overlay_replace(*out, tensor, zeros));
		free(zeros);
	}
}

/* √(mean ‖h₁ − h₂‖²/‖h₂‖²) of the hidden states before and after `layer` in the dense model */
static double change_by_layer(model_fixture *f, const fp_windows *windows, int64_t layer)
{
	int64_t tokens = windows->count * windows->length, width = fp_model_get_config(f->model)->hidden;
	float *before = malloc((size_t)(tokens * width) * sizeof *before);
	float *after = malloc((size_t)(tokens * width) * sizeof *after);
	fp_workspace *workspace;
	fp_matrix hidden;
	double sum = 0;
	assert_ok(f->ctx, fp_workspace_new(&workspace, f->model, tokens));
	assert_ok(f->ctx, fp_matrix_new(f->be, &hidden, tokens, width, FP_F32));
	assert_ok(f->ctx, fp_model_embed(f->model, windows->ids, windows->count, windows->length, hidden));
	for (int64_t i = 0; i <= layer; i++) {
		fp_layer *one;
		fp_layer_state state = {.sequences = windows->count, .length = windows->length, .hidden = hidden};
		assert_ok(f->ctx, f->be->memory->download(f->be, before, FP_F32, width, hidden));
		assert_ok(f->ctx, fp_layer_load(&one, f->model, i));
		assert_ok(f->ctx, fp_layer_forward(one, &state, workspace));
		fp_layer_free(one);
	}
	assert_ok(f->ctx, f->be->memory->download(f->be, after, FP_F32, width, hidden));
	for (int64_t t = 0; t < tokens; t++) {
		double error = 0, size = 0;
		for (int64_t i = t * width; i < (t + 1) * width; i++) {
			error += pow((double)before[i] - (double)after[i], 2);
			size += pow((double)after[i], 2);
		}
		sum += error / size;
	}
	fp_workspace_free(workspace);
	fp_matrix_free(f->be, &hidden);
	free(before);
	free(after);
	return sqrt(sum / (double)tokens);
}

static void errors_are_those_of_the_definition(void **unused)
{
	(void)unused;
	model_fixture f;
	double errors[8];
	open_fixture(&f, "llama-gqa");
	fp_windows windows = read_windows("llama-gqa");
	int64_t layers = fp_model_get_config(f.model)->layers;
	assert_true(layers >= 2 && layers <= 8);
	fp_hidden_error_task task = {.model = f.model, .layer_overlay = no_overlay, .windows = &windows};
	assert_ok(f.ctx, fp_hidden_errors(errors, &task));
	for (int64_t i = 0; i < layers; i++)
		assert_true(errors[i] == 0);
	fp_overlay *overlay;
	silence(&f, 1, &overlay);
	task.overlay = overlay;
	assert_ok(f.ctx, fp_hidden_errors(errors, &task));
	double want = change_by_layer(&f, &windows, 1);
	assert_true(errors[0] == 0);
	assert_true(want > 0.01 && fabs(errors[1] - want) < 1e-5 * want);
	fp_overlay_free(overlay);
	free(windows.ids);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(errors_are_those_of_the_definition)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
