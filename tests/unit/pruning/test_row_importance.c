/* SPDX-License-Identifier: Apache-2.0 */
/* The estimated row importance against the measured effect of a change in each row. */
#include "model_fixture.h"

#include "pruning/row_importance.h"

#include <math.h>
#include <stdlib.h>

enum { WINDOWS = 96 };

/* Many windows of the model's own tokens, so that the mean over random signs is close to its expectation. */
static fp_windows many_windows(const fp_model *model, int64_t length)
{
	fp_windows windows = {.count = WINDOWS, .length = length};
	windows.ids = malloc((size_t)(windows.count * length) * sizeof *windows.ids);
	assert_non_null(windows.ids);
	for (int64_t i = 0; i < windows.count * length; i++)
		windows.ids[i] = (int32_t)((i * 7919 + i / 13) % fp_model_get_config(model)->vocabulary);
	return windows;
}

/* The first layer of a model, its inputs, and the importance of its rows. */
typedef struct weighed_layer {
	model_fixture f;
	fp_windows windows;
	fp_streams streams;
	fp_layer *layer;
	fp_row_importance importance;
} weighed_layer;

static void open_layer(weighed_layer *w, const char *name, int64_t length)
{
	const fp_streams_plan plan = {.both = true, .batch = 8, .residence = FP_RESIDENT, .folder = "/tmp"};
	open_fixture(&w->f, name);
	w->windows = many_windows(w->f.model, length);
	assert_ok(w->f.ctx, fp_streams_open(&w->streams, w->f.model, &w->windows, &plan));
	assert_ok(w->f.ctx, fp_layer_load(&w->layer, w->f.model, 0));
	assert_ok(w->f.ctx, fp_row_importance_new(&w->importance, w->layer, &w->streams));
}

static void close_layer(weighed_layer *w)
{
	fp_row_importance_free(w->f.be, &w->importance);
	fp_layer_free(w->layer);
	fp_streams_free(&w->streams);
	free(w->windows.ids);
	close_fixture(&w->f);
}

/* The layer's output for the whole text, on the host. */
static float *forward(weighed_layer *w)
{
	model_fixture *f = &w->f;
	fp_streams *streams = &w->streams;
	int64_t rows = streams->windows * streams->length, hidden = fp_model_get_config(f->model)->hidden;
	float *out = malloc((size_t)(rows * hidden) * sizeof *out);
	assert_non_null(out);
	assert_ok(f->ctx, fp_streams_copy(streams, FP_PRUNED, FP_DENSE));
	assert_ok(f->ctx, fp_streams_forward(streams, FP_PRUNED, w->layer));
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_F32, hidden, streams->hidden[FP_PRUNED]));
	return out;
}

/* ‖change of the layer's output‖² for a small change of one entry of an operator's bias */
static double change_of(weighed_layer *w, fp_role role, int64_t output, const float *before)
{
	model_fixture *f = &w->f;
	const float step = 1e-2F;
	fp_matrix bias = w->layer->bias[role];
	float *values = malloc((size_t)bias.cols * sizeof *values);
	double square = 0;
	assert_ok(f->ctx, f->be->memory->download(f->be, values, FP_F32, bias.cols, bias));
	values[output] += step;
	assert_ok(f->ctx, f->be->memory->upload(f->be, bias, values, FP_F32, bias.cols));
	float *after = forward(w);
	values[output] -= step;
	assert_ok(f->ctx, f->be->memory->upload(f->be, bias, values, FP_F32, bias.cols));
	for (int64_t i = 0; i < w->windows.count * w->windows.length * fp_model_get_config(f->model)->hidden; i++)
		square += ((double)after[i] - before[i]) * ((double)after[i] - before[i]);
	free(after);
	free(values);
	return square;
}

/* For the operators after attention, where a change of a bias is the same error in every token. */
static void equals_the_effect_of_a_change(void **unused)
{
	(void)unused;
	static const char *const models[] = {"opt-plain", "opt-350m"};
	static const fp_role roles[] = {FP_OUTPUT, FP_UP, FP_DOWN};
	for (int m = 0; m < 2; m++) {
		weighed_layer w;
		open_layer(&w, models[m], 16);
		float *before = forward(&w);
		for (int r = 0; r < 3; r++) {
			int64_t outputs = w.layer->weight[roles[r]].rows;
			float *weight = malloc((size_t)outputs * sizeof *weight),
				  *inverse = malloc((size_t)outputs * sizeof *inverse);
			double *change = malloc((size_t)outputs * sizeof *change), mean = 0, off = 0, spread = 0;
			assert_ok(w.f.ctx,
					  w.f.be->memory->download(w.f.be, weight, FP_F32, outputs, w.importance.weight[roles[r]]));
			assert_ok(w.f.ctx,
					  w.f.be->memory->download(w.f.be, inverse, FP_F32, outputs, w.importance.inverse[roles[r]]));
			for (int64_t i = 0; i < outputs; i++) {
				change[i] = change_of(&w, roles[r], i, before);
				mean += change[i] / (double)outputs;
			}
			for (int64_t i = 0; i < outputs; i++) {
				double want = sqrt(change[i] / mean);
				off += pow(weight[i] - want, 2) / (double)outputs;
				spread += pow(want - 1, 2) / (double)outputs;
				assert_true(fabs((double)weight[i] * inverse[i] - 1) < 1e-6);
			}
			print_message("%s, %s: off by %.3f, spread %.3f\n", models[m], fp_role_name(roles[r]), sqrt(off),
						  sqrt(spread));
			/* 16 bits would round the small change of a bias away */
			assert_true(sqrt(off) < (fp_backend_rounds(w.f.be, FP_USE_ACTIVATION) ? 0.2 : 0.06));
			free(weight);
			free(inverse);
			free(change);
		}
		free(before);
		close_layer(&w);
	}
}

/* Every operator of every model family gets one, with mean square 1. */
static void every_operator_has_one(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa",    "opt-plain", "opt-350m",
										 "gemma2-plain", "falcon-7b", "deepseek_v3-dense"};
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		weighed_layer w;
		open_layer(&w, models[m], 12);
		for (int role = 0; role < FP_ROLE_COUNT; role++) {
			fp_matrix weight = w.importance.weight[role];
			assert_int_equal(fp_matrix_is_absent(weight), fp_matrix_is_absent(w.layer->weight[role]));
			if (fp_matrix_is_absent(weight))
				continue;
			double square;
			assert_int_equal(weight.cols, w.layer->weight[role].rows);
			assert_ok(w.f.ctx, w.f.be->linear->dot(w.f.be, weight, weight, &square));
			assert_true(fabs(square / (double)weight.cols - 1) < 1e-5);
		}
		close_layer(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equals_the_effect_of_a_change),
		cmocka_unit_test(every_operator_has_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
