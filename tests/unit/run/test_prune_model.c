/* SPDX-License-Identifier: Apache-2.0 */
/* fp_prune_model() on tiny models: order, --layers, sums, reproducibility, interruption, failures. */
#include "model_fixture.h"

#include "base/settings.h"
#include "run/report.h"
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct model_run {
	model_fixture f;
	fp_windows windows;
	fp_settings *settings;
	fp_prune_task task;
	fp_prune_result result;
	int finished;
	int stop_after; /* set the flag after this many operators; 0: never */
	volatile int flag;
} model_run;

static void listen(void *data, const fp_operator_result *result)
{
	model_run *run = data;
	(void)result;
	if (++run->finished == run->stop_after)
		run->flag = 1;
}

static void open_run(model_run *run, const char *name, const char *const *assignments)
{
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, name);
	run->windows = read_windows(name);
	run->settings = resolved_settings(run->f.ctx, strncmp(name, "opt", 3) ? "llama" : "opt", assignments);
	run->task = (fp_prune_task){.be = run->f.be,
								.ctx = run->f.ctx,
								.model = run->f.model,
								.settings = run->settings,
								.windows = &run->windows,
								.listener = listen,
								.listener_data = run};
	fp_context_set_interrupt(run->f.ctx, &run->flag);
}

static void close_run(model_run *run)
{
	fp_prune_result_free(&run->result);
	fp_settings_free(run->settings);
	free(run->windows.ids);
	close_fixture(&run->f);
}

static void every_operator_comes_once_and_in_order(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa",   "llama-sharded", "llama-bin",        "opt-plain",
										 "opt-350m",    "phi3-plain",    "gpt2-plain",       "gpt_neox-plain",
										 "olmo2-plain", "falcon-40b",    "deepseek_v3-dense"};
	static const char *const recipes[][4] = {{"preset=paper", "iterations=3"},
											 {"preset=fast", "search_steps=6"},
											 {"preset=best", "search_steps=6", "fit_steps=4"},
											 {"method=wanda"},
											 {"method=magnitude", "pattern=2:4"}};
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		for (int r = 0; r < 5; r++) {
			model_run run;
			int64_t zeros = 0, entries = 0;
			double error = 0, output = 0;
			open_run(&run, models[i], recipes[r]);
			const fp_model_config *c = fp_model_get_config(run.f.model);
			int per_layer = c->latent.query_rank > 0 ? 8 : c->gated ? 7 : 6;
			assert_ok(run.f.ctx, fp_prune_model(&run.result, &run.task));
			assert_int_equal(run.result.count, c->layers * per_layer);
			assert_int_equal(run.finished, run.result.count);
			for (int64_t k = 0; k < run.result.count; k++) {
				const fp_operator_result *one = &run.result.operators[k];
				assert_int_equal(one->layer, k / per_layer);
				if (k % per_layer > 0)
					assert_true(one->number > one[-1].number);
				assert_ptr_equal(one->tensor, fp_model_operator(run.f.model, one->layer, one->number));
				assert_true(one->zeros >= one->tensor->elements / 2);
				assert_true(one->squared_error > 0 && one->squared_error < one->squared_output);
				zeros += one->zeros;
				entries += one->tensor->elements;
				error += one->squared_error;
				output += one->squared_output;
			}
			assert_int_equal(run.result.zeros, zeros);
			assert_int_equal(run.result.entries, entries);
			assert_true(run.result.squared_error == error && run.result.squared_output == output);
			close_run(&run);
		}
}

static void layers_chooses_and_changes_nothing_else(void **unused)
{
	(void)unused;
	const char *const all[] = {"preset=paper", "correction=intra", NULL};
	const char *const second[] = {"preset=paper", "correction=intra", "layers=1", NULL};
	model_run whole, part;
	open_run(&whole, "llama-gqa", all);
	open_run(&part, "llama-gqa", second);
	assert_ok(whole.f.ctx, fp_prune_model(&whole.result, &whole.task));
	assert_ok(part.f.ctx, fp_prune_model(&part.result, &part.task));
	assert_int_equal(part.result.count, 7);
	for (int k = 0; k < 7; k++) { /* layers are independent: the second is the same without the first */
		const fp_operator_result *a = &whole.result.operators[7 + k], *b = &part.result.operators[k];
		assert_int_equal(b->layer, 1);
		assert_true(a->squared_error == b->squared_error && a->zeros == b->zeros);
	}
	close_run(&whole);
	close_run(&part);
	const char *const bad[] = {"layers=1-2", NULL};
	open_run(&part, "llama-gqa", bad);
	assert_fails(part.f.ctx, FP_ERROR_USAGE, "layers", fp_prune_model(&part.result, &part.task));
	close_run(&part);
}

