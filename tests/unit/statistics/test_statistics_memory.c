/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the estimates of the statistics' memory with what they allocate. */
#include "counting_allocator.h"
#include "solver_fixture.h"

#include "statistics/statistics.h"

enum { N = 160, WIDE = 400, M = 96, HIDDEN = 64, BATCH = 200, BATCHES = 2 };

static const struct {
	const char *name;
	bool by_outputs;
	fp_statistics_plan plan; /* `only` gets a buffer below */
} cases[] = {
	{"one stream", false, {.inputs = N}},
	{"one stream, centred", false, {.inputs = N, .centred = true}},
	{"two streams", false, {.inputs = N, .two_streams = true}},
	{"two streams, centred", false, {.inputs = N, .two_streams = true, .centred = true}},
	{"two streams, residual", false, {.inputs = N, .two_streams = true, .residual_outputs = HIDDEN}},
	{"a wide operator", true, {.inputs = WIDE, .two_streams = true, .only = {.rows = M, .cols = WIDE}}},
	{"a tall operator", false, {.inputs = M, .two_streams = true, .only = {.rows = WIDE, .cols = M}}},
	{"everything",
	 true,
	 {.inputs = WIDE,
	  .two_streams = true,
	  .centred = true,
	  .residual_outputs = HIDDEN,
	  .only = {.rows = HIDDEN, .cols = WIDE}}},
};

/* Vectors are not estimated. */
static void check_estimate(const char *name, const char *when, double floats, int64_t bytes)
{
	double ratio = floats * sizeof(float) / (double)bytes;
	if (!(ratio >= 0.95 && ratio <= 1.0))
		fail_msg("%s, %s: %.0f bytes expected, %lld allocated: a ratio of %.3f", name, when, floats * sizeof(float),
				 (long long)bytes, ratio);
}

static void statistics_take_what_is_expected(void **unused)
{
	(void)unused;
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const char *name = cases[i].name;
		fp_statistics_plan plan = cases[i].plan;
		fp_statistics statistics;
		fp_matrix X, hidden, W = {0};
		counting_allocator counter;
		plan.batch = BATCH;
		fp_statistics_memory expected = fp_statistics_floats(&plan);
		assert_true(expected.registers == 0);
		plan.registers = 3;
		assert_true(fp_statistics_floats(&plan).registers == 2 * (expected.kept + expected.targets));
		assert_int_equal(fp_statistics_by_outputs(&plan), cases[i].by_outputs);
		assert_ok(ctx, fp_matrix_new(be, &X, BATCH, plan.inputs, FP_F32));
		assert_ok(ctx, fp_matrix_new(be, &hidden, BATCH, HIDDEN, FP_F32));
		assert_ok(ctx, be->memory->fill(be, X, 0.5F));
		assert_ok(ctx, be->memory->fill(be, hidden, 0.5F));
		if (plan.only.rows > 0) {
			assert_ok(ctx, fp_matrix_new(be, &W, plan.only.rows, plan.only.cols, FP_F32));
			assert_ok(ctx, be->memory->fill(be, W, 0.25F));
			plan.only = W;
		}
		counting_allocator_begin(&counter, be);
		assert_ok(ctx, fp_statistics_new(&statistics, be, &plan));
		for (int batch = 0; batch < BATCHES; batch++) {
			assert_ok(ctx, fp_statistics_fold(&statistics, X, X));
			if (plan.residual_outputs > 0)
				assert_ok(ctx, fp_statistics_fold_residual(&statistics, hidden, hidden, X));
		}
		assert_ok(ctx, fp_statistics_finish(&statistics));
		check_estimate(name, "at the end of the pass", expected.kept + expected.targets, counter.held);
		fp_statistics_forget_targets(&statistics);
		check_estimate(name, "without targets", expected.kept, counter.held);
		fp_statistics_free(&statistics);
		assert_int_equal(counter.held, 0);
		check_estimate(name, "at the peak", expected.kept + expected.targets + expected.workspace,
					   counting_allocator_end(&counter));
		fp_matrix_free(be, &X);
		fp_matrix_free(be, &hidden);
		fp_matrix_free(be, &W);
	}
	fp_backend_close(be);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(statistics_take_what_is_expected),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
