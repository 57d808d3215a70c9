/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/prune_result.h"

#include <math.h>
#include <string.h>

enum { WORST_OPERATORS = 5 };

/* The entry of this kind; a new one is appended if there is none. */
static json_t *find_kind(json_t *kinds, const char *name)
{
	for (size_t i = 0; i < json_array_size(kinds); i++)
		if (strcmp(fp_cli_text_at(json_array_get(kinds, i), "kind"), name) == 0)
			return json_array_get(kinds, i);
	json_array_append_new(kinds, json_pack("{s:s, s:i, s:f, s:f, s:f}", "kind", name, "count", 0, "zeros", 0.0, "mean",
										   0.0, "worst", 0.0));
	return json_array_get(kinds, json_array_size(kinds) - 1);
}

/* Operators of one kind have the same shape in every layer, so that means over operators are means over weights. */
static json_t *group_by_kind(const json_t *operators)
{
	json_t *kinds = json_array();
	for (size_t i = 0; i < json_array_size(operators); i++) {
		const json_t *one = json_array_get(operators, i);
		json_t *kind = find_kind(kinds, fp_cli_text_at(one, "operator"));
		double count = fp_cli_number_at(kind, "count"), error = fp_cli_number_at(one, "relative_error");
		double zeros = fp_cli_number_at(kind, "zeros"), mean = fp_cli_number_at(kind, "mean");
		json_object_set_new(kind, "count", json_integer((json_int_t)count + 1));
		json_object_set_new(kind, "zeros",
							json_real(zeros + (fp_cli_number_at(one, "sparsity") - zeros) / (count + 1)));
		json_object_set_new(kind, "mean", json_real(mean + (error - mean) / (count + 1)));
		json_object_set_new(kind, "worst", json_real(fmax(error, fp_cli_number_at(kind, "worst"))));
	}
	return kinds;
}

static void print_operators(const json_t *operators)
{
	static const fp_cli_column columns[] = {
		{"name", "operator", NULL, 0, false},          {"sparsity", "zeros", "%.2f%%", 100, false},
		{"relative_error", "error", "%.5f", 1, false}, {"lambda", "lambda", "%.3g", 1, true},
		{"iterations", "steps", "%.0f", 1, true},      {"search_steps", "search", "%.0f", 1, true},
		{"seconds", "seconds", "%.2f", 1, false},
	};
	fp_cli_print_table(operators, columns, sizeof columns / sizeof columns[0]);
	putchar('\n');
}

static void print_kinds(const json_t *operators)
{
	static const fp_cli_column kind_columns[] = {
		{"kind", "kind", NULL, 0, false},           {"count", "operators", "%.0f", 1, false},
		{"zeros", "zeros", "%.2f%%", 100, false},   {"mean", "mean error", "%.5f", 1, false},
		{"worst", "worst error", "%.5f", 1, false},
	};
	static const fp_cli_column worst_columns[] = {
		{"name", "largest errors", NULL, 0, false},
		{"sparsity", "zeros", "%.2f%%", 100, false},
		{"relative_error", "error", "%.5f", 1, false},
	};
	json_t *kinds = group_by_kind(operators);
	json_t *worst = fp_cli_largest_rows(operators, "relative_error", WORST_OPERATORS);
	fp_cli_print_table(kinds, kind_columns, sizeof kind_columns / sizeof kind_columns[0]);
	putchar('\n');
	if (json_array_size(worst) > 0) {
		fp_cli_print_table(worst, worst_columns, sizeof worst_columns / sizeof worst_columns[0]);
		putchar('\n');
	}
	json_decref(kinds);
	json_decref(worst);
}

static void print_stages(const json_t *stages)
{
	const char *name;
	json_t *seconds;
	json_object_foreach((json_t *)stages, name, seconds)
	{
		if (json_number_value(seconds) >= 0.005) /* else it would print as 0.00 */
			printf("  %-12s%.2f s\n", name, json_number_value(seconds));
	}
}

