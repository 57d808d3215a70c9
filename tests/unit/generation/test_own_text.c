/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/own_text.h"
#include "model_fixture.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 6, LENGTH = 60 };

static int64_t count_of(const fp_windows *windows, int32_t id)
{
	int64_t count = 0;
	for (int64_t i = 0; i < windows->count * windows->length; i++)
		count += windows->ids[i] == id;
	return count;
}

/* Mean loss of the tokens of windows by the whole forward pass. */
static double mean_loss(model_fixture *f, const fp_windows *windows)
{
	fp_matrix hidden;
	int64_t tokens = windows->count * windows->length;
	int32_t *targets = malloc((size_t)tokens * sizeof *targets);
	float *losses = malloc((size_t)tokens * sizeof *losses);
	double sum = 0;
	for (int64_t i = 0; i < tokens; i++)
		targets[i] = i % windows->length == windows->length - 1 ? -1 : windows->ids[i + 1];
	run_model(f, windows->ids, windows->count, windows->length, &hidden);
	assert_ok(f->ctx, fp_model_loss(f->model, hidden, targets, losses, NULL));
	for (int64_t i = 0; i < tokens; i++)
		sum += losses[i];
	fp_matrix_free(f->be, &hidden);
	free(targets);
	free(losses);
	return sum / (double)(tokens - windows->count);
}

/* Stories: they begin behind the start token, no stop token is left, and the model finds them as likely as it should. */
static void test_stories(void **state)
{
	(void)state;
	model_fixture f;
	fp_windows one, again, other;
	fp_own_text_statistics s, s_again;
	assert_int_equal(open_directory(&f, source_path("models/llama-demo")), FP_OK);
	fp_own_text_task task = {.model = f.model, .start = 0, .seed = 5, .count = COUNT, .length = LENGTH};
	assert_ok(f.ctx, fp_stop_tokens_read(&task.stop, f.ctx, f.checkpoint));
	assert_ok(f.ctx, fp_own_text(&one, &s, &task));
	assert_int_equal(one.count, COUNT);
	assert_int_equal(one.length, LENGTH);
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(one.ids[i * LENGTH], task.start);
	for (int i = 0; i < task.stop.count; i++)
		if (task.stop.ids[i] != task.start)
			assert_int_equal(count_of(&one, task.stop.ids[i]), 0);
	assert_int_equal(s.texts, count_of(&one, task.start));
	assert_int_equal(s.drawn_tokens, COUNT * (LENGTH - 1));
	assert_int_equal(s.drawn_again + s.repetitive, 0);
	assert_true(s.temperature == 1 && s.distinct > 0.8 && s.least > 0.5 && s.least <= s.distinct && s.distinct <= 1);
	assert_true(fabs(log(s.perplexity) - mean_loss(&f, &one)) < 1); /* the hot tokens are only in the latter */

	assert_ok(f.ctx, fp_own_text(&again, &s_again, &task));
	assert_memory_equal(again.ids, one.ids, COUNT * LENGTH * sizeof *one.ids);
	task.seed = 6;
	assert_ok(f.ctx, fp_own_text(&other, &s_again, &task));
	assert_memory_not_equal(other.ids, one.ids, COUNT * LENGTH * sizeof *one.ids);
	fp_windows_free(&one);
	fp_windows_free(&again);
	fp_windows_free(&other);
	close_fixture(&f);
}

/* A model that is so sure of itself that it always writes the same, and repeats it: all is drawn again, hotter, and in
 * the end it is said that it did not help. */
static void test_collapse(void **state)
{
	(void)state;
	char *folder = copy_fixture("cohere-plain", "logit_scale", "100000");
	model_fixture f;
	fp_windows windows;
	fp_own_text_statistics s;
	assert_int_equal(open_directory(&f, folder), FP_OK);
	fp_own_text_task task = {.model = f.model, .start = 1, .seed = 5, .count = COUNT, .length = 64};
	assert_ok(f.ctx, fp_own_text(&windows, &s, &task));
	assert_true(s.drawn_again >= COUNT - 1 && s.repetitive >= COUNT - 1 && s.least < 0.5);
	assert_true(s.drawn_tokens >= (4 * COUNT - 3) * 63);
	fp_windows_free(&windows);
	close_fixture(&f);
	remove_folder(folder);
	free(folder);
}

static void test_limits(void **state)
{
	(void)state;
	model_fixture f;
	fp_windows windows;
	fp_own_text_statistics s;
	open_fixture(&f, "llama-plain");
	fp_own_text_task task = {.model = f.model, .start = 1, .count = 3, .length = 1};
	assert_fails(f.ctx, FP_ERROR_USAGE, "length", fp_own_text(&windows, &s, &task));
	task.length = fp_model_get_config(f.model)->positions + 1;
	assert_fails(f.ctx, FP_ERROR_USAGE, "positions", fp_own_text(&windows, &s, &task));
	task.length = 2; /* no run of four tokens */
	assert_ok(f.ctx, fp_own_text(&windows, &s, &task));
	assert_int_equal(windows.count * windows.length, 6);
	fp_windows_free(&windows);
	task.memory = 1000;
	assert_fails(f.ctx, FP_ERROR_MEMORY, "whole model", fp_own_text(&windows, &s, &task));
	assert_null(windows.ids);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_stories), cmocka_unit_test(test_collapse),
									   cmocka_unit_test(test_limits)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
