/* SPDX-License-Identifier: Apache-2.0 */
/* The settings table: every row can be set, bounds are checked, and the user overrides presets. */
#include "base/settings.h"
#include "support.h"

#include <stdio.h>
#include <string.h>

typedef struct fixture {
	fp_context *ctx;
	fp_settings *settings;
} fixture;

static const char *value_of(fixture *f, const char *name)
{
	static char text[FP_SETTING_TEXT_SIZE];
	assert_ok(f->ctx, fp_settings_get(f->settings, f->ctx, name, text, sizeof text));
	return text;
}

static void every_row_is_whole(void **state)
{
	fixture *f = *state;
	const fp_setting_info *info;
	size_t i = 0;
	for (; (info = fp_setting_at(i)); i++) {
		assert_true(strlen(info->help) > 0);
		assert_true(strlen(value_of(f, info->name)) < FP_SETTING_TEXT_SIZE);
		/* a name is a flag: lower case and '_' only */
		assert_int_equal(strspn(info->name, "abcdefghijklmnopqrstuvwxyz_"), strlen(info->name));
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(info->name, fp_setting_at(j)->name);
		/* the default must be an allowed value */
		assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, info->name, info->initial));
	}
	assert_int_equal(i, FP_SETTING_COUNT);
}

static void bounds_of_numbers_are_kept(void **state)
{
	fixture *f = *state;
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++) {
		if (info->kind != FP_SETTING_INT && info->kind != FP_SETTING_REAL)
			continue;
		char text[64];
		const double inside[] = {info->minimum, info->maximum};
		const double outside[] = {info->minimum - 1, info->maximum * 2 + 1};
		for (int side = 0; side < 2; side++) {
			snprintf(text, sizeof text, "%.17g", inside[side]);
			assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, info->name, text));
			snprintf(text, sizeof text, "%.17g", outside[side]);
			assert_fails(f->ctx, FP_ERROR_USAGE, info->name, fp_settings_set(f->settings, f->ctx, info->name, text));
		}
		assert_fails(f->ctx, FP_ERROR_USAGE, "must be", fp_settings_set(f->settings, f->ctx, info->name, "nan"));
		assert_fails(f->ctx, FP_ERROR_USAGE, "must be", fp_settings_set(f->settings, f->ctx, info->name, "1x"));
		assert_fails(f->ctx, FP_ERROR_USAGE, "must be", fp_settings_set(f->settings, f->ctx, info->name, ""));
		if (info->kind == FP_SETTING_INT)
			assert_fails(f->ctx, FP_ERROR_USAGE, "whole", fp_settings_set(f->settings, f->ctx, info->name, "1.5"));
	}
}

static void choices_are_whole_words(void **state)
{
	fixture *f = *state;
	assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, "method", "wanda"));
	assert_string_equal(value_of(f, "method"), "wanda");
	assert_fails(f->ctx, FP_ERROR_USAGE, "one of magnitude", fp_settings_set(f->settings, f->ctx, "method", "wand"));
	assert_fails(f->ctx, FP_ERROR_USAGE, "one of", fp_settings_set(f->settings, f->ctx, "method", ""));
	assert_fails(f->ctx, FP_ERROR_USAGE, "one of", fp_settings_set(f->settings, f->ctx, "method", "fista|admm"));
	assert_string_equal(value_of(f, "method"), "wanda");
}

static void names_take_dashes_and_unknown_ones_fail(void **state)
{
	fixture *f = *state;
	assert_ok(f->ctx, fp_settings_assign(f->settings, f->ctx, "sequence-length=64"));
	assert_string_equal(value_of(f, "sequence_length"), "64");
	assert_fails(f->ctx, FP_ERROR_USAGE, "sequence", fp_settings_assign(f->settings, f->ctx, "sequence=64"));
	assert_fails(f->ctx, FP_ERROR_USAGE, "name=value", fp_settings_assign(f->settings, f->ctx, "seed"));
	assert_fails(f->ctx, FP_ERROR_USAGE, "name=value", fp_settings_assign(f->settings, f->ctx, "=1"));
	char text[8];
	assert_fails(f->ctx, FP_ERROR_USAGE, "nonsense",
				 fp_settings_get(f->settings, f->ctx, "nonsense", text, sizeof text));
}

