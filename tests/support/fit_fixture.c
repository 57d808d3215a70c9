/* SPDX-License-Identifier: Apache-2.0 */
#include "fit_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 40 };

const char *const fit_models[FIT_MODEL_COUNT] = {"llama-gqa", "llama-plain", "opt-plain", "opt-350m"};

float *download_floats(fit_fixture *fit, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_ok(fit->f.ctx, fit->f.be->memory->download(fit->f.be, out, FP_F32, matrix.cols, matrix));
	assert_ok(fit->f.ctx, fit->f.be->memory->synchronize(fit->f.be));
	return out;
}

void open_fit(fit_fixture *fit, const char *model, int64_t windows, const char *const *assignments)
{
	uint64_t seed = 3;
	memset(fit, 0, sizeof *fit);
	open_fixture(&fit->f, model);
	fit->windows = (fp_windows){.count = windows, .length = FIT_LENGTH};
	fit->windows.ids = calloc((size_t)(windows * FIT_LENGTH), sizeof *fit->windows.ids);
	for (int64_t i = 0; i < windows * FIT_LENGTH; i++)
		fit->windows.ids[i] = (int32_t)((double)(random_uniform(&seed) + 1) / 2 * VOCABULARY) % VOCABULARY;
	fit->settings = resolved_settings(fit->f.ctx, "llama", assignments);
	int64_t width = fp_model_get_config(fit->f.model)->hidden;
	assert_ok(fit->f.ctx, fp_workspace_new(&fit->workspace, fit->f.model, windows * FIT_LENGTH));
	assert_ok(fit->f.ctx, fp_matrix_new(fit->f.be, &fit->input, windows * FIT_LENGTH, width, FP_F32));
	assert_ok(fit->f.ctx, fp_matrix_new(fit->f.be, &fit->target, windows * FIT_LENGTH, width, FP_F32));
	assert_ok(fit->f.ctx, fp_model_embed(fit->f.model, fit->windows.ids, windows, FIT_LENGTH, fit->input));
	assert_ok(fit->f.ctx, fp_layer_load(&fit->layer, fit->f.model, 0));
}

void close_fit(fit_fixture *fit)
{
	fp_layer_free(fit->layer);
	fp_matrix_free(fit->f.be, &fit->input);
	fp_matrix_free(fit->f.be, &fit->target);
	fp_matrix_free(fit->f.be, &fit->gradients);
	fp_workspace_free(fit->workspace);
	fp_settings_free(fit->settings);
	free(fit->windows.ids);
	close_fixture(&fit->f);
}

void forward_fit(fit_fixture *fit, const fp_layer *layer, fp_matrix out)
{
	fp_layer_state state = {.sequences = fit->windows.count, .length = FIT_LENGTH, .hidden = out};
	FP_PRODUCTS_FOR(fit->f.be, FP_USE_ACTIVATION); /* as the fit and the streams do */
	assert_ok(fit->f.ctx, fit->f.be->memory->copy(fit->f.be, out, fit->input));
	assert_ok(fit->f.ctx, fp_layer_forward(layer, &state, fit->workspace));
}

void prune_by_size(fit_fixture *fit)
{
	fp_pattern half = {.sparsity = 0.5};
	fp_backend *be = fit->f.be;
	forward_fit(fit, fit->layer, fit->target);
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = fit->layer->weight[role], mask, own, wide;
		if (fp_matrix_is_absent(weight))
			continue;
		assert_ok(fit->f.ctx, fp_matrix_new(be, &mask, weight.rows, weight.cols, FP_U8));
		assert_ok(fit->f.ctx, fp_matrix_widen(be, weight, &own, &wide));
		assert_ok(fit->f.ctx, be->pruning->mask_smallest(be, wide, &half, mask));
		assert_ok(fit->f.ctx, be->pruning->apply_mask(be, mask, wide));
		if (weight.dtype != FP_F32)
			assert_ok(fit->f.ctx, be->memory->copy(be, weight, wide));
		fp_matrix_free(be, &mask);
		fp_matrix_free(be, &own);
	}
}

static fp_status read_window(void *data, int64_t window, fp_matrix input, fp_matrix target)
{
	fit_fixture *fit = data;
	fp_backend *be = fit->f.be;
	fp_status status = be->memory->copy(be, input, fp_matrix_rows(fit->input, window * FIT_LENGTH, FIT_LENGTH));
	return status == FP_OK ? be->memory->copy(be, target, fp_matrix_rows(fit->target, window * FIT_LENGTH, FIT_LENGTH))
						   : status;
}

static fp_status read_fisher(void *data, fp_matrix out)
{
	fit_fixture *fit = data;
	fp_matrix gradients = fp_matrix_rows(fit->gradients, 0, fit->gradient_windows * FIT_LENGTH);
	return fit->f.be->linear->gram(fit->f.be, gradients, 0, out);
}

