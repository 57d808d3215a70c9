/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of the divergence is compared with differences of the divergence, and the backward pass that gives both
 * kinds of gradients with those that give one. A model pruned by size is fitted: it comes nearer to the dense one, its
 * zeros stay, what is offloaded changes no bit, and it takes the memory that is expected. */
#include "counting_allocator.h"
#include "model_fixture.h"

#include "fitting/model_fit.h"
#include "model/layer_backward.h"

#include <fistapruner/fistapruner.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* with a projection before the head, a scale and a cap on logits, experts, parallel blocks with one norm and with two */
static const char *const models[] = {"opt-350m",       "opt-plain",   "llama-gqa",        "gemma2-plain",
									 "cohere-plain",   "qwen3-plain", "granite-plain",    "mixtral-plain",
									 "gpt_neox-plain", "falcon-40b",  "deepseek_v3-dense"};
enum { MODEL_COUNT = sizeof models / sizeof models[0], ROWS = 12 };

static float *floats_of(model_fixture *f, fp_matrix m)
{
	float *values = malloc((size_t)fp_matrix_size(m) * sizeof *values);
	assert_ok(f->ctx, f->be->memory->download(f->be, values, FP_F32, m.cols, m));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	return values;
}

static fp_matrix random_matrix(model_fixture *f, int64_t rows, int64_t cols, uint64_t seed)
{
	fp_matrix m;
	float *values = malloc((size_t)(rows * cols) * sizeof *values);
	for (int64_t i = 0; i < rows * cols; i++)
		values[i] = random_normal(&seed);
	assert_ok(f->ctx, fp_matrix_new(f->be, &m, rows, cols, FP_F32));
	assert_ok(f->ctx, f->be->memory->upload(f->be, m, values, FP_F32, cols));
	free(values);
	return m;
}

/* Σ KL when step·direction is added to q's hidden states */
static double moved_divergence(model_fixture *f, fp_matrix p, fp_matrix q, fp_matrix direction, float step)
{
	float kl[ROWS], losses[2][ROWS];
	int32_t argmax[2][ROWS], targets[ROWS];
	const fp_divergence_rows rows = {.kl = kl, .losses = {losses[0], losses[1]}, .argmax = {argmax[0], argmax[1]}};
	double sum = 0;
	memset(targets, 0xff, sizeof targets);
	assert_ok(f->ctx, f->be->linear->axpby(f->be, step, direction, 1, q));
	assert_ok(f->ctx, fp_model_divergence(f->model, p, f->model, q, targets, &rows));
	assert_ok(f->ctx, f->be->linear->axpby(f->be, -step, direction, 1, q));
	for (int i = 0; i < ROWS; i++)
		sum += (double)kl[i];
	return sum;
}

static void gradient_follows_the_divergence(void **unused)
{
	(void)unused;
	for (int i = 0; i < MODEL_COUNT; i++) {
		const float step = 3e-3F;
		model_fixture f;
		fp_matrix gradient;
		double slope;
		open_fixture(&f, models[i]);
		f.be->precision = FP_PRECISION_FP32;
		int64_t width = fp_model_get_config(f.model)->hidden;
		fp_matrix p = random_matrix(&f, ROWS, width, 1), q = random_matrix(&f, ROWS, width, 2),
				  direction = random_matrix(&f, ROWS, width, 3);
		assert_ok(f.ctx, fp_matrix_new(f.be, &gradient, ROWS, width, FP_F32));
		assert_ok(f.ctx, fp_model_divergence_gradient(f.model, p, f.model, q, gradient));
		assert_ok(f.ctx, f.be->linear->dot(f.be, gradient, direction, &slope));
		double difference =
			(moved_divergence(&f, p, q, direction, step) - moved_divergence(&f, p, q, direction, -step)) / (2 * step);
		if (!(fabs(difference - slope) <= 5e-3 * fabs(slope) + 1e-4))
			fail_msg("%s: the slope is %.9g, but the divergence changes by %.9g", models[i], slope, difference);
		fp_matrix_free(f.be, &p);
		fp_matrix_free(f.be, &q);
		fp_matrix_free(f.be, &direction);
		fp_matrix_free(f.be, &gradient);
		close_fixture(&f);
	}
}

static void same_floats(model_fixture *f, fp_matrix a, fp_matrix b, const char *what)
{
	assert_int_equal(fp_matrix_is_absent(a), fp_matrix_is_absent(b));
	if (fp_matrix_is_absent(a))
		return;
	float *x = floats_of(f, a), *y = floats_of(f, b);
	if (memcmp(x, y, (size_t)fp_matrix_size(a) * sizeof *x) != 0)
		fail_msg("%s differs", what);
	free(x);
	free(y);
}

