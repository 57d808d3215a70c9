/* SPDX-License-Identifier: Apache-2.0 */
/* The layer fit: it helps, it never harms the windows that judge it, zeros stay, numbers are the checkpoint's, twice is
 * the same; and the pruning of a layer hands on what was fitted. */
#include "model_fixture.h"

#include "base/settings.h"
#include "pruning/prune_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {"llama-gqa", "llama-plain", "opt-plain", "opt-350m"}; /* bf16, f32, f16, f16 */
enum { MODEL_COUNT = 4, LENGTH = 24, VOCABULARY = 40, MOST_TENSORS = 2 * FP_ROLE_COUNT };

typedef struct fit_run {
	model_fixture f;
	fp_settings *settings;
	fp_windows windows;
	fp_layer *layer;
	fp_matrix input, target;
	fp_matrix gradients;      /* of a token loss; absent: there are none */
	int64_t gradient_windows; /* 0: the metric is plain */
	fp_workspace *workspace;
	fp_fit_result result;
} fit_run;

static float *download(fit_run *run, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_ok(run->f.ctx, run->f.be->memory->download(run->f.be, out, FP_F32, matrix.cols, matrix));
	assert_ok(run->f.ctx, run->f.be->memory->synchronize(run->f.be));
	return out;
}

static void open_run(fit_run *run, const char *name, int64_t windows, const char *const *assignments)
{
	uint64_t seed = 3;
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, name);
	run->windows = (fp_windows){.count = windows, .length = LENGTH};
	run->windows.ids = calloc((size_t)(windows * LENGTH), sizeof *run->windows.ids);
	for (int64_t i = 0; i < windows * LENGTH; i++)
		run->windows.ids[i] = (int32_t)((double)(random_uniform(&seed) + 1) / 2 * VOCABULARY) % VOCABULARY;
	run->settings = resolved_settings(run->f.ctx, "llama", assignments);
	int64_t width = fp_model_get_config(run->f.model)->hidden;
	assert_ok(run->f.ctx, fp_workspace_new(&run->workspace, run->f.model, windows * LENGTH));
	assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &run->input, windows * LENGTH, width, FP_F32));
	assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &run->target, windows * LENGTH, width, FP_F32));
	assert_ok(run->f.ctx, fp_model_embed(run->f.model, run->windows.ids, windows, LENGTH, run->input));
	assert_ok(run->f.ctx, fp_layer_load(&run->layer, run->f.model, 0));
}

static void close_run(fit_run *run)
{
	fp_layer_free(run->layer);
	fp_matrix_free(run->f.be, &run->input);
	fp_matrix_free(run->f.be, &run->target);
	fp_matrix_free(run->f.be, &run->gradients);
	fp_workspace_free(run->workspace);
	fp_settings_free(run->settings);
	free(run->windows.ids);
	close_fixture(&run->f);
}

/* out ← layer(input) */
static void forward(fit_run *run, const fp_layer *layer, fp_matrix out)
{
	fp_layer_state state = {.sequences = run->windows.count, .length = LENGTH, .hidden = out};
	FP_PRODUCTS_FOR(run->f.be, FP_USE_ACTIVATION); /* as the fit and the streams do */
	assert_ok(run->f.ctx, run->f.be->memory->copy(run->f.be, out, run->input));
	assert_ok(run->f.ctx, fp_layer_forward(layer, &state, run->workspace));
}

/* The dense layer's output is the target; then every entry below the median size goes. */
static void prune_by_size(fit_run *run)
{
	fp_pattern half = {.sparsity = 0.5};
	fp_backend *be = run->f.be;
	forward(run, run->layer, run->target);
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = run->layer->weight[role], mask, own, wide;
		if (fp_matrix_is_absent(weight))
			continue;
		assert_ok(run->f.ctx, fp_matrix_new(be, &mask, weight.rows, weight.cols, FP_U8));
		assert_ok(run->f.ctx, fp_matrix_widen(be, weight, &own, &wide));
		assert_ok(run->f.ctx, be->pruning->mask_smallest(be, wide, &half, mask));
		assert_ok(run->f.ctx, be->pruning->apply_mask(be, mask, wide));
		if (weight.dtype != FP_F32)
			assert_ok(run->f.ctx, be->memory->copy(be, weight, wide));
		fp_matrix_free(be, &mask);
		fp_matrix_free(be, &own);
	}
}

