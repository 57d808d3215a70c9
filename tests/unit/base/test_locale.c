/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in a host program whose locale writes 1,5: settings, messages and reports keep the decimal point. */
#include "base/memory.h"
#include "base/settings.h"
#include "report/html_text.h"
#include "support.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char comma_locale[] =
	"comment_char %\nescape_char /\n"
	"LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";

/* Compiles a locale of its own, so that the machine needs none installed. False: there is no localedef. */
static bool install_comma_locale(const char *folder)
{
	char characters[8192], command[1024];
	int used = snprintf(characters, sizeof characters, "<code_set_name> ASCII\n<escape_char> /\nCHARMAP\n");
	for (int i = 0; i < 128; i++)
		used += snprintf(characters + used, sizeof characters - (size_t)used, "<U%04X> /x%02x letter\n", (unsigned)i,
						 (unsigned)i);
	used += snprintf(characters + used, sizeof characters - (size_t)used, "END CHARMAP\n");
	write_file(folder, "characters", characters, (size_t)used);
	write_file(folder, "source", comma_locale, strlen(comma_locale));
	/* -c: the other categories are missing, which it warns of */
	snprintf(command, sizeof command, "cd '%s' && localedef -c -i ./source -f ./characters ./comma >log 2>&1", folder);
	(void)!system(command);
	setenv("LOCPATH", folder, 1);
	return setlocale(LC_NUMERIC, "comma") != NULL;
}

static void check_that_the_host_writes_commas(void)
{
	char text[16];
	snprintf(text, sizeof text, "%.1f", 1.5);
	assert_string_equal(text, "1,5");
}

static void test_settings(void **state)
{
	fp_context *ctx = *state;
	fp_settings *settings;
	char text[32];
	assert_ok(ctx, fp_settings_new(&settings, ctx));
	assert_ok(ctx, fp_settings_resolve(settings, ctx, "llama"));
	assert_ok(ctx, fp_settings_set(settings, ctx, "ridge", "0.125"));
	assert_true(settings->ridge == 0.125);
	assert_ok(ctx, fp_settings_get(settings, ctx, "ridge", text, sizeof text));
	assert_string_equal(text, "0.125");
	assert_fails(ctx, FP_ERROR_USAGE, "'0,125': must be a number from",
				 fp_settings_set(settings, ctx, "ridge", "0,125"));
	fp_settings_free(settings);

	double sparsity;
	int64_t kept, group, bytes;
	assert_ok(ctx, fp_parse_sparsity(ctx, "62.5%", &sparsity, &kept, &group));
	assert_true(sparsity == 0.625);
	assert_ok(ctx, fp_parse_size(ctx, "1.5K", &bytes));
	assert_int_equal(bytes, 1536);
	check_that_the_host_writes_commas();
}

static void test_messages(void **state)
{
	fp_context *ctx = *state;
	fp_fail(ctx, FP_ERROR_INPUT, "is %g", 0.5);
	fp_fail_in(ctx, FP_ERROR_INPUT, "share %.2f", 0.25);
	assert_string_equal(fp_context_message(ctx), "share 0.25: is 0.5");
	check_that_the_host_writes_commas();
}

static void test_reports(void **state)
{
	fp_context *ctx = *state;
	fp_html html = {.ctx = ctx};
	fp_html_format(&html, "<circle cx=\"%.1f\"/>", 2.5);
	assert_ok(ctx, html.status);
	assert_string_equal(html.text, "<circle cx=\"2.5\"/>");
	fp_free(html.text);
	check_that_the_host_writes_commas();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_settings, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(test_messages, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(test_reports, context_set_up, context_tear_down),
	};
	char *folder = temporary_folder();
	bool installed = install_comma_locale(folder);
	remove_folder(folder);
	free(folder);
	if (!installed) {
		fprintf(stderr, "skipped: localedef, which makes the locale of this test, is not installed\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