/* *output ← the layer's output, replaced by a gradient */
static void pass_forward(model_fixture *f, const fp_layer *layer, fp_matrix input, fp_tape *tape, fp_matrix gradient)
{
	fp_matrix output;
	assert_ok(f->ctx, fp_layer_forward_taped(layer, 1, ROWS, input, tape, &output));
	assert_ok(f->ctx, f->be->memory->copy(f->be, output, gradient));
}

static void both_kinds_of_gradients_at_once(void **unused)
{
	(void)unused;
	for (int i = 0; i < MODEL_COUNT; i++) {
		model_fixture f;
		fp_layer *layer;
		fp_tape *tape;
		fp_layer_matrices alone, together;
		fp_matrix below;
		open_fixture(&f, models[i]);
		int64_t width = fp_model_get_config(f.model)->hidden;
		fp_matrix input = random_matrix(&f, ROWS, width, 4), gradient = random_matrix(&f, ROWS, width, 5), copy;
		assert_ok(f.ctx, fp_layer_load(&layer, f.model, 0));
		assert_ok(f.ctx, fp_tape_new(&tape, f.model, ROWS));
		assert_ok(f.ctx, fp_layer_matrices_new(&alone, layer));
		assert_ok(f.ctx, fp_layer_matrices_new(&together, layer));
		pass_forward(&f, layer, input, tape, gradient);
		assert_ok(f.ctx, fp_layer_backward(layer, tape, false, &alone));
		pass_forward(&f, layer, input, tape, gradient);
		assert_ok(f.ctx, fp_layer_backward_input(layer, tape, NULL, &below));
		assert_ok(f.ctx, fp_matrix_new(f.be, &copy, ROWS, width, FP_F32));
		assert_ok(f.ctx, f.be->memory->copy(f.be, copy, below));
		pass_forward(&f, layer, input, tape, gradient);
		assert_ok(f.ctx, fp_layer_backward_through(layer, tape, &together, &below));
		same_floats(&f, copy, below, models[i]);
		for (int k = 0; k < alone.count; k++) {
			same_floats(&f, alone.weight[k], together.weight[k], fp_role_name(k));
			same_floats(&f, alone.bias[k], together.bias[k], fp_role_name(k));
		}
		fp_layer_matrices_free(f.be, &alone);
		fp_layer_matrices_free(f.be, &together);
		fp_matrix_free(f.be, &input);
		fp_matrix_free(f.be, &gradient);
		fp_matrix_free(f.be, &copy);
		fp_tape_free(tape);
		fp_layer_free(layer);
		close_fixture(&f);
	}
}

/* The fitted layers beside those of the pruned model. */
typedef struct taken {
	model_fixture *pruned;
	int64_t layers;
	double moved;    /* Σ (change of a weight)² */
	uint64_t digest; /* of all weights and biases */
} taken;

static void digest_matrix(taken *t, fp_matrix m)
{
	if (fp_matrix_is_absent(m))
		return;
	float *values = floats_of(t->pruned, m);
	const unsigned char *bytes = (const unsigned char *)values;
	for (int64_t i = 0; i < fp_matrix_size(m) * (int64_t)sizeof *values; i++)
		t->digest = (t->digest ^ bytes[i]) * 0x100000001b3U;
	free(values);
}

static fp_status take(void *data, const fp_layer *fitted)
{
	taken *t = data;
	fp_layer *before;
	assert_int_equal(fitted->index, t->layers++);
	assert_ok(t->pruned->ctx, fp_layer_load(&before, t->pruned->model, fitted->index));
	for (int i = 0; i < fp_model_operators(t->pruned->model); i++) {
		digest_matrix(t, fitted->weight[i]);
		digest_matrix(t, fitted->bias[i]);
		if (fp_matrix_is_absent(before->weight[i]))
			continue;
		float *old = floats_of(t->pruned, before->weight[i]), *new = floats_of(t->pruned, fitted->weight[i]);
		for (int64_t k = 0; k < fp_matrix_size(before->weight[i]); k++) {
			if (old[k] == 0 && (new[k] != 0 || signbit(new[k])))
				fail_msg("layer %d, %s: a zero has become %g", (int)fitted->index, fp_role_name(i), (double)new[k]);
			t->moved += (double)(new[k] - old[k]) * (double)(new[k] - old[k]);
		}
		free(old);
		free(new);
	}
	fp_layer_free(before);
	return FP_OK;
}