static fp_status read_gradients(void *data, int64_t window, fp_matrix out)
{
	fit_fixture *fit = data;
	return fit->f.be->memory->copy(fit->f.be, out, fp_matrix_rows(fit->gradients, window * FIT_LENGTH, FIT_LENGTH));
}

fp_fit_task fit_task(fit_fixture *fit)
{
	return (fp_fit_task){.be = fit->f.be,
						 .ctx = fit->f.ctx,
						 .settings = fit->settings,
						 .layer = fit->layer,
						 .read = read_window,
						 .read_fisher = fit->gradient_windows > 0 ? read_fisher : NULL,
						 .read_gradients = fit->settings->adapt > 0 ? read_gradients : NULL,
						 .read_data = fit,
						 .share = fit->share.parts > 0 ? &fit->share : NULL,
						 .windows = fit->windows.count,
						 .gradient_windows = fit->gradient_windows,
						 .fisher_tokens = fit->gradient_windows * FIT_LENGTH,
						 .length = FIT_LENGTH,
						 .batch = FIT_BATCH};
}

void run_fit(fit_fixture *fit)
{
	const fp_fit_task task = fit_task(fit);
	assert_ok(fit->f.ctx, fp_fit_layer(&task, &fit->result));
}

double relative_loss(fit_fixture *fit, int64_t first, int64_t end)
{
	fp_matrix out;
	assert_ok(fit->f.ctx, fp_matrix_new(fit->f.be, &out, fit->input.rows, fit->input.cols, FP_F32));
	forward_fit(fit, fit->layer, out);
	float *y = download_floats(fit, out), *t = download_floats(fit, fit->target), *x = download_floats(fit, fit->input);
	double error = 0, energy = 0;
	for (int64_t i = first * FIT_LENGTH * out.cols; i < end * FIT_LENGTH * out.cols; i++) {
		error += ((double)y[i] - (double)t[i]) * ((double)y[i] - (double)t[i]);
		energy += ((double)t[i] - (double)x[i]) * ((double)t[i] - (double)x[i]);
	}
	free(y);
	free(t);
	free(x);
	fp_matrix_free(fit->f.be, &out);
	return error / energy;
}

fp_matrix layer_tensor(const fit_fixture *fit, int index)
{
	return index % 2 ? fit->layer->bias[index / 2] : fit->layer->weight[index / 2];
}

void read_weights(fit_fixture *fit, float *out[FIT_TENSORS])
{
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = fit->layer->weight[role], bias = fit->layer->bias[role];
		out[2 * role] = fp_matrix_is_absent(weight) ? NULL : download_floats(fit, weight);
		out[2 * role + 1] = fp_matrix_is_absent(bias) ? NULL : download_floats(fit, bias);
	}
}

void free_weights(float *weights[FIT_TENSORS])
{
	for (int i = 0; i < FIT_TENSORS; i++)
		free(weights[i]);
}

void check_weights(fit_fixture *fit, float *before[FIT_TENSORS], float *after[FIT_TENSORS])
{
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = fit->layer->weight[role], bias = fit->layer->bias[role];
		if (fp_matrix_is_absent(weight))
			continue;
		fp_dtype dtype = fp_model_operator(fit->f.model, 0, (fp_role)role)->dtype;
		for (int part = 0; part < 2; part++) {
			fp_matrix matrix = part ? bias : weight, typed;
			if (fp_matrix_is_absent(matrix))
				continue;
			assert_ok(fit->f.ctx, fp_matrix_new(fit->f.be, &typed, matrix.rows, matrix.cols, dtype));
			assert_ok(fit->f.ctx, fit->f.be->memory->copy(fit->f.be, typed, matrix));
			float *rounded = download_floats(fit, typed);
			const float *now = after[2 * role + part];
			assert_memory_equal(rounded, now, (size_t)fp_matrix_size(matrix) * sizeof *now);
			free(rounded);
			fp_matrix_free(fit->f.be, &typed);
		}
		for (int64_t i = 0; i < fp_matrix_size(weight); i++)
			if (before[2 * role][i] == 0)
				assert_true(after[2 * role][i] == 0 && !signbit(after[2 * role][i]));
	}
}

void make_token_gradients(fit_fixture *fit, int64_t windows)
{
	int64_t rows = windows * FIT_LENGTH, width = fit->input.cols;
	float *values = malloc((size_t)(rows * width) * sizeof *values);
	uint64_t seed = 29;
	for (int64_t i = 0; i < rows * width; i++)
		values[i] = 0.01F * (random_normal(&seed) + (i % width % 3 == 0 ? 2.0F : 0));
	assert_ok(fit->f.ctx, fp_matrix_new(fit->f.be, &fit->gradients, rows, width, FP_F32));
	assert_ok(fit->f.ctx, fit->f.be->memory->upload(fit->f.be, fit->gradients, values, FP_F32, width));
	fit->gradient_windows = windows;
	free(values);
}
