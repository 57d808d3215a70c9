/* SPDX-License-Identifier: Apache-2.0 */
/* Pages from documents of one comparison, of several, and of neither kind. */
#include "support.h"

#include <fistapruner/fistapruner.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A comparison with so many methods, each at two patterns. */
static json_t *comparison(const char *model, int methods)
{
	json_t *rows = json_pack("[{s:s, s:f}]", "method", "dense", "perplexity", 4.0);
	for (int i = 0; i < 2 * methods; i++) {
		char name[16];
		snprintf(name, sizeof name, "way%d", i / 2);
		json_array_append_new(rows,
							  json_pack("{s:s, s:s, s:f, s:f, s:f}", "method", name, "pattern", i % 2 ? "2:4" : "50%",
										"perplexity", 5.0 + i, "relative_error", 0.1, "seconds", 1.0));
	}
	return json_pack("{s:s, s:s, s:o, s:i, s:i, s:i, s:f}", "model", model, "recipe", "main", "rows", rows, "windows",
					 3, "sequence_length", 16, "peak_memory_bytes", 1 << 29, "seconds", 2.25);
}

static char *page_of(fp_context *ctx, json_t *document)
{
	char *html = NULL;
	char *json = json_dumps(document, 0);
	assert_ok(ctx, fp_report_page(&html, ctx, json));
	free(json);
	json_decref(document);
	return html;
}

static int count(const char *text, const char *part)
{
	int found = 0;
	for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
		found++;
	return found;
}

static void one_comparison(void **state)
{
	fp_context *ctx = *state;
	char *html = page_of(ctx, comparison("a/b/<model>", 8));
	assert_int_equal(count(html, "<h1>&lt;model&gt;</h1>"), 1);
	assert_int_equal(count(html, "<svg"), 2); /* a row of dots for each pattern */
	assert_non_null(strstr(html, "0.50 GiB"));
	assert_non_null(strstr(html, "2.2 s"));
	/* eight methods, eight marks: told apart without colour */
	static const char *const marks[] = {"r=\"4\"/>", "width=\"8\"", "l5 9h-10z",      "l5 5l-5 5l-5-5z",
										"l-5-9h10z", "l8 8m-8",     "class=\"x s6\"", "v10m-5-5h10"};
	for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
		assert_true(count(html, marks[i]) >= 2);
	fp_text_free(html);
}

static void several_comparisons(void **state)
{
	fp_context *ctx = *state;
	char *html = page_of(ctx, json_pack("{s:s, s:[o, o]}", "note", "how & why", "comparisons", comparison("first", 2),
										comparison("x/second", 3)));
	assert_int_equal(count(html, "<h1>first</h1>"), 1);
	assert_int_equal(count(html, "<h1>second</h1>"), 1);
	assert_int_equal(count(html, "how &amp; why"), 2);
	assert_int_equal(count(html, "<style>"), 1);
	assert_int_equal(count(html, "</html>"), 1);
	assert_int_equal(count(html, "<h2>Settings and versions</h2>"), 2);
	assert_true(strstr(html, "<h1>first</h1>") < strstr(html, "<h1>second</h1>"));
	fp_text_free(html);
}

static void anything_else(void **state)
{
	fp_context *ctx = *state;
	char *html = NULL;
	assert_fails(ctx, FP_ERROR_USAGE, "prune or compare", fp_report_page(&html, ctx, "{\"perplexity\": 1}"));
	assert_fails(ctx, FP_ERROR_USAGE, "prune or compare", fp_report_page(&html, ctx, "{\"comparisons\": []}"));
	assert_null(html);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_comparison, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(several_comparisons, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(anything_else, context_set_up, context_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