/* The fixture with the smaller half of its weights removed, as a directory of its own. */
static void open_pruned(model_fixture *out, const char *name, const char *folder)
{
	char model[4096], output[4096], *json;
	fp_context *ctx = fp_context_new();
	fp_settings *settings;
	snprintf(model, sizeof model, "%s/tests/fixtures/model/%s", FP_SOURCE_DIR, name);
	snprintf(output, sizeof output, "%s/pruned", folder);
	assert_ok(ctx, fp_settings_new(&settings, ctx));
	assert_ok(ctx, fp_settings_set(settings, ctx, "method", "magnitude"));
	const fp_prune_request request = {.model = model, .output = output};
	assert_ok(ctx, fp_prune(&json, ctx, &request, settings));
	fp_text_free(json);
	fp_settings_free(settings);
	fp_context_free(ctx);
	assert_int_equal(open_directory(out, output), FP_OK);
}

/* What is offloaded, and whether the device has memory of its own. */
typedef struct fit_place {
	fp_offload offload;
	bool apart;
} fit_place;

/* Fits the model; returns the digest of the result. */
static uint64_t fit_in(fit_place place, const char *name, fp_model_fit_task task, model_fixture *pruned)
{
	fp_model_fit_result result;
	taken t = {.pruned = pruned};
	counting_allocator counter;
	int64_t expected;
	task.offload = place.offload;
	fp_model_drop_head(task.pruned);
	fp_model_drop_head(task.dense);
	counting_allocator_begin(&counter, pruned->be);
	if (place.apart)
		counter.operations.address = NULL;
	assert_ok(pruned->ctx, fp_model_fit_bytes(&task, &expected));
	assert_ok(pruned->ctx, fp_fit_model(&task, take, &t, &result));
	bool counted = place.apart || place.offload == FP_OFFLOAD_NOTHING;
	double ratio = (double)expected / (double)counting_allocator_end(&counter);
	if (counted && !(ratio >= 0.95 && ratio <= 1.25))
		fail_msg("%s, offload %d: %.3f times the bytes expected that were taken", name, (int)place.offload, ratio);
	assert_int_equal(t.layers, fp_model_get_config(pruned->model)->layers);
	assert_true(result.steps > 0 && result.steps <= result.most_steps && t.moved > 0);
	if (!(result.kl_after < 0.9 * result.kl_before))
		fail_msg("%s: KL %g, and %g before", name, result.kl_after, result.kl_before);
	return t.digest;
}

static void a_pruned_model_comes_nearer(void **unused)
{
	(void)unused;
	static const char *const fitted[] = {"llama-gqa", "opt-plain", "mixtral-plain"};
	static const fit_place places[] = {{FP_OFFLOAD_NOTHING, false},
									   {FP_OFFLOAD_NOTHING, true},
									   {FP_OFFLOAD_LAYERS, false},
									   {FP_OFFLOAD_LAYERS, true},
									   {FP_OFFLOAD_STATES, true}};
	for (int i = 0; i < 3; i++) {
		enum { LENGTH = 16, COUNT = 40, HELD_OUT = 8 };
		model_fixture dense, pruned;
		fp_settings *settings;
		fp_model *teacher;
		char *folder = temporary_folder();
		uint64_t first = 0;
		open_fixture(&dense, fitted[i]);
		open_pruned(&pruned, fitted[i], folder);
		assert_ok(pruned.ctx, fp_model_open(&teacher, pruned.be, dense.checkpoint));
		int64_t vocabulary = fp_model_get_config(teacher)->vocabulary;
		fp_windows windows = {.ids = malloc(COUNT * LENGTH * sizeof *windows.ids), .count = COUNT, .length = LENGTH};
		uint64_t seed = 7;
		for (int k = 0; k < COUNT * LENGTH; k++)
			windows.ids[k] = (int32_t)(fabsf(random_normal(&seed)) * 1000) % (int32_t)vocabulary;
		assert_ok(pruned.ctx, fp_settings_new(&settings, pruned.ctx));
		assert_ok(pruned.ctx, fp_settings_set(settings, pruned.ctx, "fit_steps", "24"));
		assert_ok(pruned.ctx, fp_settings_set(settings, pruned.ctx, "fit_tokens", "128"));
		const fp_model_fit_task task = {
			.pruned = pruned.model, .dense = teacher, .settings = settings, .windows = &windows, .held_out = HELD_OUT};
		for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
			uint64_t digest = fit_in(places[place], fitted[i], task, &pruned);
			if (place > 0 && digest != first)
				fail_msg("%s: offload %d gives other bits", fitted[i], (int)places[place].offload);
			first = digest;
		}
		fp_settings_free(settings);
		fp_model_close(teacher);
		free(windows.ids);
		close_fixture(&pruned);
		close_fixture(&dense);
		remove_folder(folder);
		free(folder);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gradient_follows_the_divergence),
		cmocka_unit_test(both_kinds_of_gradients_at_once),
		cmocka_unit_test(a_pruned_model_comes_nearer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
