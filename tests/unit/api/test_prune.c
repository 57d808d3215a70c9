/* SPDX-License-Identifier: Apache-2.0 */
/* fp_prune() through the public interface: what it leaves behind when it fails late. */
#include <fistapruner/fistapruner.h>

#include "support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static int64_t json_blocks; /* that jansson has not freed: those that are left, and texts that free() has freed */

static void *count_malloc(size_t size)
{
	json_blocks++;
	return malloc(size);
}

static void count_free(void *block)
{
	json_blocks -= block != NULL;
	free(block);
}

/* The allocation with this number fails; 0: none does. */
static fp_status prune(fp_context *ctx, const char *folder, const char *name, bool hidden_errors, int64_t fails)
{
	char output[512], model[512], text[512];
	const char *const calibration[] = {text};
	fp_settings *settings = NULL;
	char *json = NULL;
	snprintf(output, sizeof output, "%s/%s", folder, name);
	snprintf(model, sizeof model, "%s", source_path("models/llama-demo"));
	snprintf(text, sizeof text, "%s", source_path("models/calibration.jsonl"));
	const fp_prune_request request = {.model = model,
									  .output = output,
									  .calibration = calibration,
									  .calibration_count = 1,
									  .hidden_errors = hidden_errors};
	assert_ok(ctx, fp_settings_new(&settings, ctx));
	assert_ok(ctx, fp_settings_assign(settings, ctx, "method=magnitude"));
	assert_ok(ctx, fp_settings_assign(settings, ctx, "samples=1"));
	assert_ok(ctx, fp_settings_assign(settings, ctx, "sequence_length=16"));
	assert_ok(ctx, fp_settings_assign(settings, ctx, "threads=1"));
	ctx->allocations = 0;
	ctx->fail_allocation_at = fails;
	fp_status status = fp_prune(&json, ctx, &request, settings);
	ctx->fail_allocation_at = 0;
	assert_true((json != NULL) == (status == FP_OK));
	fp_text_free(json);
	fp_settings_free(settings);
	return status;
}

/* A failure while the errors of hidden states are measured, when the report exists already. */
static void a_late_failure_leaves_nothing(void **state)
{
	fp_context *ctx = *state;
	char *folder = temporary_folder();
	json_set_alloc_funcs(count_malloc, count_free);
	assert_ok(ctx, prune(ctx, folder, "plain", false, 0));
	int64_t plain = ctx->allocations;
	json_blocks = 0;
	assert_ok(ctx, prune(ctx, folder, "measured", true, 0));
	int64_t measured = ctx->allocations, texts = json_blocks;
	assert_true(measured > plain + 10);
	json_blocks = 0;
	assert_int_equal(prune(ctx, folder, "failed", true, measured - (measured - plain) / 2), FP_ERROR_MEMORY);
	assert_in_range(json_blocks, 0, texts);
	json_set_alloc_funcs(malloc, free);
	remove_folder(folder);
	free(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_late_failure_leaves_nothing, context_set_up, context_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