/* The next two commands, to copy. With --allocate the matrices have shares of their own, which inspect does not know.
 */
static void print_next(const json_t *result, const fp_cli_options *options)
{
	const char *output = fp_cli_text_at(result, "output");
	const json_t *settings = json_object_get(result, "settings");
	bool same_share = strcmp(fp_cli_text_at(settings, "allocate"), "0") == 0 && !*fp_cli_text_at(settings, "only") &&
					  !*fp_cli_text_at(settings, "skip") && !*fp_cli_text_at(settings, "pattern_rules");
	fputs("\nCheck the zeros, then measure perplexity and KL divergence on a text other than the calibration text:\n  ",
		  stdout);
	fp_cli_print_word(stdout, options->words[0]);
	fputs(*output == '-' ? " inspect ./" : " inspect ", stdout);
	fp_cli_print_word(stdout, output);
	if (same_share)
		printf(" --pattern %s", fp_cli_text_at(result, "pattern"));
	fputs("\n  ", stdout);
	fp_cli_print_word(stdout, options->words[0]);
	fputs(*output == '-' ? " eval ./" : " eval ", stdout);
	fp_cli_print_word(stdout, output);
	fputs(" --text TEXT --reference ", stdout);
	fp_cli_print_word(stdout, options->operands[0]);
	fputs("\n", stdout);
}

static void print_check(const json_t *check)
{
	printf("check           perplexity %.4f (dense %.4f) on %.0f windows that the run did not use\n",
		   fp_cli_number_at(check, "perplexity"), fp_cli_number_at(check, "reference_perplexity"),
		   fp_cli_number_at(check, "windows"));
	printf("                KL %.5f ± %.5f per token, same top 1 %.2f%%\n", fp_cli_number_at(check, "kl"),
		   fp_cli_number_at(check, "kl_stderr"), 100 * fp_cli_number_at(check, "top1"));
}

/* What was folded into the weights: "full: the pattern removes 11.9% → 8.6% of the squared weights, head untied (12.3 MiB)". */
static void print_basis(const json_t *basis)
{
	const json_t *removed = json_object_get(basis, "removed");
	bool stream = json_array_size(removed) == 2;
	char bytes[32];
	if (!stream)
		removed = json_object_get(basis, "removed_of_heads");
	if (json_array_size(removed) != 2)
		return;
	if (!stream && json_number_value(json_array_get(removed, 0)) == 0) { /* heads are made of latents */
		printf("basis           %s: inner channels in another order\n", fp_cli_text_at(basis, "kind"));
		return;
	}
	printf("basis           %s: the pattern removes %.1f%% → %.1f%% of %s squared weights",
		   fp_cli_text_at(basis, "kind"), 100 * json_number_value(json_array_get(removed, 0)),
		   100 * json_number_value(json_array_get(removed, 1)), stream ? "the" : "attention's");
	if (json_is_true(json_object_get(basis, "untied_head"))) {
		fp_cli_format_bytes(bytes, fp_cli_number_at(basis, "head_bytes"));
		printf(", head untied (%s)", bytes);
	}
	putchar('\n');
}

/* "its own text: 128 windows of 2048 tokens, 231 texts, 94.1% distinct, 2 drawn again". */
static void print_own_text(const json_t *result, const json_t *text)
{
	if (!text)
		return;
	printf("calibration     its own text: %.0f windows of %.0f tokens, %.0f texts, %.1f%% distinct, %.0f drawn again\n",
		   fp_cli_number_at(result, "calibration_windows"), fp_cli_number_at(result, "sequence_length"),
		   fp_cli_number_at(text, "texts"), 100 * fp_cli_number_at(text, "distinct"),
		   fp_cli_number_at(text, "drawn_again"));
}

