/* SPDX-License-Identifier: Apache-2.0 */
#include "base/context.h"
#include "support.h"

#include <string.h>

static void a_failure_of_another_thread_keeps_its_message(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new(), *other = fp_context_new();
	fp_fail(ctx, FP_ERROR_DEVICE, "an older failure");
	fp_fail(other, FP_ERROR_IO, "%s: reading failed", "file");
	assert_int_equal(fp_fail_from(ctx, FP_ERROR_IO, other), FP_ERROR_IO);
	assert_string_equal(fp_context_message(ctx), "file: reading failed");
	fp_context_free(other);
	fp_context_free(ctx);
}

static void a_failure_without_a_message_names_its_status(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new(), *other = fp_context_new();
	fp_fail(ctx, FP_ERROR_DEVICE, "an older failure");
	fp_fail_from(ctx, FP_ERROR_IO, other);
	assert_non_null(strstr(fp_context_message(ctx), "FP_ERROR_IO"));
	fp_clear_message(ctx);
	fp_require_message(ctx, FP_OK);
	assert_string_equal(fp_context_message(ctx), "");
	fp_require_message(ctx, FP_ERROR_NUMERIC);
	assert_non_null(strstr(fp_context_message(ctx), "FP_ERROR_NUMERIC"));
	fp_fail(ctx, FP_ERROR_INPUT, "a message");
	fp_require_message(ctx, FP_ERROR_INPUT);
	assert_string_equal(fp_context_message(ctx), "a message");
	fp_context_free(other);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_failure_of_another_thread_keeps_its_message),
		cmocka_unit_test(a_failure_without_a_message_names_its_status),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
