/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the fixtures' perplexity with the logits of transformers for different chunk sizes; checks
 * progress, interruption and errors. */
#include "model_fixture.h"

#include "evaluation/perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COPIES = 37 }; /* windows: several batches, the last one partial */

static double reference_mean(const expected_output *expected)
{
	double sum = 0;
	int64_t count = 0;
	for (int64_t i = 0; i < (int64_t)expected->sequences * expected->length; i++) {
		const float *logits = expected->logits + i * expected->vocabulary;
		double total = 0;
		if ((i + 1) % expected->length == 0)
			continue;
		for (int32_t j = 0; j < expected->vocabulary; j++)
			total += exp(logits[j]);
		sum += log(total) - logits[expected->ids[i + 1]];
		count++;
	}
	return sum / (double)count;
}

typedef struct steps {
	int64_t calls, last, total;
	int stop_at;
	volatile int flag;
} steps;

static void on_progress(void *data, const char *stage, int64_t done, int64_t total)
{
	steps *s = data;
	assert_string_equal(stage, "evaluating");
	assert_true(done > s->last && done <= total);
	s->last = done;
	s->total = total;
	s->calls++;
	if (s->stop_at && s->calls == s->stop_at)
		s->flag = 1;
}

static void fill_windows(fp_windows *windows, const expected_output *expected)
{
	size_t bytes = (size_t)expected->sequences * (size_t)expected->length * sizeof(int32_t);
	windows->count = (int64_t)expected->sequences * COPIES;
	windows->length = expected->length;
	windows->ids = malloc(bytes * COPIES);
	for (size_t i = 0; i < COPIES; i++)
		memcpy((char *)windows->ids + i * bytes, expected->ids, bytes);
}

static void equals_the_reference_in_any_chunking(void **unused)
{
	(void)unused;
	static const char *const cases[] = {"opt-plain", "opt-350m", "llama-gqa"};
	static const int64_t memories[] = {0, 1, 1 << 20, 3 << 20};
	for (int i = 0; i < 3; i++) {
		expected_output expected;
		fp_windows windows;
		read_expected(&expected, cases[i]);
		fill_windows(&windows, &expected);
		double mean = reference_mean(&expected);
		for (int m = 0; m < 8; m++) {
			model_fixture f;
			fp_perplexity_result result;
			steps progress = {0};
			open_fixture(&f, cases[i]);
			f.be->asynchronous = m >= 4; /* also with a device's batch size */
			fp_context_set_progress(f.ctx, on_progress, &progress);
			assert_ok(f.ctx, fp_perplexity(&result, f.model, &windows, memories[m % 4]));
			assert_int_equal(result.windows, windows.count);
			assert_int_equal(result.tokens, windows.count * (windows.length - 1));
			assert_true(fabs(result.mean_loss - mean) < 1e-5);
			assert_true(fabs(result.perplexity / exp(mean) - 1) < 1e-5);
			assert_int_equal(progress.last, progress.total);
			close_fixture(&f);
		}
		free(windows.ids);
		free(expected.ids);
		free(expected.logits);
	}
}

static void stops_when_asked(void **unused)
{
	(void)unused;
	model_fixture f;
	expected_output expected;
	fp_windows windows;
	fp_perplexity_result result;
	steps progress = {.stop_at = 1};
	open_fixture(&f, "llama-gqa");
	read_expected(&expected, "llama-gqa");
	fill_windows(&windows, &expected);
	fp_context_set_progress(f.ctx, on_progress, &progress);
	fp_context_set_interrupt(f.ctx, &progress.flag);
	assert_fails(f.ctx, FP_ERROR_INTERRUPTED, "interrupted", fp_perplexity(&result, f.model, &windows, 0));
	assert_int_equal(progress.calls, 1);
	free(windows.ids);
	free(expected.ids);
	free(expected.logits);
	close_fixture(&f);
}

static void refuses_windows_that_do_not_fit(void **unused)
{
	(void)unused;
	model_fixture f;
	fp_perplexity_result result;
	int32_t ids[65] = {0};
	open_fixture(&f, "llama-gqa");
	fp_windows windows = {.ids = ids, .count = 1, .length = 65};
	assert_fails(f.ctx, FP_ERROR_USAGE, "has 64 positions", fp_perplexity(&result, f.model, &windows, 0));
	windows.length = 1;
	assert_fails(f.ctx, FP_ERROR_USAGE, "use 2 or more", fp_perplexity(&result, f.model, &windows, 0));
	windows = (fp_windows){.ids = ids, .count = 0, .length = 8};
	assert_fails(f.ctx, FP_ERROR_INPUT, "no window", fp_perplexity(&result, f.model, &windows, 0));
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equals_the_reference_in_any_chunking),
		cmocka_unit_test(stops_when_asked),
		cmocka_unit_test(refuses_windows_that_do_not_fit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