void fp_cli_prune_render(const json_t *result, const fp_cli_options *options)
{
	const json_t *operators = json_object_get(result, "operators");
	char bytes[32];
	size_t count = json_array_size(operators);
	if (count > 0 && options->verbose)
		print_operators(operators);
	if (count > 0)
		print_kinds(operators);
	printf("output          %s\n", fp_cli_text_at(result, "output"));
	if (json_object_get(result, "stored_as"))
		printf("input           %s\n", fp_cli_text_at(result, "stored_as"));
	if (options->metrics)
		printf("every operator  %s\n", options->metrics);
	printf("method          %s\n", fp_method_title(fp_cli_text_at(result, "method"), fp_cli_text_at(result, "preset")));
	printf("pattern         %s\n", fp_cli_text_at(result, "pattern"));
	if (json_object_get(result, "quantized"))
		printf("stored as       %s; zeros like other numbers\n",
			   fp_cli_text_at(json_object_get(result, "quantized"), "stored_as"));
	printf("sparsity        %.4f%% of %zu operator%s\n", 100 * fp_cli_number_at(result, "sparsity"), count,
		   count == 1 ? "" : "s");
	printf("relative error  %.5f\n", fp_cli_number_at(result, "relative_error"));
	print_own_text(result, json_object_get(result, "own_text"));
	print_basis(json_object_get(result, "basis"));
	if (json_object_get(result, "biases_updated"))
		printf("biases          %.0f updated\n", fp_cli_number_at(result, "biases_updated"));
	if (json_object_get(result, "seconds")) { /* not if an earlier run had finished */
		fp_cli_format_bytes(bytes, fp_cli_number_at(result, "peak_memory_bytes"));
		printf("took            %.1f s, %s at most\n", fp_cli_number_at(result, "seconds"), bytes);
		if (options->verbose)
			print_stages(json_object_get(result, "stages"));
	}
	if (json_object_get(result, "check"))
		print_check(json_object_get(result, "check"));
	print_next(result, options);
}

/* The operators that would be pruned, a line for each kind of name and pattern. */
static void print_selected(const json_t *selected)
{
	static const fp_cli_column columns[] = {
		{"kind", "operators", NULL, 0, false},
		{"pattern", "pattern", NULL, 0, false},
		{"count", "count", "%.0f", 1, false},
	};
	json_t *kinds = json_array();
	for (size_t i = 0; i < json_array_size(selected); i++) {
		const json_t *one = json_array_get(selected, i);
		const char *pattern = fp_cli_text_at(one, "pattern");
		char name[512];
		size_t k = 0;
		fp_cli_name_kind(name, sizeof name, fp_cli_text_at(one, "name"));
		while (k < json_array_size(kinds) &&
			   (strcmp(fp_cli_text_at(json_array_get(kinds, k), "kind"), name) != 0 ||
				strcmp(fp_cli_text_at(json_array_get(kinds, k), "pattern"), pattern) != 0))
			k++;
		if (k == json_array_size(kinds))
			json_array_append_new(kinds, json_pack("{s:s, s:s, s:i}", "kind", name, "pattern", pattern, "count", 0));
		json_t *kind = json_array_get(kinds, k);
		json_object_set_new(kind, "count", json_integer((json_int_t)fp_cli_number_at(kind, "count") + 1));
	}
	putchar('\n');
	fp_cli_print_table(kinds, columns, sizeof columns / sizeof columns[0]);
	json_decref(kinds);
}

/* Every scalar under its own key: what an estimate consists of changes between versions. */
void fp_cli_plan_render(const json_t *result, const fp_cli_options *options)
{
	const char *name;
	json_t *value;
	(void)options;
	json_object_foreach((json_t *)result, name, value)
	{
		if (json_is_string(value))
			printf("%-24s%s\n", name, json_string_value(value));
		else if (json_is_integer(value))
			printf("%-24s%lld\n", name, (long long)json_integer_value(value));
		else if (json_is_real(value))
			printf("%-24s%g\n", name, json_real_value(value));
	}
	print_selected(json_object_get(result, "selected"));
}
