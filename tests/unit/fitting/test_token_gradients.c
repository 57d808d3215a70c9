/* SPDX-License-Identifier: Apache-2.0 */
/* Token gradients are compared with differences of the whole model's loss, for models with the norm before and after
 * the blocks, with projections around the embedding, and with all kinds of heads. */
#include "model_fixture.h"

#include "fitting/token_gradients.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {"opt-plain", "opt-350m",   "opt-no-final-norm", "opt-untied",   "llama-plain",
									 "llama-gqa", "llama-tied", "mistral-window",    "qwen2-window", "qwen3-plain"};
enum { MODEL_COUNT = sizeof models / sizeof models[0] };

/* The sum of the losses of all windows when step·direction is added to the output of `layer`. */
static double moved_loss(model_fixture *f, const fp_windows *windows, int64_t layer, const float *direction,
						 double step)
{
	int64_t rows = windows->count * windows->length, layers = fp_model_get_config(f->model)->layers;
	fp_layer_state state = {.sequences = windows->count, .length = windows->length};
	fp_workspace *workspace;
	fp_precision precision = f->be->precision;
	double sum = 0;
	f->be->precision = FP_PRECISION_FP32; /* for weights too: rounding would hide a small difference of two losses */
	assert_ok(f->ctx, fp_workspace_new(&workspace, f->model, rows));
	assert_ok(f->ctx, fp_matrix_new(f->be, &state.hidden, rows, fp_model_get_config(f->model)->hidden, FP_F32));
	assert_ok(f->ctx, fp_model_embed(f->model, windows->ids, windows->count, windows->length, state.hidden));
	int64_t size = fp_matrix_size(state.hidden);
	float *values = malloc((size_t)size * sizeof *values), *losses = malloc((size_t)rows * sizeof *losses);
	int32_t *targets = malloc((size_t)rows * sizeof *targets);
	for (int64_t index = 0; index < layers; index++) {
		fp_layer *weights;
		assert_ok(f->ctx, fp_layer_load(&weights, f->model, index));
		assert_ok(f->ctx, fp_layer_forward(weights, &state, workspace));
		fp_layer_free(weights);
		if (index != layer)
			continue;
		assert_ok(f->ctx, f->be->memory->download(f->be, values, FP_F32, state.hidden.cols, state.hidden));
		assert_ok(f->ctx, f->be->memory->synchronize(f->be));
		for (int64_t i = 0; i < size; i++)
			values[i] += (float)step * direction[i];
		assert_ok(f->ctx, f->be->memory->upload(f->be, state.hidden, values, FP_F32, state.hidden.cols));
	}
	for (int64_t i = 0; i < rows; i++)
		targets[i] = (i + 1) % windows->length == 0 ? -1 : windows->ids[i + 1];
	assert_ok(f->ctx, fp_model_loss(f->model, state.hidden, targets, losses, NULL));
	for (int64_t i = 0; i < rows; i++)
		sum += (double)losses[i];
	fp_matrix_free(f->be, &state.hidden);
	fp_workspace_free(workspace);
	f->be->precision = precision;
	free(values);
	free(losses);
	free(targets);
	return sum;
}

static float *load(model_fixture *f, const fp_token_gradients *gradients, int64_t layer, const fp_windows *windows)
{
	fp_matrix rows;
	int64_t length = windows->length, width = fp_model_get_config(f->model)->hidden;
	assert_int_equal(fp_token_gradients_count(gradients), windows->count);
	assert_ok(f->ctx, fp_matrix_new(f->be, &rows, windows->count * length, width, FP_F32));
	if (layer % 2 == 0)
		assert_ok(f->ctx, fp_token_gradients_read(gradients, layer, 0, windows->count, rows));
	else /* window by window */
		for (int64_t i = 0; i < windows->count; i++)
			assert_ok(f->ctx,
					  fp_token_gradients_read(gradients, layer, i, 1, fp_matrix_rows(rows, i * length, length)));
	float *out = malloc((size_t)fp_matrix_size(rows) * sizeof *out);
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_F32, rows.cols, rows));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	fp_matrix_free(f->be, &rows);
	return out;
}