static void long_texts_are_refused(void **state)
{
	fixture *f = *state;
	char text[2 * FP_SETTING_TEXT_SIZE];
	memset(text, 'a', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	assert_fails(f->ctx, FP_ERROR_USAGE, "at most", fp_settings_set(f->settings, f->ctx, "device", text));
}

static void paper_preset_depends_on_the_family_and_the_start(void **state)
{
	fixture *f = *state;
	assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, "preset", "paper"));
	assert_ok(f->ctx, fp_settings_resolve(f->settings, f->ctx, "opt"));
	assert_string_equal(value_of(f, "warm_start"), "sparsegpt");
	assert_string_equal(value_of(f, "tolerance"), "1e-06");
	assert_string_equal(value_of(f, "momentum"), "literal");
	assert_string_equal(value_of(f, "iterations"), "20");
	assert_ok(f->ctx, fp_settings_resolve(f->settings, f->ctx, "llama"));
	assert_string_equal(value_of(f, "warm_start"), "wanda");
	assert_string_equal(value_of(f, "tolerance"), "0.001");
	assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, "warm_start", "sparsegpt"));
	assert_ok(f->ctx, fp_settings_resolve(f->settings, f->ctx, "llama"));
	assert_string_equal(value_of(f, "tolerance"), "1e-06");
}

static void a_flag_overrides_the_preset(void **state)
{
	fixture *f = *state;
	assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, "warm_start", "dense"));
	assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, "iterations", "7"));
	assert_ok(f->ctx, fp_settings_set(f->settings, f->ctx, "preset", "paper"));
	assert_ok(f->ctx, fp_settings_resolve(f->settings, f->ctx, "opt"));
	assert_string_equal(value_of(f, "warm_start"), "dense");
	assert_string_equal(value_of(f, "iterations"), "7");
	assert_string_equal(value_of(f, "momentum"), "literal");
}

static void patterns_parse(void **state)
{
	fixture *f = *state;
	double sparsity;
	int64_t kept;
	int64_t group;
	assert_ok(f->ctx, fp_parse_sparsity(f->ctx, "50%", &sparsity, &kept, &group));
	assert_true(sparsity == 0.5 && kept == 0 && group == 0);
	assert_ok(f->ctx, fp_parse_sparsity(f->ctx, "0.7", &sparsity, &kept, &group));
	assert_true(sparsity == 0.7);
	assert_ok(f->ctx, fp_parse_sparsity(f->ctx, "3:8", &sparsity, &kept, &group));
	assert_true(sparsity == 0.625 && kept == 3 && group == 8);
	const char *const wrong[] = {"", "50", "100%", "-1%", "5:4", "2:", ":4", "2:4:8", "2:0", "half", "nan", "50%%"};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_fails(f->ctx, FP_ERROR_USAGE, "such as", fp_settings_set(f->settings, f->ctx, "pattern", wrong[i]));
}

static void sizes_and_ranges_parse(void **state)
{
	fixture *f = *state;
	int64_t bytes;
	assert_ok(f->ctx, fp_parse_size(f->ctx, "2G", &bytes));
	assert_true(bytes == 2147483648);
	assert_ok(f->ctx, fp_parse_size(f->ctx, "512MiB", &bytes));
	assert_true(bytes == 536870912);
	assert_ok(f->ctx, fp_parse_size(f->ctx, "", &bytes));
	assert_true(bytes == 0);
	assert_fails(f->ctx, FP_ERROR_USAGE, "such as 2G", fp_parse_size(f->ctx, "2X", &bytes));
	assert_fails(f->ctx, FP_ERROR_USAGE, "such as 2G", fp_parse_size(f->ctx, "-1", &bytes));

	int64_t first;
	int64_t end;
	assert_ok(f->ctx, fp_parse_range(f->ctx, "", 6, &first, &end));
	assert_true(first == 0 && end == 6);
	assert_ok(f->ctx, fp_parse_range(f->ctx, "2-5", 6, &first, &end));
	assert_true(first == 2 && end == 6);
	assert_ok(f->ctx, fp_parse_range(f->ctx, "3", 6, &first, &end));
	assert_true(first == 3 && end == 4);
	assert_fails(f->ctx, FP_ERROR_USAGE, "<= 5", fp_parse_range(f->ctx, "2-6", 6, &first, &end));
	assert_fails(f->ctx, FP_ERROR_USAGE, "A-B", fp_parse_range(f->ctx, "3-2", 6, &first, &end));
	assert_fails(f->ctx, FP_ERROR_USAGE, "A-B", fp_parse_range(f->ctx, "2-", 6, &first, &end));
}

static int set_up(void **state)
{
	static fixture f;
	f.ctx = fp_context_new();
	*state = &f;
	return f.ctx && fp_settings_new(&f.settings, f.ctx) == FP_OK ? 0 : -1;
}

static int tear_down(void **state)
{
	fixture *f = *state;
	fp_settings_free(f->settings);
	fp_context_free(f->ctx);
	return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(every_row_is_whole),          TEST(bounds_of_numbers_are_kept),
		TEST(choices_are_whole_words),     TEST(names_take_dashes_and_unknown_ones_fail),
		TEST(long_texts_are_refused),      TEST(paper_preset_depends_on_the_family_and_the_start),
		TEST(a_flag_overrides_the_preset), TEST(patterns_parse),
		TEST(sizes_and_ranges_parse),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