static fp_status read_window(void *data, int64_t window, fp_matrix input, fp_matrix target)
{
	fit_run *run = data;
	fp_backend *be = run->f.be;
	fp_status status = be->memory->copy(be, input, fp_matrix_rows(run->input, window * LENGTH, LENGTH));
	return status == FP_OK ? be->memory->copy(be, target, fp_matrix_rows(run->target, window * LENGTH, LENGTH))
						   : status;
}

static fp_status read_gradients(void *data, int64_t window, fp_matrix out)
{
	fit_run *run = data;
	return run->f.be->memory->copy(run->f.be, out, fp_matrix_rows(run->gradients, window * LENGTH, LENGTH));
}

static void fit(fit_run *run)
{
	const fp_fit_task task = {.be = run->f.be,
							  .ctx = run->f.ctx,
							  .settings = run->settings,
							  .layer = run->layer,
							  .read = read_window,
							  .read_data = run,
							  .windows = run->windows.count,
							  .length = LENGTH,
							  .read_gradients = run->gradient_windows > 0 ? read_gradients : NULL,
							  .gradient_windows = run->gradient_windows,
							  .batch = 3};
	assert_ok(run->f.ctx, fp_fit_layer(&task, &run->result));
}

/* The relative loss of windows [first, end). */
static double loss_of(fit_run *run, int64_t first, int64_t end)
{
	fp_matrix out;
	assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &out, run->input.rows, run->input.cols, FP_F32));
	forward(run, run->layer, out);
	float *y = download(run, out), *t = download(run, run->target), *x = download(run, run->input);
	double error = 0, energy = 0;
	for (int64_t i = first * LENGTH * out.cols; i < end * LENGTH * out.cols; i++) {
		error += ((double)y[i] - (double)t[i]) * ((double)y[i] - (double)t[i]);
		energy += ((double)t[i] - (double)x[i]) * ((double)t[i] - (double)x[i]);
	}
	free(y);
	free(t);
	free(x);
	fp_matrix_free(run->f.be, &out);
	return error / energy;
}

static void read_weights(fit_run *run, float *out[MOST_TENSORS])
{
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = run->layer->weight[role], bias = run->layer->bias[role];
		out[2 * role] = fp_matrix_is_absent(weight) ? NULL : download(run, weight);
		out[2 * role + 1] = fp_matrix_is_absent(bias) ? NULL : download(run, bias);
	}
}

static void free_weights(float *weights[MOST_TENSORS])
{
	for (int i = 0; i < MOST_TENSORS; i++)
		free(weights[i]);
}

/* Every number is one of the checkpoint's type; zeros are where they were, as +0.0. */
static void check_weights(fit_run *run, float *before[MOST_TENSORS], float *after[MOST_TENSORS])
{
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = run->layer->weight[role], bias = run->layer->bias[role];
		if (fp_matrix_is_absent(weight))
			continue;
		fp_dtype dtype = fp_model_operator(run->f.model, 0, (fp_role)role)->dtype;
		for (int part = 0; part < 2; part++) {
			fp_matrix matrix = part ? bias : weight, typed;
			if (fp_matrix_is_absent(matrix))
				continue;
			assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &typed, matrix.rows, matrix.cols, dtype));
			assert_ok(run->f.ctx, run->f.be->memory->copy(run->f.be, typed, matrix));
			float *rounded = download(run, typed);
			const float *now = after[2 * role + part];
			assert_memory_equal(rounded, now, (size_t)fp_matrix_size(matrix) * sizeof *now);
			free(rounded);
			fp_matrix_free(run->f.be, &typed);
		}
		for (int64_t i = 0; i < fp_matrix_size(weight); i++)
			if (before[2 * role][i] == 0)
				assert_true(after[2 * role][i] == 0 && !signbit(after[2 * role][i]));
	}
}

