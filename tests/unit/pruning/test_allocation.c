/* SPDX-License-Identifier: Apache-2.0 */
/* The distribution of zeros over operators: counts, limits and optimality; and on a trained model. */
#include "real_layer.h"

#include "run/prune_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 23 };

static void zeros_are_exact_and_within_the_limit(void **unused)
{
	(void)unused;
	static const double shares[] = {0.5, 0.7, 0.05, 0.97, 0};
	static const double limits[] = {0.1, 0.3, 0.001, 0.5};
	uint64_t seed = 17;
	for (int s = 0; s < 5; s++)
		for (int k = 0; k < 4; k++) {
			double loss[COUNT];
			int64_t entries[COUNT], zeros[COUNT], total = 0, sum = 0;
			for (int i = 0; i < COUNT; i++) {
				loss[i] = 0.01 * exp(2 * (double)random_normal(&seed));
				entries[i] = 100 + (int64_t)(5000 * fabs((double)random_normal(&seed)));
				total += entries[i];
			}
			fp_spread_zeros(zeros, loss, entries, COUNT, shares[s], limits[k]);
			for (int i = 0; i < COUNT; i++) {
				double own = (double)zeros[i] / (double)entries[i], one = 1.0 / (double)entries[i];
				assert_true(zeros[i] >= 0 && zeros[i] <= entries[i]);
				assert_true(own >= shares[s] - limits[k] - one && own <= shares[s] + limits[k] + one);
				sum += zeros[i];
			}
			assert_int_equal(sum, (int64_t)floor(shares[s] * (double)total));
		}
}

/* Between the limits, an operator's share falls with the logarithm of its loss per entry, at the same rate for all. Then
 * moving a zero from one operator to another cannot lower the sum of the losses. */
static void the_distribution_is_optimal(void **unused)
{
	(void)unused;
	double loss[] = {0.01, 0.02, 0.04, 0.03, 0.01, 1000};
	int64_t entries[] = {100000, 100000, 100000, 300000, 200000, 1000}, zeros[6];
	double share[6];
	fp_spread_zeros(zeros, loss, entries, 6, 0.6, 0.3);
	for (int i = 0; i < 6; i++)
		share[i] = (double)zeros[i] / (double)entries[i];
	double rate = log(2) / (share[0] - share[1]);
	assert_true(rate > 1 && rate < 50);
	assert_true(fabs(share[1] - share[2] - log(2) / rate) < 1e-4);
	assert_true(fabs(share[0] - share[3]) < 1e-4); /* the same loss per entry */
	assert_true(fabs(share[4] - share[0] - log(2) / rate) < 1e-4);
	assert_true(fabs(share[5] - 0.3) < 2e-3); /* at the limit */
}

/* Measured with Transformers, each operator alone pruned to 70%: the first layer's fc1 raises the loss by far the most,
 * the queries least. */
static void sensitive_operators_keep_more(void **unused)
{
	(void)unused;
	for (int i = 0; i < real_source_count; i++) {
		model_fixture f = {0};
		fp_windows windows;
		fp_settings *settings;
		fp_allocation *allocation, *again;
		if (strcmp(real_sources[i].name, "opt-demo") != 0)
			continue;
		open_real(&f, &windows, &real_sources[i], 6, 128);
		assert_ok(f.ctx, fp_settings_new(&settings, f.ctx));
		assert_ok(f.ctx, fp_settings_assign(settings, f.ctx, "allocate=0.2"));
		fp_pattern pattern = {.sparsity = 0.7};
		fp_allocation_request request = {.model = f.model,
										 .settings = settings,
										 .windows = &windows,
										 .pattern = pattern,
										 .end = fp_model_get_config(f.model)->layers};
		assert_ok(f.ctx, fp_allocation_new(&allocation, &request));
		assert_ok(f.ctx, fp_allocation_new(&again, &request));
		int64_t zeros = 0, entries = 0;
		double queries = 0;
		double first = fp_allocation_pattern(allocation, pattern, 0, FP_UP).sparsity;
		for (int64_t layer = 0; layer < request.end; layer++) {
			queries += fp_allocation_pattern(allocation, pattern, layer, FP_QUERY).sparsity / (double)request.end;
			for (int role = 0; role < FP_ROLE_COUNT; role++) {
				const fp_tensor_info *tensor = fp_model_operator(f.model, layer, (fp_role)role);
				fp_pattern own = fp_allocation_pattern(allocation, pattern, layer, (fp_role)role);
				fp_pattern same = fp_allocation_pattern(again, pattern, layer, (fp_role)role);
				if (!tensor)
					continue;
				assert_true(own.sparsity == same.sparsity && own.group == 0);
				assert_true(own.sparsity > 0.499 && own.sparsity < 0.901);
				assert_true(own.sparsity >= first);
				zeros += fp_pattern_zeros(&own, tensor->elements);
				entries += tensor->elements;
			}
		}
		assert_true(queries > 0.72);
		assert_int_equal(zeros, (int64_t)floor(0.7 * (double)entries));
		assert_true(fp_allocation_pattern(NULL, pattern, 0, FP_UP).sparsity == 0.7);
		fp_allocation_free(allocation);
		fp_allocation_free(again);
		fp_settings_free(settings);
		fp_windows_free(&windows);
		close_fixture(&f);
		return;
	}
	fail_msg("opt-demo is not among the real models");
}

