/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/stop_tokens.h"
#include "model_fixture.h"

#include <stdlib.h>

/* The stop tokens of a copy of a fixture with these values of eos_token_id; NULL: none. Returns the call's status. */
static fp_status read(fp_context *ctx, const char *config, const char *generation, fp_stop_tokens *stop)
{
	char *folder = copy_fixture("llama-plain", "eos_token_id", config), text[200];
	fp_checkpoint *checkpoint;
	if (generation) {
		snprintf(text, sizeof text, "{\"bos_token_id\": 1, \"eos_token_id\": %s}", generation);
		write_file(folder, "generation_config.json", text, strlen(text));
	}
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, folder));
	fp_status status = fp_stop_tokens_read(stop, ctx, checkpoint);
	fp_checkpoint_close(checkpoint);
	remove_folder(folder);
	free(folder);
	return status;
}

static void test_sources(void **state)
{
	fp_context *ctx = *state;
	fp_stop_tokens stop;
	assert_ok(ctx, read(ctx, NULL, NULL, &stop));
	assert_int_equal(stop.count, 0);
	assert_false(fp_is_stop_token(&stop, 0));
	assert_ok(ctx, read(ctx, "2", NULL, &stop));
	assert_int_equal(stop.count, 1);
	assert_true(fp_is_stop_token(&stop, 2));
	assert_ok(ctx, read(ctx, "[2, 7]", NULL, &stop));
	assert_int_equal(stop.count, 2);
	assert_true(fp_is_stop_token(&stop, 7));
	assert_ok(ctx, read(ctx, "2", "[5, 6]", &stop)); /* what is made for this counts */
	assert_true(fp_is_stop_token(&stop, 5) && fp_is_stop_token(&stop, 6) && !fp_is_stop_token(&stop, 2));
	assert_ok(ctx, read(ctx, "2", "null", &stop));
	assert_true(fp_is_stop_token(&stop, 2));
	assert_ok(ctx, read(ctx, "null", NULL, &stop));
	assert_int_equal(stop.count, 0);
}

static void test_damaged(void **state)
{
	fp_context *ctx = *state;
	fp_stop_tokens stop;
	assert_fails(ctx, FP_ERROR_INPUT, "eos_token_id must be", read(ctx, "\"</s>\"", NULL, &stop));
	assert_fails(ctx, FP_ERROR_INPUT, "config.json", read(ctx, "-1", NULL, &stop));
	assert_fails(ctx, FP_ERROR_INPUT, "generation_config.json", read(ctx, "2", "[1, 1.5]", &stop));
	assert_fails(ctx, FP_ERROR_INPUT, "not valid JSON", read(ctx, "2", "", &stop));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sources, context_set_up, context_tear_down),
		cmocka_unit_test_setup_teardown(test_damaged, context_set_up, context_tear_down)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