/* Imitates a device's asynchronous upload and counts the calls by stage. */
static int uploads[FP_STAGE_COUNT];

static fp_status upload_async(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype type,
							  const void *host, fp_dtype dtype)
{
	uploads[be->ctx->stopwatch->current]++;
	fp_status status = fp_matrix_new(be, out, rows, cols, type);
	return status == FP_OK ? be->memory->upload(be, *out, host, dtype, cols) : status;
}

/* If a device uploads asynchronously, each layer but the first is uploaded during the forward pass through the one before,
 * and results do not change. */
static void layers_are_uploaded_in_advance(void **unused)
{
	(void)unused;
	static const char *const recipes[][4] = {{"preset=paper", "iterations=3"},
											 {"preset=fast", "search_steps=6"},
											 {"method=wanda"},
											 {"preset=best", "search_steps=6", "fit_steps=4"}};
	for (int r = 0; r < 4; r++) {
		model_run plain, async;
		open_run(&plain, "llama-gqa", recipes[r]);
		open_run(&async, "llama-gqa", recipes[r]);
		assert_ok(plain.f.ctx, fp_prune_model(&plain.result, &plain.task));
		const fp_transfer_operations transfer = {.upload_async = upload_async};
		async.f.be->transfer = &transfer;
		async.f.be->capabilities |= FP_CAN_UPLOAD_ASYNC;
		memset(uploads, 0, sizeof uploads);
		assert_ok(async.f.ctx, fp_prune_model(&async.result, &async.task));
		assert_int_equal(async.result.count, plain.result.count);
		for (int64_t k = 0; k < plain.result.count; k++) {
			const fp_operator_result *a = &plain.result.operators[k], *b = &async.result.operators[k];
			assert_true(a->squared_error == b->squared_error && a->zeros == b->zeros);
		}
		int64_t layers = fp_model_get_config(async.f.model)->layers;
		if (r < 3) /* a fit waits for the device, so the next layer is not uploaded early */
			assert_int_equal(uploads[FP_STAGE_FORWARD], (layers - 1) * uploads[FP_STAGE_LOAD]);
		close_run(&plain);
		close_run(&async);
	}
}

static void gives_the_same_twice(void **unused)
{
	(void)unused;
	static const char *const recipes[][3] = {
		{"preset=paper"}, {"preset=fast"}, {"preset=best", "fit_steps=9"}, {"method=sparsegpt"}};
	for (int r = 0; r < 4; r++) {
		char *text[2];
		for (int i = 0; i < 2; i++) {
			model_run run;
			open_run(&run, "opt-plain", recipes[r]);
			assert_ok(run.f.ctx, fp_prune_model(&run.result, &run.task));
			json_t *report = fp_report_result(&run.task, &run.result, "model", false);
			text[i] = json_dumps(report, JSON_INDENT(1));
			json_decref(report);
			close_run(&run);
		}
		assert_string_equal(text[0], text[1]);
		free(text[0]);
		free(text[1]);
	}
}

static void an_interrupt_ends_it_in_order(void **unused)
{
	(void)unused;
	static const char *const recipes[][3] = {{"preset=paper"}, {"preset=fast"}, {"method=magnitude"}};
	for (int r = 0; r < 3; r++)
		for (int after = 1; after < 9; after += 3) {
			model_run run;
			open_run(&run, "llama-gqa", recipes[r]);
			run.stop_after = after;
			assert_fails(run.f.ctx, FP_ERROR_INTERRUPTED, "interrupted", fp_prune_model(&run.result, &run.task));
			assert_int_equal(run.finished, after); /* at the next operator */
			assert_int_equal(run.result.count, 0);
			assert_null(run.result.operators);
			close_run(&run);
		}
	model_run run;
	open_run(&run, "llama-gqa", recipes[0]);
	run.flag = 1;
	assert_fails(run.f.ctx, FP_ERROR_INTERRUPTED, "interrupted", fp_prune_model(&run.result, &run.task));
	close_run(&run);
}