static void check_layer(model_fixture *f, const fp_windows *windows, int64_t layer, const float *gradient,
						const char *name)
{
	int64_t size = windows->count * windows->length * fp_model_get_config(f->model)->hidden;
	float *direction = malloc((size_t)size * sizeof *direction);
	uint64_t seed = 23;
	double slope = 0, step = 1.0 / 512;
	for (int64_t i = 0; i < size; i++) { /* random, with the gradient's signs, so that the loss changes */
		direction[i] = copysignf(fabsf(random_normal(&seed)), gradient[i]);
		slope += (double)direction[i] * (double)gradient[i];
	}
	double up = moved_loss(f, windows, layer, direction, step), down = moved_loss(f, windows, layer, direction, -step);
	double difference = (up - down) / (2 * step);
	/* hidden states and gradients are kept in bf16: 2⁻⁹ each */
	if (!(slope > 0 && fabs(difference - slope) <= 0.02 * slope))
		fail_msg("%s, layer %lld: the slope is %.6g, but the loss changes by %.6g", name, (long long)layer, slope,
				 difference);
	free(direction);
}

static void gradients_agree_with_differences_of_the_loss(void **unused)
{
	(void)unused;
	for (int i = 0; i < MODEL_COUNT; i++) {
		model_fixture f;
		fp_token_gradients *gradients;
		open_fixture(&f, models[i]);
		fp_windows windows = read_windows(models[i]);
		assert_ok(f.ctx, fp_token_gradients_new(&gradients, f.model, &windows, 0, "/tmp"));
		for (int64_t layer = 0; layer < fp_model_get_config(f.model)->layers; layer++) {
			float *gradient = load(&f, gradients, layer, &windows);
			check_layer(&f, &windows, layer, gradient, models[i]);
			free(gradient);
		}
		fp_token_gradients_free(gradients);
		free(windows.ids);
		close_fixture(&f);
	}
}

/* A rank, or a resumed run, begins at a later layer. */
static void the_first_layer_does_not_change_the_others(void **unused)
{
	(void)unused;
	model_fixture f;
	fp_token_gradients *all, *some;
	open_fixture(&f, "opt-plain");
	fp_windows windows = read_windows("opt-plain");
	int64_t layers = fp_model_get_config(f.model)->layers;
	size_t bytes = (size_t)(windows.count * windows.length * fp_model_get_config(f.model)->hidden) * sizeof(float);
	assert_true(layers > 1);
	assert_ok(f.ctx, fp_token_gradients_new(&all, f.model, &windows, 0, "/tmp"));
	for (int64_t first = 1; first < layers; first++) {
		assert_ok(f.ctx, fp_token_gradients_new(&some, f.model, &windows, first, "/tmp"));
		for (int64_t layer = first; layer < layers; layer++) {
			float *a = load(&f, all, layer, &windows), *b = load(&f, some, layer, &windows);
			assert_memory_equal(a, b, bytes);
			free(a);
			free(b);
		}
		fp_token_gradients_free(some);
	}
	fp_token_gradients_free(all);
	free(windows.ids);
	close_fixture(&f);
}

static void the_file_size_limits_the_windows(void **unused)
{
	(void)unused;
	model_fixture f;
	open_fixture(&f, "llama-plain");
	const fp_model_config *c = fp_model_get_config(f.model);
	fp_windows windows = {.count = (int64_t)1 << 40, .length = 16};
	int64_t kept = fp_token_gradients_windows(f.model, &windows);
	assert_int_equal(kept, ((int64_t)4 << 30) / (2 * c->layers * c->hidden * 16));
	windows.count = 7;
	assert_int_equal(fp_token_gradients_windows(f.model, &windows), 7);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gradients_agree_with_differences_of_the_loss),
		cmocka_unit_test(the_first_layer_does_not_change_the_others),
		cmocka_unit_test(the_file_size_limits_the_windows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