static void a_fit_repairs_a_layer(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=0.02", NULL};
	for (int i = 0; i < MODEL_COUNT; i++) {
		fit_run run;
		float *before[MOST_TENSORS], *after[MOST_TENSORS];
		open_run(&run, models[i], 40, settings);
		prune_by_size(&run);
		read_weights(&run, before);
		double start = loss_of(&run, 0, 40);
		fit(&run);
		read_weights(&run, after);
		double end = loss_of(&run, 0, 40);
		if (!(end < 0.8 * start && run.result.loss_after < 0.9 * run.result.loss_before && run.result.steps > 0))
			fail_msg("%s: the loss went from %g to %g, on the held-out windows from %g to %g", models[i], start, end,
					 run.result.loss_before, run.result.loss_after);
		check_weights(&run, before, after);
		free_weights(before);
		free_weights(after);
		close_run(&run);
	}
}

/* Made-up gradients of the first windows: one direction for all tokens with noise around it. */
static void make_gradients(fit_run *run, int64_t windows)
{
	int64_t rows = windows * LENGTH, width = run->input.cols;
	float *values = malloc((size_t)(rows * width) * sizeof *values);
	uint64_t seed = 29;
	for (int64_t i = 0; i < rows * width; i++)
		values[i] = 0.01F * (random_normal(&seed) + (i % width % 3 == 0 ? 2.0F : 0));
	assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &run->gradients, rows, width, FP_F32));
	assert_ok(run->f.ctx, run->f.be->memory->upload(run->f.be, run->gradients, values, FP_F32, width));
	run->gradient_windows = windows;
	free(values);
}

/* Σ g·e of the errors e = layer(input) − target over the windows that have gradients; *along ← Σ(u·e)², u the direction
 * that these have in common. */
static double slope_of(fit_run *run, double *along)
{
	fp_matrix out;
	double sum = 0;
	assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &out, run->input.rows, run->input.cols, FP_F32));
	forward(run, run->layer, out);
	float *y = download(run, out), *t = download(run, run->target), *g = download(run, run->gradients);
	*along = 0;
	for (int64_t row = 0; row < run->gradients.rows; row++) {
		double common = 0;
		for (int64_t k = 0; k < out.cols; k++) {
			int64_t i = row * out.cols + k;
			sum += (double)g[i] * ((double)y[i] - (double)t[i]);
			common += k % 3 == 0 ? (double)y[i] - (double)t[i] : 0;
		}
		*along += common * common;
	}
	free(y);
	free(t);
	free(g);
	fp_matrix_free(run->f.be, &out);
	return sum;
}

/* With the token loss's slope the fit goes downhill, farther with more weight; and errors along the gradients, of which
 * the metric makes much, become smaller than without it. */
static void gradients_lead_the_fit(void **unused)
{
	(void)unused;
	static const char *const weights[] = {"fit_descent=0", "fit_descent=0.01", "fit_descent=0.1"};
	for (int i = 0; i < MODEL_COUNT; i++) {
		double before = 0, slope[4], along[4], start_along; /* the last: in the plain metric */
		for (int turn = -1; turn < 3; turn++) {
			const char *settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=0.05", weights[turn < 0 ? 0 : turn],
									  NULL};
			fit_run run;
			float *start[MOST_TENSORS], *end[MOST_TENSORS];
			open_run(&run, models[i], 40, settings);
			prune_by_size(&run);
			read_weights(&run, start);
			make_gradients(&run, 30); /* ten windows have none */
			before = slope_of(&run, &start_along);
			run.gradient_windows = turn < 0 ? 0 : 30;
			fit(&run);
			assert_true(run.result.steps > 0 && run.result.loss_after < run.result.loss_before);
			int at = turn < 0 ? 3 : turn;
			slope[at] = slope_of(&run, &along[at]);
			read_weights(&run, end);
			check_weights(&run, start, end);
			free_weights(start);
			free_weights(end);
			close_run(&run);
		}
		if (!(slope[2] < slope[1] && slope[1] < slope[0] && fabs(slope[0]) < fabs(before) && along[0] < along[3]))
			fail_msg("%s: slopes %g, %g, %g; %g before; errors along the gradients %g, %g in the plain metric",
					 models[i], slope[0], slope[1], slope[2], before, along[0], along[3]);
	}
}