/* Magnitude needs no text; errors are then those of the weights. */
static void magnitude_works_without_text(void **unused)
{
	(void)unused;
	const char *const all[] = {"method=magnitude", "pattern=2:4", NULL};
	model_run run;
	open_run(&run, "opt-plain", all);
	run.windows.count = 0;
	assert_ok(run.f.ctx, fp_prune_model(&run.result, &run.task));
	assert_int_equal(run.result.count, 12);
	for (int64_t k = 0; k < run.result.count; k++) {
		const fp_operator_result *one = &run.result.operators[k];
		int64_t size = one->tensor->elements;
		fp_layer *layer;
		assert_ok(run.f.ctx, fp_layer_load(&layer, run.f.model, one->layer));
		float *values = malloc((size_t)size * sizeof *values);
		fp_matrix weight = layer->weight[one->number];
		assert_ok(run.f.ctx, run.f.be->memory->download(run.f.be, values, FP_F32, weight.cols, weight));
		double squared = 0;
		for (int64_t i = 0; i < size; i++)
			squared += (double)values[i] * (double)values[i];
		assert_true(fabs(one->squared_output - squared) < 1e-5 * squared);
		free(values);
		fp_layer_free(layer);
	}
	close_run(&run);
	const char *const other[] = {"method=fista", NULL};
	open_run(&run, "opt-plain", other);
	run.windows.count = 0;
	assert_fails(run.f.ctx, FP_ERROR_USAGE, "calibration text", fp_prune_model(&run.result, &run.task));
	close_run(&run);
}

static void an_estimate_is_made_without_running(void **unused)
{
	(void)unused;
	const char *const all[] = {"preset=fast", "layers=1", NULL};
	model_run run;
	fp_prune_plan plan;
	open_run(&run, "llama-gqa", all);
	assert_ok(run.f.ctx, fp_prune_estimate(&plan, &run.task));
	assert_int_equal(plan.layers, 1);
	assert_int_equal(plan.operators, 7);
	assert_int_equal(plan.tokens, run.windows.count * run.windows.length);
	assert_true(plan.memory_bytes > 0 && plan.flops > 0 && run.finished == 0);
	close_run(&run);
}

static void every_allocation_may_fail(void **unused)
{
	(void)unused;
	const char *const all[] = {"preset=best", "search_steps=3", "refit_steps=1", "layers=0", "fit_steps=2", NULL};
	fp_status status = FP_ERROR_MEMORY;
	model_run run;
	open_run(&run, "opt-plain", all);
	for (int64_t n = 1; status != FP_OK; n++) {
		run.f.ctx->fail_allocation_at = run.f.ctx->allocations + n;
		status = fp_prune_model(&run.result, &run.task);
		run.f.ctx->fail_allocation_at = 0;
		if (status != FP_OK)
			assert_int_equal(status, FP_ERROR_MEMORY);
	}
	close_run(&run);
}

