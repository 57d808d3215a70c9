/* SPDX-License-Identifier: Apache-2.0 */
/* Wherever hidden states are kept, pruned layers are the same to the bit. Memory plans respect the limit. */
#include "model_fixture.h"

#include "base/settings.h"
#include "run/memory_plan.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct outcome {
	uint64_t digest;
	int operators;
} outcome;

static fp_status take(void *data, const fp_operator_result *result, const void *bytes)
{
	outcome *o = data;
	const unsigned char *at = bytes;
	for (int64_t i = 0; i < result->tensor->bytes; i++)
		o->digest = (o->digest ^ at[i]) * 1099511628211U;
	o->operators++;
	return FP_OK;
}

static fp_status take_fit(void *data, const fp_fit_result *fit)
{
	outcome *o = data;
	const double losses[] = {fit->loss_before, fit->loss_after};
	const unsigned char *at = (const unsigned char *)losses;
	for (size_t i = 0; i < sizeof losses; i++)
		o->digest = (o->digest ^ at[i]) * 1099511628211U;
	return FP_OK;
}

/* Prunes all layers of a model but the first, which is skipped as in a resumed run. */
static outcome prune_all(const char *name, const char *const *assignments, fp_residence residence)
{
	model_fixture f;
	fp_windows windows;
	fp_settings *settings;
	fp_streams streams;
	outcome o = {0};
	open_fixture(&f, name);
	windows = read_windows(name);
	settings = resolved_settings(f.ctx, "llama", assignments);
	const fp_streams_plan plan = {.both = fp_feed_needs_both(fp_feed_of(settings)),
								  .fitted = settings->fit_steps > 0,
								  .batch = 1,
								  .residence = residence,
								  .folder = "/tmp"};
	assert_true(windows.count > 1); /* several batches */
	assert_ok(f.ctx, fp_streams_open(&streams, f.model, &windows, &plan));
	const fp_layer_task task = {.be = f.be,
								.ctx = f.ctx,
								.model = f.model,
								.settings = settings,
								.pattern = {.sparsity = 0.5},
								.streams = &streams,
								.output = {.operator_done = take, .fit_done = take_fit, .data = &o}};
	assert_ok(f.ctx, fp_pass_layer(&task, 0, NULL));
	for (int64_t layer = 0; layer < fp_model_get_config(f.model)->layers; layer++)
		assert_ok(f.ctx, fp_prune_layer(&task, layer));
	fp_streams_free(&streams);
	fp_settings_free(settings);
	free(windows.ids);
	close_fixture(&f);
	return o;
}

static void residence_does_not_change_the_result(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa",          "opt-plain",       "opt-350m",      "gpt_neox-plain",
										 "falcon-7b",          "gemma2-plain",    "mixtral-plain", "qwen2_moe-plain",
										 "deepseek_v3-groups", "deepseek_v2-lite"};
	static const char *const recipes[][5] = {
		{"preset=fast", "search_steps=2", "refit_steps=2"},
		{"preset=fast", "search_steps=2", "refit_steps=2", "correction=intra"},
		{"preset=paper", "iterations=3", "correction=none"},
		{"method=sparsegpt"},
		{"preset=best", "search_steps=2", "refit_steps=2", "fit_steps=2"},
		{"preset=best", "search_steps=2", "fit_steps=2", "correction=intra"},
		{"preset=best", "iterations=3", "fit_steps=2", "correction=none"},
		{"preset=best", "search_steps=2", "fit_steps=2", "fit_mix=0.5"},
		{"method=wanda", "fit_steps=2"},
	};
	for (size_t m = 0; m < sizeof models / sizeof *models; m++)
		for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++) {
			outcome whole = prune_all(models[m], recipes[r], FP_RESIDENT);
			assert_true(whole.operators > 0);
			for (int residence = FP_RECOMPUTE; residence <= FP_ON_DISK; residence++) {
				outcome other = prune_all(models[m], recipes[r], (fp_residence)residence);
				assert_int_equal(other.operators, whole.operators);
				if (other.digest != whole.digest)
					fail_msg("%s, recipe %zu: residence %d gives other bytes", models[m], r, residence);
			}
		}
}

static void plans_respect_the_limit(void **unused)
{
	(void)unused;
	model_fixture f;
	fp_settings *settings;
	static const char *const recipe[] = {"preset=fast", NULL};
	fp_windows windows = {.count = 4096, .length = 16}; /* no text: only the counts are used */
	open_fixture(&f, "llama-gqa");
	settings = resolved_settings(f.ctx, "llama", recipe);
	const fp_prune_task task = {.be = f.be, .ctx = f.ctx, .model = f.model, .settings = settings, .windows = &windows};
	fp_memory_plan free_plan, plan;
	assert_ok(f.ctx, fp_memory_plan_make(&free_plan, &task, false));
	assert_int_equal(free_plan.streams.residence, FP_RESIDENT);
	int last = FP_RESIDENT;
	int64_t batch = free_plan.streams.batch;
	for (int64_t limit = free_plan.bytes; limit > 0; limit -= 4 << 10) {
		char text[32];
		snprintf(text, sizeof text, "%lld", (long long)limit);
		assert_ok(f.ctx, fp_settings_set(settings, f.ctx, "memory", text));
		if (fp_memory_plan_make(&plan, &task, false) != FP_OK) {
			assert_non_null(strstr(fp_context_message(f.ctx), "at least"));
			break;
		}
		assert_true(plan.bytes <= limit);
		assert_true((int)plan.streams.residence >= last && plan.streams.batch <= batch);
		assert_true(plan.streams.batch == batch || plan.streams.residence == FP_ON_DISK);
		last = (int)plan.streams.residence;
		batch = plan.streams.batch;
	}
	assert_int_equal(last, FP_ON_DISK);
	assert_true(batch < free_plan.streams.batch);
	fp_settings_free(settings);
	close_fixture(&f);
}

/* The statistics of experts are spread over several passes before hidden states leave the memory. */
static void plans_spread_experts(void **unused)
{
	(void)unused;
	model_fixture f;
	static const char *const recipe[] = {"preset=paper", NULL};
	fp_windows windows = {.count = 2, .length = 16};
	open_fixture(&f, "mixtral-plain");
	fp_settings *settings = resolved_settings(f.ctx, "llama", recipe);
	const fp_prune_task task = {.be = f.be, .ctx = f.ctx, .model = f.model, .settings = settings, .windows = &windows};
	fp_memory_plan all, plan;
	assert_ok(f.ctx, fp_memory_plan_make(&all, &task, false));
	assert_int_equal(all.experts_at_once, 5);
	int64_t least = 5;
	for (int64_t limit = all.bytes + all.bytes / 32; limit > 0; limit -= 1 << 10) {
		char text[32];
		snprintf(text, sizeof text, "%lld", (long long)limit);
		assert_ok(f.ctx, fp_settings_set(settings, f.ctx, "memory", text));
		if (fp_memory_plan_make(&plan, &task, false) != FP_OK || plan.streams.residence != FP_RESIDENT)
			break;
		assert_true(plan.bytes <= limit && plan.experts_at_once <= least && plan.experts_at_once >= 1);
		assert_int_equal(plan.streams.batch, all.streams.batch);
		least = plan.experts_at_once;
	}
	assert_true(least < 5);
	fp_settings_free(settings);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(residence_does_not_change_the_result),
		cmocka_unit_test(plans_respect_the_limit),
		cmocka_unit_test(plans_spread_experts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
