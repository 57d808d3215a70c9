/* SPDX-License-Identifier: Apache-2.0 */
/* The estimates of memory that the fit and the token gradients give, compared with what they allocate. */
#include "counting_allocator.h"
#include "fit_fixture.h"

#include "fitting/fit_metric.h"
#include "fitting/token_gradients.h"

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
	static const char *const settings[] = {"fit_steps=8", "fit_tokens=192", "adapt=0.01", NULL};
	for (int i = 0; i < 2 * FIT_MODEL_COUNT; i++) {
		const char *model = fit_models[i / 2];
		bool metric = i % 2 == 1;
		fit_fixture fit;
		counting_allocator counter;
		open_fit(&fit, model, 12, settings);
		prune_by_size(&fit);
		if (metric)
			make_token_gradients(&fit, 12);
		counting_allocator_begin(&counter, fit.f.be);
		run_fit(&fit);
		int64_t peak = counting_allocator_end(&counter);
		check_estimate(metric ? "fit by token gradients" : "fit", model,
					   fp_fit_bytes(fit.f.model, 0, FIT_BATCH * FIT_LENGTH, metric), peak);
		close_fit(&fit);
	}
}

static void a_metric_takes_what_is_expected(void **unused)
{
	(void)unused;
	enum { HIDDEN = 48, ROWS = 100 };
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	fp_matrix gradients;
	fp_fit_metric metric;
	counting_allocator counter;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	assert_ok(ctx, fp_matrix_new(be, &gradients, ROWS, HIDDEN, FP_F32));
	assert_ok(ctx, be->memory->fill(be, gradients, 0.5F));
	counting_allocator_begin(&counter, be);
	assert_ok(ctx, fp_fit_metric_new(&metric, be, HIDDEN, ROWS));
	assert_ok(ctx, fp_fit_metric_add(&metric, be, gradients));
	assert_ok(ctx, fp_fit_metric_finish(&metric, be, 0.1));
	fp_fit_metric_free(be, &metric);
	check_estimate("metric", "48 features", fp_fit_metric_bytes(HIDDEN, ROWS), counting_allocator_end(&counter));
	fp_matrix_free(be, &gradients);
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

static void token_gradients_take_what_is_expected(void **unused)
{
	(void)unused;
	static const int64_t counts[] = {2, 40};
	static const char *const settings[] = {"fit_steps=1", NULL};
	for (int i = 0; i < 2 * FIT_MODEL_COUNT; i++) {
		const char *model = fit_models[i / 2];
		fit_fixture fit;
		counting_allocator counter;
		fp_token_gradients *gradients;
		model_fixture f;
		open_fit(&fit, model, counts[i % 2], settings);
		open_fixture(&f, model); /* another one, with no tensor in memory yet */
		if (f.be->asynchronous)
			skip_because("%s: layers and products do not use be->memory->allocate()", f.be->name);
		counting_allocator_begin(&counter, f.be);
		assert_ok(f.ctx, fp_token_gradients_new(&gradients, f.model, &fit.windows, 0, "/tmp"));
		int64_t peak = counting_allocator_end(&counter);
		check_estimate(i % 2 ? "token gradients of 40 windows" : "token gradients of 2 windows", model,
					   fp_token_gradients_bytes(f.model, &fit.windows, held_bytes(f.model)), peak);
		fp_token_gradients_free(gradients);
		close_fixture(&f);
		close_fit(&fit);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fit_takes_what_is_expected),
		cmocka_unit_test(a_metric_takes_what_is_expected),
	};
	const struct CMUnitTest token_gradients[] = {cmocka_unit_test(token_gradients_take_what_is_expected)};
	TEST_PART(token_gradients);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