typedef struct tiny_run {
	model_fixture f;
	fp_windows windows;
	fp_settings *settings;
	fp_prune_task task;
	fp_prune_result result;
} tiny_run;

static void open_tiny(tiny_run *run, const char *name, const char *const *assignments)
{
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, name);
	run->windows = read_windows(name);
	run->settings = resolved_settings(run->f.ctx, "llama", assignments);
	run->task = (fp_prune_task){
		.be = run->f.be, .ctx = run->f.ctx, .model = run->f.model, .settings = run->settings, .windows = &run->windows};
}

static void close_tiny(tiny_run *run)
{
	fp_prune_result_free(&run->result);
	fp_settings_free(run->settings);
	free(run->windows.ids);
	close_fixture(&run->f);
}

/* The pruned layers together have the requested zeros, whichever layers they are, with different shares per operator. */
static void a_pruned_model_has_the_zeros_it_should(void **unused)
{
	(void)unused;
	static const char *const recipes[][5] = {
		{"allocate=0.1", "pattern=60%", "search_steps=6"},
		{"allocate=0.2", "pattern=70%", "method=sparsegpt", "layers=1"},
		{"allocate=0.05", "pattern=50%", "preset=paper", "iterations=2"},
	};
	static const char *const models[] = {"llama-gqa", "opt-plain", "opt-350m", "mixtral-plain", "deepseek_v3-groups"};
	static const double shares[] = {0.6, 0.7, 0.5};
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		for (int r = 0; r < 3; r++) {
			tiny_run run;
			int others = 0;
			open_tiny(&run, models[i], recipes[r]);
			assert_ok(run.f.ctx, fp_prune_model(&run.result, &run.task));
			assert_int_equal(run.result.zeros, (int64_t)floor(shares[r] * (double)run.result.entries));
			for (int64_t k = 0; k < run.result.count; k++) {
				const fp_operator_result *one = &run.result.operators[k];
				double own = (double)one->zeros / (double)one->tensor->elements;
				assert_true(fabs(own - shares[r]) <= run.settings->allocate + 2.0 / (double)one->tensor->elements);
				others += fabs(own - shares[r]) > 0.01;
			}
			assert_true(others > 1);
			close_tiny(&run);
		}
}

static void unusable_requests_are_refused(void **unused)
{
	(void)unused;
	const char *const structured[] = {"allocate=0.1", "pattern=2:4", NULL};
	const char *const blind[] = {"allocate=0.1", "method=magnitude", NULL};
	tiny_run run;
	open_tiny(&run, "llama-gqa", structured);
	assert_fails(run.f.ctx, FP_ERROR_USAGE, "same sparsity everywhere", fp_prune_model(&run.result, &run.task));
	close_tiny(&run);
	open_tiny(&run, "llama-gqa", blind);
	fp_windows none = {.length = run.windows.length};
	run.task.windows = &none;
	assert_fails(run.f.ctx, FP_ERROR_USAGE, "needs calibration text", fp_prune_model(&run.result, &run.task));
	close_tiny(&run);
}

static void every_allocation_may_fail(void **unused)
{
	(void)unused;
	const char *const all[] = {"allocate=0.1", "pattern=60%", NULL};
	fp_status status = FP_ERROR_MEMORY;
	tiny_run run;
	open_tiny(&run, "opt-plain", all);
	for (int64_t n = 1; status != FP_OK; n++) {
		fp_allocation *allocation = NULL;
		fp_allocation_request request = {.model = run.f.model,
										 .settings = run.settings,
										 .windows = &run.windows,
										 .pattern = {.sparsity = 0.6},
										 .end = 2};
		run.f.ctx->fail_allocation_at = run.f.ctx->allocations + n;
		status = fp_allocation_new(&allocation, &request);
		run.f.ctx->fail_allocation_at = 0;
		if (status != FP_OK)
			assert_int_equal(status, FP_ERROR_MEMORY);
		fp_allocation_free(allocation);
	}
	close_tiny(&run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zeros_are_exact_and_within_the_limit),
		cmocka_unit_test(the_distribution_is_optimal),
		cmocka_unit_test(sensitive_operators_keep_more),
		cmocka_unit_test(a_pruned_model_has_the_zeros_it_should),
		cmocka_unit_test(unusable_requests_are_refused),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