/* The report has both losses of each fitted layer; without a fit it has no such list. */
static void fitted_layers_are_reported(void **unused)
{
	(void)unused;
	for (int fitted = 0; fitted < 2; fitted++) {
		const char *const all[] = {"method=magnitude", "fit_rate=0.003", fitted ? "fit_steps=5" : "fit_steps=0", NULL};
		model_run run;
		int64_t kept = 0;
		open_run(&run, "opt-plain", all);
		assert_ok(run.f.ctx, fp_overlay_new(&run.task.overlay, run.f.ctx));
		assert_ok(run.f.ctx, fp_prune_model(&run.result, &run.task));
		json_t *report = fp_report_result(&run.task, &run.result, "model", true);
		for (int64_t i = 0; i < run.result.fit_count; i++) { /* biases change if the fit was kept */
			const fp_fit_result *fit = &run.result.fits[i];
			const fp_tensor_info *bias = fp_model_operator_bias(run.f.model, fit->layer, FP_DOWN);
			assert_int_equal(fp_overlay_data(run.task.overlay, bias) != NULL, fit->steps > 0);
			kept += fit->steps > 0;
		}
		assert_true(!fitted || kept > 0);
		json_t *layers = json_object_get(report, "layers");
		assert_int_equal(json_array_size(layers), fitted ? fp_model_get_config(run.f.model)->layers : 0);
		for (size_t i = 0; i < json_array_size(layers); i++) {
			json_t *layer = json_array_get(layers, i);
			double before = json_real_value(json_object_get(layer, "fit_loss_before"));
			double after = json_real_value(json_object_get(layer, "fit_loss_after"));
			assert_int_equal(json_integer_value(json_object_get(layer, "layer")), i);
			assert_true(after > 0 && after <= before);
			assert_true((json_integer_value(json_object_get(layer, "fit_steps")) > 0) == (after < before));
		}
		json_decref(report);
		fp_overlay_free(run.task.overlay);
		close_run(&run);
	}
}

/* Kept dense statistics do not change results, whatever the memory limit. With all of them kept, magnitude makes no pass
 * over the text. */
static void kept_statistics_change_nothing(void **unused)
{
	(void)unused;
	static const char *const recipes[][4] = {{"method=magnitude"},
											 {"method=wanda"},
											 {"method=wanda", "fit_steps=3"},
											 {"preset=paper", "iterations=3"},
											 {"preset=paper", "iterations=3", "correction=none"},
											 {"preset=fast", "search_steps=6"},
											 {"method=magnitude", "pattern=2:4"}};
	static const int64_t limits[] = {0, 20000, (int64_t)1 << 30};
	enum { RECIPES = sizeof recipes / sizeof recipes[0] };
	for (int backwards = 0; backwards < 2; backwards++)
		for (int i = 0; i < 3; i++) {
			model_run shared;
			const char *const nothing[] = {NULL};
			fp_dense_statistics *kept;
			open_run(&shared, "llama-gqa", nothing);
			assert_ok(shared.f.ctx, fp_dense_statistics_new(&kept, shared.f.ctx, 2, limits[i]));
			for (int k = 0; k < RECIPES; k++) {
				int r = backwards ? RECIPES - 1 - k : k;
				model_run run;
				char *text[2];
				open_run(&run, "llama-gqa", recipes[r]);
				fp_model *own = run.task.model;
				for (int t = 0; t < 2; t++) {
					run.task.model = t ? shared.f.model : own;
					run.task.be = t ? shared.f.be : run.f.be;
					run.task.ctx = t ? shared.f.ctx : run.f.ctx;
					run.task.kept = t ? kept : NULL;
					assert_ok(shared.f.ctx, fp_prune_model(&run.result, &run.task));
					if (t && k == RECIPES - 1)
						assert_int_equal(run.result.stopwatch.seconds[FP_STAGE_FORWARD] == 0, limits[i] > 20000);
					json_t *report = fp_report_result(&run.task, &run.result, "model", false);
					text[t] = json_dumps(report, JSON_INDENT(1));
					json_decref(report);
					fp_prune_result_free(&run.result);
				}
				assert_string_equal(text[0], text[1]);
				free(text[0]);
				free(text[1]);
				close_run(&run);
			}
			fp_dense_statistics_forget(kept);
			assert_null(fp_dense_statistics_find(kept, 0, 0));
			fp_dense_statistics_free(kept);
			close_run(&shared);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_operator_comes_once_and_in_order),
		cmocka_unit_test(layers_chooses_and_changes_nothing_else),
		cmocka_unit_test(layers_are_uploaded_in_advance),
		cmocka_unit_test(gives_the_same_twice),
		cmocka_unit_test(an_interrupt_ends_it_in_order),
		cmocka_unit_test(magnitude_works_without_text),
		cmocka_unit_test(an_estimate_is_made_without_running),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(fitted_layers_are_reported),
		cmocka_unit_test(kept_statistics_change_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
