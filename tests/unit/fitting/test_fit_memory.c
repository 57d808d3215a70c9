/* SPDX-License-Identifier: Apache-2.0 */
/* The estimates of memory that the fit and Fisher matrices give, compared with what they allocate. */
#include "counting_allocator.h"
#include "fit_fixture.h"

#include "fitting/fisher.h"
#include "fitting/fit_metric.h"
#include "sharing/part_sum.h"

#include <stdlib.h>
#include <string.h>

/* The estimate may be a little above the peak, and hardly below it. */
static void check_estimate(const char *what, const char *model, int64_t estimate, int64_t peak)
{
	double ratio = (double)estimate / (double)peak;
	if (!(ratio >= 0.95 && ratio <= 1.25))
		fail_msg("%s, %s: %lld bytes expected, %lld allocated at the peak: a ratio of %.3f", what, model,
				 (long long)estimate, (long long)peak, ratio);
}

static void a_fit_takes_what_is_expected(void **unused)
{
	(void)unused;
	for (int i = 0; i < 3 * FIT_MODEL_COUNT; i++) {
		const char *model = fit_models[i / 3];
		bool metric = i % 3 > 0, slope = i % 3 > 1;
		const char *settings[] = {"fit_steps=8", "fit_tokens=192", slope ? "adapt=0.01" : "adapt=0", NULL};
		fit_fixture fit;
		counting_allocator counter;
		open_fit(&fit, model, 12, settings);
		prune_by_size(&fit);
		if (metric)
			make_token_gradients(&fit, 12);
		int registers = 1;
		if (i % 2 == 1) {
			fit.share = fp_share_divided(NULL, 12);
			registers = fp_part_sum_registers(&fit.share, fp_fit_batch(fit.settings, 12, FIT_LENGTH));
			assert_int_equal(registers, 3);
		}
		counting_allocator_begin(&counter, fit.f.be);
		run_fit(&fit);
		int64_t peak = counting_allocator_end(&counter);
		check_estimate(slope    ? "fit with gradients"
					   : metric ? "fit by Fisher matrix"
								: "fit",
					   model, fp_fit_bytes(fit.f.model, 0, FIT_BATCH * FIT_LENGTH, metric, slope, registers), peak);
		close_fit(&fit);
	}
}

static void a_metric_takes_what_is_expected(void **unused)
{
	(void)unused;
	enum { HIDDEN = 48, ROWS = 100 };
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	fp_fit_metric metric;
	counting_allocator counter;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	counting_allocator_begin(&counter, be);
	assert_ok(ctx, fp_fit_metric_new(&metric, be, HIDDEN, ROWS));
	assert_ok(ctx, be->memory->fill(be, metric.F, 0.5F));
	assert_ok(ctx, fp_fit_metric_finish(&metric, be, ROWS, 0.1));
	fp_fit_metric_free(be, &metric);
	check_estimate("metric", "48 features", fp_fit_metric_bytes(HIDDEN, ROWS), counting_allocator_end(&counter));
	fp_backend_close(be);
	fp_context_free(ctx);
}

static int64_t held_bytes(const fp_model *model)
{
	int64_t held = 0;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		const fp_tensor_info *tensor = fp_model_operator(model, 0, (fp_role)role);
		held += tensor ? tensor->elements * fp_dtype_size(fp_model_held_type(model, tensor)) : 0;
	}
	return held;
}

/* The peak of the passes, with hidden states in the file or on the device. */
static void check_fisher(const char *name, int64_t windows, const char *adapt, bool on_device)
{
	const char *settings[] = {"fit_steps=1", adapt, NULL};
	fit_fixture fit;
	counting_allocator counter;
	fp_fisher *fisher;
	model_fixture f;
	open_fit(&fit, name, windows, settings);
	open_fixture(&f, name); /* another one, with no tensor in memory yet */
	if (f.be->asynchronous)
		skip_because("%s: layers and products do not use be->memory->allocate()", f.be->name);
	const fp_model_config *c = fp_model_get_config(f.model);
	bool divided = windows > FP_PARTS;
	int64_t expected = fp_fisher_bytes(f.model, fit.settings, &fit.windows, held_bytes(f.model), divided ? 3 : 1);
	int64_t states = c->layers * windows * FIT_LENGTH * c->hidden * fp_dtype_size(FP_BF16);
	fp_fisher_request request = {
		.model = f.model, .settings = fit.settings, .windows = &fit.windows, .end = c->layers, .folder = "/tmp"};
	if (divided)
		request.share = fp_share_divided(NULL, windows);
	if (on_device) {
		bool keeps = fp_fisher_keeps_gradients(fit.settings);
		int64_t matrices = c->layers * c->hidden * c->hidden * (int64_t)sizeof(float);
		int64_t kept = matrices + (keeps ? states : 0);
		assert_int_equal(fp_fisher_kept_bytes(f.model, fit.settings, &fit.windows), kept);
		assert_false(
			fp_fisher_choose_room(f.model, fit.settings, &fit.windows, states / c->layers, kept - 1).on_device);
		assert_false(fp_fisher_choose_room(f.model, fit.settings, &fit.windows, states, kept - 1).keeps);
		request.room = fp_fisher_choose_room(f.model, fit.settings, &fit.windows, states, kept);
		assert_true(request.room.on_device && request.room.keeps);
		expected += states + matrices;
	}
	counting_allocator_begin(&counter, f.be);
	assert_ok(f.ctx, fp_fisher_new(&fisher, &request));
	check_estimate(on_device ? "Fisher matrices, states on the device" : "Fisher matrices", name, expected,
				   counting_allocator_end(&counter));
	fp_fisher_free(fisher);
	close_fixture(&f);
	close_fit(&fit);
}

static void fisher_takes_what_is_expected(void **unused)
{
	(void)unused;
	static const int64_t counts[] = {2, 40, 400};
	for (int i = 0; i < 3 * FIT_MODEL_COUNT; i++) {
		check_fisher(fit_models[i / 3], counts[i % 3], "adapt=0", false);
		check_fisher(fit_models[i / 3], counts[i % 3], "adapt=0", true);
		check_fisher(fit_models[i / 3], counts[i % 3], "adapt=0.01", false);
		check_fisher(fit_models[i / 3], counts[i % 3], "adapt=0.01", true);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fit_takes_what_is_expected),
		cmocka_unit_test(a_metric_takes_what_is_expected),
	};
	const struct CMUnitTest fisher[] = {cmocka_unit_test(fisher_takes_what_is_expected)};
	TEST_PART(fisher);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
