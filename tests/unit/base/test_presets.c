/* SPDX-License-Identifier: Apache-2.0 */
/* The presets: each word of the setting has a title and a sentence, and the values shown are those that a run uses. */
#include "base/settings.h"
#include "support.h"

#include <stdio.h>
#include <string.h>

static const char *choices_of(const char *name)
{
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++)
		if (strcmp(info->name, name) == 0)
			return info->choices;
	return "";
}

static const char *value_of(fp_context *ctx, const char *preset, const char *family, const char *name)
{
	static char text[FP_SETTING_TEXT_SIZE];
	assert_ok(ctx, fp_preset_value(ctx, preset, family, name, text, sizeof text));
	return text;
}

/* The words of the setting `preset`, in the same order. */
static void every_choice_is_described(void **state)
{
	(void)state;
	char joined[256] = "";
	const fp_preset_info *info;
	for (size_t i = 0; (info = fp_preset_at(i)); i++) {
		size_t used = strlen(joined);
		snprintf(joined + used, sizeof joined - used, "%s%s", i ? "|" : "", info->name);
		assert_non_null(strstr(info->title, info->name));
		assert_int_equal(info->description[strlen(info->description) - 1], '.');
	}
	assert_string_equal(joined, choices_of("preset"));
}

static void only_paper_runs_fista(void **state)
{
	fp_context *ctx = *state;
	const fp_preset_info *info;
	for (size_t i = 0; (info = fp_preset_at(i)); i++) {
		bool runs = strcmp(value_of(ctx, info->name, "", "iterations"), "0") != 0;
		assert_int_equal(runs, strcmp(info->name, "paper") == 0);
		assert_int_equal(strstr(info->title, "FISTA") != NULL, runs);
		assert_int_equal(strstr(info->description, "does not run FISTA") != NULL, !runs);
	}
}

static void values_are_what_a_run_uses(void **state)
{
	fp_context *ctx = *state;
	char text[8];
	assert_string_equal(value_of(ctx, "best", "", "correction"), "cross");
	assert_string_equal(value_of(ctx, "best", "", "fit_steps"), "200");
	assert_string_equal(value_of(ctx, "fast", "", "fit_steps"), "0");
	assert_string_equal(value_of(ctx, "paper", "", "warm_start"), "wanda");
	assert_string_equal(value_of(ctx, "paper", "opt", "warm_start"), "sparsegpt");
	assert_string_equal(value_of(ctx, "best", "", "step_tolerance"), "1e-6"); /* as the table spells it */
	assert_fails(ctx, FP_ERROR_USAGE, "one of best|fast|paper", fp_preset_value(ctx, "worst", "", "mix", text, 8));
	assert_fails(ctx, FP_ERROR_USAGE, "not a setting", fp_preset_value(ctx, "best", "", "steps", text, 8));
}

static void rows_have_names(void **state)
{
	(void)state;
	assert_string_equal(fp_method_title("fista", "paper"), "FISTAPruner (paper)");
	assert_string_equal(fp_method_title("sparsegpt", "best"), "SparseGPT"); /* presets are fista's */
	assert_string_equal(fp_method_title("sparsegpt", NULL), "SparseGPT");
	assert_string_equal(fp_method_title("fista", NULL), "fista");
	assert_string_equal(fp_method_title("magnitude", ""), "magnitude");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, context_set_up, context_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_choice_is_described),
		TEST(only_paper_runs_fista),
		TEST(values_are_what_a_run_uses),
		TEST(rows_have_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