static void twice_is_the_same(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=12", "fit_tokens=120", "seed=7", NULL};
	float *first[MOST_TENSORS], *second[MOST_TENSORS];
	for (int turn = 0; turn < 2; turn++) {
		fit_run run;
		open_run(&run, "opt-plain", 12, settings);
		prune_by_size(&run);
		fit(&run);
		assert_true(run.result.steps > 0);
		read_weights(&run, turn ? second : first);
		for (int i = 0; i < MOST_TENSORS && turn; i++)
			if (first[i]) {
				fp_matrix matrix = i % 2 ? run.layer->bias[i / 2] : run.layer->weight[i / 2];
				assert_memory_equal(first[i], second[i], (size_t)fp_matrix_size(matrix) * sizeof *first[i]);
			}
		close_run(&run);
	}
	free_weights(first);
	free_weights(second);
}

/* Adam's first step moves every weight by the rate, and that is smaller for operators with many inputs and for layers
 * that are nearly right. */
static void steps_follow_width_and_error(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=1", "fit_rate=0.001", "fit_width=16", NULL};
	fit_run run;
	float *before[MOST_TENSORS], *after[MOST_TENSORS];
	open_run(&run, "llama-plain", 8, settings); /* float: nothing is rounded */
	prune_by_size(&run);
	read_weights(&run, before);
	fit(&run);
	assert_int_equal(run.result.steps, 1);
	read_weights(&run, after);
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = run.layer->weight[role];
		if (fp_matrix_is_absent(weight))
			continue;
		double square = 0, largest = 0, size = (double)fp_matrix_size(weight);
		for (int64_t i = 0; i < fp_matrix_size(weight); i++) {
			square += (double)before[2 * role][i] * (double)before[2 * role][i] / size;
			largest = fmax(largest, fabs((double)after[2 * role][i] - (double)before[2 * role][i]));
		}
		assert_true(weight.cols > 16);
		double length = 0.001 * sqrt(square) * sqrt(16 / (double)weight.cols) * sqrt(run.result.loss_before);
		assert_true(fabs(largest - length) <= 0.01 * length);
	}
	free_weights(before);
	free_weights(after);
	close_run(&run);
}

/* Two windows, one of them held out: which one is seen from the losses, which are measured here again. */
static void the_held_out_window_is_never_worse(void **unused)
{
	(void)unused;
	static const char *const rates[] = {"fit_rate=0.001", "fit_rate=0.02", "fit_rate=0.3", "fit_rate=1"};
	int dropped = 0, kept = 0;
	for (int i = 0; i < MODEL_COUNT * 4; i++) {
		fit_run run;
		float *before[MOST_TENSORS], *after[MOST_TENSORS];
		const char *settings[] = {"fit_steps=30", "fit_holdout=0.5", rates[i / MODEL_COUNT], NULL};
		open_run(&run, models[i % MODEL_COUNT], 2, settings);
		prune_by_size(&run);
		read_weights(&run, before);
		double start[2] = {loss_of(&run, 0, 1), loss_of(&run, 1, 2)};
		fit(&run);
		read_weights(&run, after);
		int held = fabs(start[0] - run.result.loss_before) < fabs(start[1] - run.result.loss_before) ? 0 : 1;
		double end = loss_of(&run, held, held + 1);
		/* another number of windows at once adds in another order, which can turn a rounding to bf16 over */
		double bound = run.f.be->precision == FP_PRECISION_BF16 ? 2e-3 : 1e-5;
		assert_true(fabs(start[held] - run.result.loss_before) <= bound * start[held]);
		assert_true(fabs(end - run.result.loss_after) <= bound * end);
		assert_true(run.result.loss_after <= run.result.loss_before);
		if (run.result.steps == 0) {
			dropped++;
			assert_true(run.result.loss_after == run.result.loss_before);
			for (int k = 0; k < MOST_TENSORS; k++)
				if (before[k]) {
					fp_matrix matrix = k % 2 ? run.layer->bias[k / 2] : run.layer->weight[k / 2];
					assert_memory_equal(before[k], after[k], (size_t)fp_matrix_size(matrix) * sizeof *before[k]);
				}
		} else {
			kept++;
			assert_true(run.result.loss_after < run.result.loss_before);
		}
		check_weights(&run, before, after);
		free_weights(before);
		free_weights(after);
		close_run(&run);
	}
	assert_true(kept > 0 && dropped > 0); /* both ways out were taken */
}

