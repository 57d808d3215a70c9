/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses, messages, log, progress and interruption. */
#include "support.h"

#include <stdio.h>
#include <string.h>

static void exit_codes_are_those_of_the_manual(void **state)
{
	(void)state;
	assert_int_equal(fp_status_exit_code(FP_OK), 0);
	assert_int_equal(fp_status_exit_code(FP_ERROR_RUN), 1);
	assert_int_equal(fp_status_exit_code(FP_ERROR_IO), 1);
	assert_int_equal(fp_status_exit_code(FP_ERROR_NUMERIC), 1);
	assert_int_equal(fp_status_exit_code(FP_ERROR_INTERNAL), 1);
	assert_int_equal(fp_status_exit_code(FP_ERROR_USAGE), 2);
	assert_int_equal(fp_status_exit_code(FP_ERROR_INPUT), 3);
	assert_int_equal(fp_status_exit_code(FP_ERROR_DEVICE), 4);
	assert_int_equal(fp_status_exit_code(FP_ERROR_MEMORY), 4);
	assert_int_equal(fp_status_exit_code(FP_ERROR_CHECK), 5);
	assert_int_equal(fp_status_exit_code(FP_ERROR_INTERRUPTED), 130);
}

static void unknown_status_is_a_defect(void **state)
{
	(void)state;
	assert_string_equal(fp_status_name(FP_ERROR_IO), "FP_ERROR_IO");
	assert_string_equal(fp_status_name((fp_status)999), "FP_ERROR_INTERNAL");
	assert_int_equal(fp_status_exit_code((fp_status)-1), 1);
}

static void failure_keeps_message_and_prefix(void **state)
{
	fp_context *ctx = *state;
	assert_int_equal(fp_fail(ctx, FP_ERROR_INPUT, "tensor '%s'", "a.b"), FP_ERROR_INPUT);
	assert_int_equal(fp_fail_in(ctx, FP_ERROR_INPUT, "layer %d", 3), FP_ERROR_INPUT);
	assert_string_equal(fp_context_message(ctx), "layer 3: tensor 'a.b'");
}

static void long_messages_are_cut_not_overrun(void **state)
{
	fp_context *ctx = *state;
	char text[3 * FP_MESSAGE_SIZE];
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	fp_fail(ctx, FP_ERROR_RUN, "%s", text);
	assert_int_equal(strlen(fp_context_message(ctx)), FP_MESSAGE_SIZE - 1);
	fp_fail_in(ctx, FP_ERROR_RUN, "%s", text);
	assert_int_equal(strlen(fp_context_message(ctx)), FP_MESSAGE_SIZE - 1);
}

typedef struct heard {
	int count;
	fp_log_level level;
	char text[64];
	int64_t done, total;
} heard;

static void listen_log(void *data, fp_log_level level, const char *text)
{
	heard *h = data;
	h->count++;
	h->level = level;
	snprintf(h->text, sizeof h->text, "%s", text);
}

static void listen_progress(void *data, const char *stage, int64_t done, int64_t total)
{
	heard *h = data;
	snprintf(h->text, sizeof h->text, "%s", stage);
	h->done = done;
	h->total = total;
}

static void log_respects_its_level(void **state)
{
	fp_context *ctx = *state;
	heard h = {0};
	fp_log(ctx, FP_LOG_ERROR, "nobody listens");
	fp_context_set_log(ctx, listen_log, &h, FP_LOG_WARNING);
	fp_log(ctx, FP_LOG_INFO, "too quiet");
	assert_int_equal(h.count, 0);
	fp_log(ctx, FP_LOG_WARNING, "%d of %d", 1, 2);
	assert_int_equal(h.count, 1);
	assert_int_equal(h.level, FP_LOG_WARNING);
	assert_string_equal(h.text, "1 of 2");
}

static void progress_reaches_the_listener(void **state)
{
	fp_context *ctx = *state;
	heard h = {0};
	fp_report_progress(ctx, "nobody", 1, 2);
	fp_context_set_progress(ctx, listen_progress, &h);
	fp_report_progress(ctx, "stage", 3, 4);
	assert_string_equal(h.text, "stage");
	assert_int_equal(h.done, 3);
	assert_int_equal(h.total, 4);
}

static void interrupt_flag_stops(void **state)
{
	fp_context *ctx = *state;
	volatile int flag = 0;
	assert_ok(ctx, fp_check_interrupt(ctx));
	fp_context_set_interrupt(ctx, &flag);
	assert_ok(ctx, fp_check_interrupt(ctx));
	flag = 1;
	assert_fails(ctx, FP_ERROR_INTERRUPTED, "interrupted", fp_check_interrupt(ctx));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exit_codes_are_those_of_the_manual),
		cmocka_unit_test(unknown_status_is_a_defect),
		cmocka_unit_test_setup_teardown(failure_keeps_message_and_prefix, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(long_messages_are_cut_not_overrun, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(log_respects_its_level, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(progress_reaches_the_listener, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(interrupt_flag_stops, context_set_up, context_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
