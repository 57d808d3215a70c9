/* SPDX-License-Identifier: Apache-2.0 */
/* Perplexities of real models against the figures of transformers, from text to number. */
#include "model_fixture.h"

#include "evaluation/perplexity.h"

#include <math.h>
#include <stdio.h>

enum { LENGTH = 256 };

static void check(const char *name, double perplexity, int64_t count)
{
	char directory[4096];
	char text[4096];
	model_fixture f;
	fp_tokenizer *tokenizer;
	fp_windows windows;
	fp_perplexity_result result;
	char inside[256];
	snprintf(inside, sizeof inside, "models/%s", name);
	snprintf(directory, sizeof directory, "%s", need_shared_path(inside));
	snprintf(text, sizeof text, "%s", need_shared_path("data/tinystories-eval.jsonl"));
	fp_status status = open_directory(&f, directory);
	assert_ok(f.ctx, status);
	assert_ok(f.ctx, fp_tokenizer_open(&tokenizer, f.ctx, directory));
	assert_ok(f.ctx, fp_windows_evaluation(&windows, f.ctx, tokenizer, text, "documents", LENGTH));
	assert_ok(f.ctx, fp_perplexity(&result, f.model, &windows, 0));
	print_message("  %s: perplexity %.5f over %lld windows; the reference is %.4f\n", name, result.perplexity,
				  (long long)result.windows, perplexity);
	assert_int_equal(result.windows, count);
	assert_true(fabs(result.perplexity / perplexity - 1) < 1e-3);
	fp_windows_free(&windows);
	fp_tokenizer_free(tokenizer);
	close_fixture(&f);
}

static void stories260k(void **unused)
{
	(void)unused;
	check("stories260K", 4.5267, 542);
}

static void stories15m(void **unused)
{
	(void)unused;
	check("stories15M", 4.0389, 287);
}

static void opt_stories_26m(void **unused)
{
	(void)unused;
	check("opt-stories-26m", 7.1934, 264);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stories260k),
		cmocka_unit_test(stories15m),
		cmocka_unit_test(opt_stories_26m),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