/* Steps twenty times too long end above the start; shorter ones are tried then. */
static void a_fit_that_leads_nowhere_is_tried_again(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=2", NULL};
	for (int i = 0; i < MODEL_COUNT; i++) {
		fit_run run;
		open_run(&run, models[i], 40, settings);
		prune_by_size(&run);
		fit(&run);
		if (!(run.result.steps > 0 && run.result.loss_after < run.result.loss_before))
			fail_msg("%s: the fit was dropped at %g", models[i], run.result.loss_before);
		close_run(&run);
	}
}

/* Gradients opposite to the error of each output, so that the loss is below zero at the start and falls slowly. */
static void a_negative_loss_does_not_stop_a_fit(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=0.001", "fit_descent=1", NULL};
	for (int i = 0; i < MODEL_COUNT; i++) {
		fit_run run;
		fp_backend *be;
		open_run(&run, models[i], 40, settings);
		be = run.f.be;
		prune_by_size(&run);
		assert_ok(run.f.ctx, fp_matrix_new(be, &run.gradients, run.input.rows, run.input.cols, FP_F32));
		forward(&run, run.layer, run.gradients);
		assert_ok(run.f.ctx, be->linear->axpby(be, 1, run.target, -1, run.gradients));
		run.gradient_windows = 40;
		fit(&run);
		if (!(run.result.loss_before < 0 && run.result.steps > 0 && run.result.loss_after < run.result.loss_before))
			fail_msg("%s: the loss went from %g to %g in %lld steps", models[i], run.result.loss_before,
					 run.result.loss_after, (long long)run.result.steps);
		close_run(&run);
	}
}

/* As many as are asked for, more with more than 128 windows, at most 25 passes over a short text. */
static void steps_follow_the_amount_of_text(void **unused)
{
	(void)unused;
	static const char *const assignments[] = {"fit_steps=200", "fit_tokens=4096", "fit_holdout=0.0625", NULL};
	fp_context *ctx = fp_context_new();
	fp_settings *settings = resolved_settings(ctx, "llama", assignments);
	assert_int_equal(fp_fit_steps(settings, 128, 256), 200);
	assert_int_equal(fp_fit_steps(settings, 256, 256), 400);
	assert_int_equal(fp_fit_steps(settings, 2048, 256), 800);
	assert_int_equal(fp_fit_steps(settings, 128, 2048), 200);
	assert_int_equal(fp_fit_steps(settings, 32, 256), 50);
	assert_int_equal(fp_fit_steps(settings, 16, 256), 27); /* 15 of 16 windows in a step */
	assert_int_equal(fp_fit_steps(settings, 32, 2048), 200);
	fp_settings_free(settings);
	fp_context_free(ctx);
}

static void too_few_windows_leave_the_layer(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=5", NULL};
	fit_run run;
	open_run(&run, "llama-gqa", 1, settings);
	prune_by_size(&run);
	fit(&run);
	assert_int_equal(run.result.steps, 0);
	close_run(&run);
}

static void a_device_without_gradients_says_so(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=5", NULL};
	fit_run run;
	open_run(&run, "llama-gqa", 4, settings);
	run.f.be->capabilities &= ~(unsigned)FP_CAN_DIFFERENTIATE;
	const fp_fit_task task = {.be = run.f.be,
							  .ctx = run.f.ctx,
							  .settings = run.settings,
							  .layer = run.layer,
							  .read = read_window,
							  .read_data = &run,
							  .windows = 4};
	assert_fails(run.f.ctx, FP_ERROR_DEVICE, "--preset fast", fp_fit_layer(&task, &run.result));
	close_run(&run);
}

/* What fp_prune_layer() hands on. */
typedef struct received {
	fit_run *run;
	void *bytes[MOST_TENSORS];
	fp_dtype dtype[MOST_TENSORS];
	int fits;
	fp_fit_result fit;
} received;

static void take(received *r, int at, const fp_tensor_info *tensor, const void *bytes)
{
	assert_null(r->bytes[at]);
	r->bytes[at] = malloc((size_t)tensor->bytes);
	memcpy(r->bytes[at], bytes, (size_t)tensor->bytes);
	r->dtype[at] = tensor->dtype;
}

static fp_status take_operator(void *data, const fp_operator_result *result, const void *bytes)
{
	take(data, 2 * (int)result->role, result->tensor, bytes);
	assert_int_equal(result->zeros, result->tensor->elements / 2);
	return FP_OK;
}

