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
		json_array_append_new(rows, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "method", name, "pattern",
											  i % 2 ? "2:4" : "50%", "perplexity", 5.0 + i, "relative_error", 0.1,
											  "seconds", 1.0, "evaluation_seconds", 1.0));
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

/* A second table if the rows have the divergence. */
static void divergence(void **state)
{
	fp_context *ctx = *state;
	json_t *document = comparison("model", 2);
	char *html = page_of(ctx, json_incref(document));
	assert_int_equal(count(html, "<h2>KL divergence"), 0);
	fp_text_free(html);
	json_t *rows = json_object_get(document, "rows");
	for (size_t i = 0; i < json_array_size(rows); i++)
		json_object_set_new(json_array_get(rows, i), "kl", json_real(0.125 * (double)i));
	html = page_of(ctx, document);
	assert_int_equal(count(html, "<h2>KL divergence"), 1);
	assert_int_equal(count(html, ">0.125 ★<"), 1);
	assert_int_equal(count(html, "KL 0.2500, error"), 1);
	fp_text_free(html);
}

/* A column for the basis if some row has one; a prune says what it gained. */
static void bases(void **state)
{
	fp_context *ctx = *state;
	json_t *document = comparison("model", 2);
	json_t *rows = json_object_get(document, "rows");
	for (size_t i = 1; i < json_array_size(rows); i++)
		json_object_set_new(json_array_get(rows, i), "basis", json_pack("{s:s}", "kind", "none"));
	char *html = page_of(ctx, json_incref(document));
	assert_int_equal(count(html, "<th>basis</th>"), 0);
	assert_int_equal(count(html, "<td>none</td>"), 0);
	fp_text_free(html);
	for (size_t i = 3; i < 5; i++) /* the second method */
		json_object_set_new(json_array_get(rows, i), "basis", json_pack("{s:s}", "kind", "full"));
	html = page_of(ctx, document);
	assert_int_equal(count(html, "<th>basis</th>"), 1);
	assert_int_equal(count(html, "<tr><th>dense</th><td>–</td>"), 1);
	assert_int_equal(count(html, "<tr><th>way0</th><td>none</td>"), 1);
	assert_int_equal(count(html, "<tr><th>way1</th><td>full</td>"), 1);
	fp_text_free(html);
	html = page_of(ctx, json_pack("{s:s, s:[], s:{s:s, s:[f, f], s:[f, f], s:b, s:i}}", "model", "m", "operators",
								  "basis", "kind", "full", "removed_of_heads", 0.09, 0.08, "removed", 0.119, 0.086,
								  "untied_head", 1, "head_bytes", 12582912));
	assert_non_null(strstr(html, "(full: residual stream and heads)"));
	assert_non_null(
		strstr(html, "fell from 11.9% to 8.6%. The head is no longer the embedding and takes 12.0 MiB of its own."));
	fp_text_free(html);
	html = page_of(ctx, json_pack("{s:s, s:[], s:{s:s, s:[f, f]}}", "model", "m", "operators", "basis", "kind", "local",
								  "removed_of_heads", 0.099, 0.091));
	assert_non_null(strstr(html, "(local: heads)"));
	assert_non_null(strstr(html, "of the attention operators' squared weights fell from 9.9% to 9.1%.</p>"));
	fp_text_free(html);
	html = page_of(ctx, json_pack("{s:s, s:[], s:{s:s}}", "model", "m", "operators", "basis", "kind", "none"));
	assert_null(strstr(html, "learned basis"));
	fp_text_free(html);
}

