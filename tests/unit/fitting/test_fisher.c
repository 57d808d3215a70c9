/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of the token loss are compared with differences of the whole model's loss, for models with the norm
 * before and after the blocks, with projections around the embedding, and with all kinds of heads. Fisher matrices are
 * compared with the gradients. */
#include "model_fixture.h"

#include "fitting/fisher.h"
#include "fitting/fisher_store.h"

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

/* Settings of a run, and the request for the layers [first, end). */
typedef struct fisher_run {
	model_fixture *f;
	const fp_windows *windows;
	fp_settings *settings;
	fp_fisher *fisher;
} fisher_run;

static fisher_run run_fisher(model_fixture *f, const fp_windows *windows, const char *adapt, int64_t first, int64_t end,
							 fp_fisher_room room, fp_share share)
{
	const char *settings[] = {"fit_steps=1", adapt, NULL};
	fisher_run r = {.f = f, .windows = windows, .settings = resolved_settings(f->ctx, "llama", settings)};
	assert_ok(f->ctx, fp_fisher_new(&r.fisher, &(fp_fisher_request){.model = f->model,
																	.settings = r.settings,
																	.windows = windows,
																	.first = first,
																	.end = end,
																	.folder = "/tmp",
																	.room = room,
																	.share = share}));
	assert_int_equal(fp_fisher_tokens(r.fisher), windows->count * windows->length);
	return r;
}

static void end_run(fisher_run *r)
{
	fp_fisher_free(r->fisher);
	fp_settings_free(r->settings);
}

static float *download(model_fixture *f, fp_matrix *rows)
{
	float *out = malloc((size_t)fp_matrix_size(*rows) * sizeof *out);
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_F32, rows->cols, *rows));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	fp_matrix_free(f->be, rows);
	return out;
}

static float *load_gradients(const fisher_run *r, int64_t layer)
{
	model_fixture *f = r->f;
	fp_matrix rows;
	int64_t windows = r->windows->count, length = r->windows->length, width = fp_model_get_config(f->model)->hidden;
	assert_int_equal(fp_fisher_gradient_windows(r->fisher), windows);
	assert_ok(f->ctx, fp_matrix_new(f->be, &rows, windows * length, width, FP_F32));
	if (layer % 2 == 0)
		assert_ok(f->ctx, fp_fisher_read_gradients(r->fisher, layer, 0, windows, rows));
	else /* window by window */
		for (int64_t i = 0; i < windows; i++)
			assert_ok(f->ctx,
					  fp_fisher_read_gradients(r->fisher, layer, i, 1, fp_matrix_rows(rows, i * length, length)));
	return download(f, &rows);
}