static fp_status take_bias(void *data, const fp_tensor_info *tensor, const void *bytes)
{
	received *r = data;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (fp_model_operator_bias(r->run->f.model, 0, (fp_role)role) == tensor) {
			take(r, 2 * role + 1, tensor, bytes);
			return FP_OK;
		}
	fail_msg("%s is no bias of the layer", tensor->name);
	return FP_ERROR_INTERNAL;
}

static fp_status take_fit(void *data, const fp_fit_result *fit)
{
	received *r = data;
	r->fits++;
	r->fit = *fit;
	return FP_OK;
}

static void upload_received(fit_run *run, const received *r)
{
	for (int i = 0; i < MOST_TENSORS; i++) {
		fp_matrix matrix = i % 2 ? run->layer->bias[i / 2] : run->layer->weight[i / 2];
		assert_int_equal(fp_matrix_is_absent(matrix), r->bytes[i] == NULL);
		if (r->bytes[i])
			assert_ok(run->f.ctx, run->f.be->memory->upload(run->f.be, matrix, r->bytes[i], r->dtype[i], matrix.cols));
	}
}

static void a_pruned_layer_hands_on_what_was_fitted(void **unused)
{
	(void)unused;
	static const char *const feeds[][2] = {
		{"correction=cross", NULL}, {"correction=intra", NULL}, {"correction=none", NULL}, {"method=sparsegpt", NULL}};
	for (int i = 0; i < MODEL_COUNT * 4; i++) {
		const char *settings[] = {
			"pattern=2:4", "preset=best", "fit_steps=40", "fit_holdout=0.2", feeds[i / MODEL_COUNT][0], NULL};
		fit_run run;
		open_run(&run, models[i % MODEL_COUNT], 64, settings);
		received r = {.run = &run};
		fp_streams streams;
		fp_feed feed = fp_feed_of(run.settings);
		assert_ok(run.f.ctx, fp_streams_new(&streams, run.f.model, &run.windows, fp_feed_needs_both(feed)));
		const fp_layer_task task = {
			.be = run.f.be,
			.ctx = run.f.ctx,
			.model = run.f.model,
			.settings = run.settings,
			.pattern = {.kept = 2, .group = 4, .sparsity = 0.5},
			.streams = &streams,
			.output = {.operator_done = take_operator, .bias_done = take_bias, .fit_done = take_fit, .data = &r}};
		forward(&run, run.layer, run.target);
		assert_ok(run.f.ctx, fp_prune_layer(&task, 0));
		assert_int_equal(r.fits, 1);
		if (r.fit.steps == 0)
			fail_msg("%s, %s: dropped at a loss of %g", models[i % MODEL_COUNT], settings[4], r.fit.loss_before);
		upload_received(&run, &r);
		/* of all windows, which are not those of the report, but like them */
		double loss = loss_of(&run, 0, 64);
		assert_true(loss < 0.5 * (r.fit.loss_before + r.fit.loss_after));
		/* the pruned stream went through these weights; in coarser arithmetic, where the device has it */
		if ((feed == FP_FEED_CROSS || feed == FP_FEED_SEQUENTIAL) && !fp_backend_rounds(run.f.be, FP_USE_ACTIVATION)) {
			forward(&run, run.layer, run.target);
			float *a = download(&run, run.target), *b = download(&run, streams.hidden[FP_PRUNED]);
			assert_memory_equal(a, b, (size_t)fp_matrix_size(run.target) * sizeof *a);
			free(a);
			free(b);
		}
		for (int k = 0; k < MOST_TENSORS; k++)
			free(r.bytes[k]);
		fp_streams_free(&streams);
		close_run(&run);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fit_repairs_a_layer),
		cmocka_unit_test(gradients_lead_the_fit),
		cmocka_unit_test(twice_is_the_same),
		cmocka_unit_test(steps_follow_width_and_error),
		cmocka_unit_test(the_held_out_window_is_never_worse),
		cmocka_unit_test(a_fit_that_leads_nowhere_is_tried_again),
		cmocka_unit_test(a_negative_loss_does_not_stop_a_fit),
		cmocka_unit_test(steps_follow_the_amount_of_text),
		cmocka_unit_test(too_few_windows_leave_the_layer),
		cmocka_unit_test(a_device_without_gradients_says_so),
		cmocka_unit_test(a_pruned_layer_hands_on_what_was_fitted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