/* A name that is longer than most is not cut off, and the chart gives it room. */
static void long_names(void **state)
{
	static const char title[] = "layer reconstruction (best, basis full, short fit)";
	fp_context *ctx = *state;
	json_t *document = comparison("model", 2);
	json_t *row = json_array_get(json_object_get(document, "rows"), 1);
	char *html = page_of(ctx, json_incref(document));
	assert_int_equal(count(html, "<text class=\"end\" x=\"286\""), 4); /* two methods, two patterns */
	fp_text_free(html);
	json_object_set_new(row, "title", json_string(title));
	html = page_of(ctx, document);
	assert_int_equal(count(html, "<th>layer reconstruction (best, basis full, short fit)</th>"), 1);
	char place[64];
	snprintf(place, sizeof place, "<text class=\"end\" x=\"%zu\"", 7 * strlen(title));
	assert_int_equal(count(html, place), 2); /* the names of 50%: this one and way1 */
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

/* Rows are called by what they run, and a sentence says what that is. */
static void presets_have_honest_names(void **state)
{
	fp_context *ctx = *state;
	json_t *document = comparison("model", 0);
	json_t *rows = json_object_get(document, "rows");
	json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:f}", "method", "fista", "preset", "fast", "pattern", "2:4",
										  "perplexity", 6.0));
	json_array_append_new(rows,
						  json_pack("{s:s, s:s, s:s, s:s, s:f}", "method", "fista", "preset", "best", "title",
									"layer reconstruction (best, short fit)", "pattern", "2:4", "perplexity", 5.0));
	json_array_append_new(rows, json_pack("{s:s, s:s, s:f}", "method", "wanda", "pattern", "2:4", "perplexity", 7.0));
	char *html = page_of(ctx, document);
	assert_non_null(strstr(html, "<th>ADMM search + refit (fast)</th>"));
	assert_non_null(strstr(html, "<th>layer reconstruction (best, short fit)</th>"));
	assert_non_null(strstr(html, "<th>Wanda</th>"));
	assert_int_equal(count(html, "does not run FISTA"), 2);
	assert_null(strstr(html, "FISTAPruner as published"));
	fp_text_free(html);
}

/* The chart of hidden states: one line per row that has them, for each pattern. */
static void hidden_errors_of_a_comparison(void **state)
{
	fp_context *ctx = *state;
	json_t *document = comparison("model", 3);
	json_t *rows = json_object_get(document, "rows");
	for (size_t i = 1; i < 5; i++) /* two of the three methods */
		json_object_set_new(json_array_get(rows, i), "hidden_errors", json_pack("[f, f, n, f]", 0.01, 0.02, 0.04));
	char *html = page_of(ctx, document);
	assert_int_equal(count(html, "<h2>Error by layer</h2>"), 1);
	assert_int_equal(count(html, "‖h* − h‖ / ‖h‖"), 1);
	assert_int_equal(count(html, "relative error of the hidden state by layer"), 2); /* 50% and 2:4 */
	assert_int_equal(count(html, "<path class=\"l s0\""), 2);
	assert_int_equal(count(html, "<path class=\"l s1\""), 2);
	assert_int_equal(count(html, "<path class=\"l s2\""), 0);
	assert_null(strstr(html, "nan"));
	fp_text_free(html);
	html = page_of(ctx, comparison("model", 3)); /* no such numbers, no chart */
	assert_null(strstr(html, "Error by layer"));
	fp_text_free(html);
}

static void hidden_errors_of_a_prune(void **state)
{
	fp_context *ctx = *state;
	char *html = NULL;
	assert_ok(ctx,
			  fp_report_page(&html, ctx,
							 "{\"model\": \"m\", \"pattern\": \"2:4\", \"method\": \"fista\", \"preset\": \"paper\", "
							 "\"operators\": [], \"layers\": [{\"layer\": 0, \"hidden_error\": 0.0123}, "
							 "{\"layer\": 1, \"hidden_error\": 0.0456}, {\"layer\": -1, \"hidden_error\": 1}, "
							 "{\"layer\": 9007199254740991, \"hidden_error\": 1}]}"));
	assert_non_null(strstr(html, "pruned to 2:4: FISTAPruner (paper)"));
	assert_int_equal(count(html, "<h2>Error by layer</h2>"), 1);
	assert_int_equal(count(html, "<svg"), 1);
	assert_int_equal(count(html, "<circle class=\"m s0\""), 3); /* two layers, and the mark beside the name */
	assert_null(strstr(html, "<h2>Layer fit</h2>"));
	fp_text_free(html);
	assert_ok(ctx, fp_report_page(
					   &html, ctx,
					   "{\"model\": \"m\", \"operators\": [], \"layers\": [{\"layer\": 0, \"fit_loss_before\": 0.5, "
					   "\"fit_loss_after\": 0.25, \"fit_steps\": 7}, {\"layer\": 1, \"hidden_error\": 0.5}]}"));
	assert_non_null(strstr(html, "<h2>Layer fit</h2>"));
	assert_int_equal(count(html, "0.2500"), 1);
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
		cmocka_unit_test_setup_teardown(divergence, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(bases, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(long_names, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(several_comparisons, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(presets_have_honest_names, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(hidden_errors_of_a_comparison, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(hidden_errors_of_a_prune, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(anything_else, context_set_up, context_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