/* Both triangles of Σ ggᵀ. */
static float *load_matrix(const fisher_run *r, int64_t layer)
{
	model_fixture *f = r->f;
	fp_matrix matrix;
	int64_t width = fp_model_get_config(f->model)->hidden;
	assert_ok(f->ctx, fp_matrix_new(f->be, &matrix, width, width, FP_F32));
	assert_ok(f->ctx, fp_fisher_read(r->fisher, layer, matrix));
	assert_ok(f->ctx, f->be->linear->mirror(f->be, matrix));
	return download(f, &matrix);
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

/* The matrix is Σ ggᵀ of the gradients, which are rounded to bf16 where they are kept. */
static void check_matrix(const fisher_run *r, int64_t layer, const float *gradient, const char *name)
{
	int64_t tokens = fp_fisher_tokens(r->fisher), width = fp_model_get_config(r->f->model)->hidden;
	float *matrix = load_matrix(r, layer);
	double error = 0, size = 0;
	for (int64_t i = 0; i < width; i++)
		for (int64_t j = 0; j < width; j++) {
			double sum = 0;
			for (int64_t t = 0; t < tokens; t++)
				sum += (double)gradient[t * width + i] * (double)gradient[t * width + j];
			error += (sum - (double)matrix[i * width + j]) * (sum - (double)matrix[i * width + j]);
			size += sum * sum;
		}
	if (!(size > 0 && sqrt(error / size) < 0.005))
		fail_msg("%s, layer %lld: the matrix differs from the gradients' by %.3g", name, (long long)layer,
				 sqrt(error / size));
	free(matrix);
}

static void gradients_agree_with_differences_of_the_loss(void **unused)
{
	(void)unused;
	for (int i = 0; i < MODEL_COUNT; i++) {
		model_fixture f;
		open_fixture(&f, models[i]);
		fp_windows windows = read_windows(models[i]);
		int64_t layers = fp_model_get_config(f.model)->layers;
		fisher_run r = run_fisher(&f, &windows, "adapt=0.01", 0, layers, (fp_fisher_room){0}, (fp_share){0});
		for (int64_t layer = 0; layer < layers; layer++) {
			float *gradient = load_gradients(&r, layer);
			check_layer(&f, &windows, layer, gradient, models[i]);
			check_matrix(&r, layer, gradient, models[i]);
			free(gradient);
		}
		end_run(&r);
		free(windows.ids);
		close_fixture(&f);
	}
}

/* More windows than a batch has. */
static void the_sum_is_over_all_batches(void **unused)
{
	(void)unused;
	enum { COUNT = 400, LENGTH = 24 };
	model_fixture f;
	fp_windows windows = {
		.ids = calloc((size_t)(COUNT * LENGTH), sizeof *windows.ids), .count = COUNT, .length = LENGTH};
	uint64_t seed = 8;
	open_fixture(&f, "llama-gqa");
	int64_t layers = fp_model_get_config(f.model)->layers;
	for (int i = 0; i < COUNT * LENGTH; i++)
		windows.ids[i] = (int32_t)((random_uniform(&seed) + 1) * 19);
	for (int divided = 0; divided < 2; divided++) { /* in one sum, and part by part */
		fp_share share = divided ? fp_share_divided(NULL, COUNT) : (fp_share){0};
		fisher_run r = run_fisher(&f, &windows, "adapt=0.01", 0, layers, (fp_fisher_room){0}, share);
		for (int64_t layer = 0; layer < layers; layer++) {
			float *gradient = load_gradients(&r, layer);
			check_matrix(&r, layer, gradient, "llama-gqa");
			free(gradient);
		}
		end_run(&r);
	}
	free(windows.ids);
	close_fixture(&f);
}

static void check_same(const fisher_run *a, const fisher_run *b, int64_t layer)
{
	int64_t width = fp_model_get_config(a->f->model)->hidden;
	float *one = load_matrix(a, layer), *other = load_matrix(b, layer);
	assert_memory_equal(one, other, (size_t)(width * width) * sizeof *one);
	free(one);
	free(other);
}

static void check_same_gradients(const fisher_run *a, const fisher_run *b, int64_t layer)
{
	int64_t size = fp_fisher_tokens(a->fisher) * fp_model_get_config(a->f->model)->hidden;
	float *one = load_gradients(a, layer), *other = load_gradients(b, layer);
	assert_memory_equal(one, other, (size_t)size * sizeof *one);
	free(one);
	free(other);
}

/* A rank, or a resumed run, has other layers; with adapt = 0 no gradients are kept; with little room, outputs are
 * computed twice; and hidden states, and what is kept, may be on the device. The demo model has six layers. */
static void matrices_do_not_depend_on_how_they_are_made(void **unused)
{
	(void)unused;
	model_fixture f;
	int32_t ids[12 * 16];
	fp_windows windows = {.ids = ids, .count = 12, .length = 16};
	uint64_t seed = 5;
	assert_ok(NULL, open_directory(&f, source_path("models/llama-demo")));
	int64_t layers = fp_model_get_config(f.model)->layers;
	for (int i = 0; i < 12 * 16; i++)
		ids[i] = (int32_t)((random_uniform(&seed) + 1) * 50) + 3;
	fisher_run all = run_fisher(&f, &windows, "adapt=0.01", 0, layers, (fp_fisher_room){0}, (fp_share){0});
	assert_int_equal(layers, 6);
	for (int64_t first = 0; first < layers; first++)
		for (int64_t end = first + 1; end <= layers; end++) {
			const fp_fisher_room room = {
				.on_device = (first + end) % 3 == 0, .keeps = (first + end) % 5 == 0, .bytes = end % 2};
			fisher_run some = run_fisher(&f, &windows, "adapt=0", first, end, room, (fp_share){0});
			assert_int_equal(fp_fisher_gradient_windows(some.fisher), 0);
			for (int64_t layer = first; layer < end; layer++)
				check_same(&all, &some, layer);
			end_run(&some);
		}
	fisher_run kept = run_fisher(&f, &windows, "adapt=0.01", 1, layers,
								 (fp_fisher_room){.on_device = true, .keeps = true}, (fp_share){0});
	for (int64_t layer = 1; layer < layers; layer++) {
		check_same(&all, &kept, layer);
		check_same_gradients(&all, &kept, layer);
	}
	end_run(&kept);
	end_run(&all);
	close_fixture(&f);
}

static fp_fisher_store planned(int64_t layers, int64_t width)
{
	fp_fisher_store file = {.layers = layers,
							.end = layers,
							.windows = 8 * width / 2048,
							.length = 2048,
							.width = width,
							.batch = 2,
							.slot_limit = (int64_t)8 << 30};
	fp_fisher_store_plan(&file);
	return file;
}

static void a_large_model_keeps_few_hidden_states(void **unused)
{
	(void)unused;
	const int64_t gib = (int64_t)1 << 30;
	fp_fisher_store small = planned(32, 4096), large = planned(80, 8192), kept;
	assert_int_equal(small.stride, 1);
	assert_int_equal(fp_fisher_store_file_bytes(&small), 8 * gib + 2 * gib);
	assert_int_equal(large.stride, 8); /* 10 + 7 slots of 1 GiB */
	assert_int_equal(fp_fisher_store_file_bytes(&large), 17 * gib + 20 * gib);
	kept = large;
	kept.keeps_slots = true;
	fp_fisher_store_plan(&kept);
	assert_int_equal(kept.stride, 1);
	kept = small;
	kept.resident = true;
	assert_int_equal(fp_fisher_store_file_bytes(&kept), 2 * gib);
	assert_int_equal(fp_fisher_store_slot_bytes(&kept), 8 * gib);
	assert_int_equal(fp_fisher_store_matrix_bytes(&kept), 2 * gib);
	kept.holds = true;
	assert_int_equal(fp_fisher_store_file_bytes(&kept), 0);
	large.first = 79;
	fp_fisher_store_plan(&large);
	assert_int_equal(fp_fisher_store_file_bytes(&large), gib + gib / 4);
}

static void the_hidden_size_decides_the_number_of_windows(void **unused)
{
	(void)unused;
	static const char *const plain[] = {"adapt=0", NULL}, *const adapted[] = {"adapt=0.01", NULL};
	model_fixture f;
	open_fixture(&f, "llama-plain");
	const fp_model_config *c = fp_model_get_config(f.model);
	fp_settings *settings = resolved_settings(f.ctx, "llama", plain);
	fp_settings *keeping = resolved_settings(f.ctx, "llama", adapted);
	fp_windows windows = {.count = (int64_t)1 << 40, .length = 17};
	assert_int_equal(fp_fisher_windows(f.model, settings, &windows), 65536 / 17 + 1);
	windows.length = 1 << 20;
	assert_int_equal(fp_fisher_windows(f.model, settings, &windows), 1);
	windows.length = 16; /* gradients of all windows that the file has room for */
	assert_int_equal(fp_fisher_windows(f.model, keeping, &windows),
					 ((int64_t)4 << 30) / (2 * c->layers * c->hidden * 16));
	windows.count = 7;
	assert_int_equal(fp_fisher_windows(f.model, settings, &windows), 7);
	assert_int_equal(fp_fisher_windows(f.model, keeping, &windows), 7);
	fp_settings_free(settings);
	fp_settings_free(keeping);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gradients_agree_with_differences_of_the_loss),
		cmocka_unit_test(the_sum_is_over_all_batches),
		cmocka_unit_test(matrices_do_not_depend_on_how_they_are_made),
		cmocka_unit_test(a_large_model_keeps_few_hidden_states),
		cmocka_unit_test(the_hidden_size_decides_the_number_of_windows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
