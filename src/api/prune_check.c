/* SPDX-License-Identifier: Apache-2.0 */
#include "api/prune_check.h"

#include "api/divergence_document.h"

enum { MOST_TOKENS = 1 << 16 };

int64_t fp_prune_check_count(int64_t length)
{
	return length < MOST_TOKENS ? MOST_TOKENS / length : 1;
}

fp_status fp_prune_check_windows(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer,
								 const fp_prune_request *request, const fp_settings *settings, int64_t length)
{
	fp_status status =
		fp_windows_held_out(out, ctx, tokenizer, request->calibration, request->calibration_count, settings->sampler,
							settings->samples, length, (uint64_t)settings->seed, fp_prune_check_count(length));
	if (status == FP_OK && out->count == 0)
		status = fp_fail(ctx, FP_ERROR_INPUT,
						 "--check needs windows of %lld tokens of the calibration text that the run does not use, and "
						 "there are none; use more text or fewer samples%s",
						 (long long)length,
						 fp_is(settings->sampler, "c4") ? ", or --sampler packed for text that is one document" : "");
	return status;
}

fp_status fp_prune_check(json_t *document, fp_model *dense, const char *output, const fp_windows *windows,
						 const fp_settings *settings)
{
	fp_status status;
	fp_backend *be = fp_model_backend(dense);
	fp_checkpoint *checkpoint = NULL;
	fp_model *pruned = NULL;
	fp_divergence *divergence = NULL;
	fp_divergence_result result;
	json_t *check = NULL;
	int64_t memory;
	FP_TRY(fp_parse_size(be->ctx, settings->memory, &memory));
	FP_TRY(fp_checkpoint_open(&checkpoint, be->ctx, output));
	FP_TRY(fp_model_open(&pruned, be, checkpoint));
	FP_TRY(fp_backend_set_figure_precision(be, settings->precision, fp_model_get_config(dense)->hidden));
	FP_TRY(fp_divergence_new(&divergence, dense, windows, memory));
	FP_TRY(fp_divergence_measure(&result, divergence, pruned, NULL));
	check = json_pack("{s:I, s:I}", "windows", (json_int_t)result.windows, "tokens", (json_int_t)result.tokens);
	FP_TRY(fp_divergence_document(check, be->ctx, &result));
	json_object_set(document, "check", check);
cleanup:
	json_decref(check);
	fp_divergence_free(divergence);
	fp_model_close(pruned);
	fp_checkpoint_close(checkpoint);
	return status;
}
