/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.c: fp_evaluate(): a model, a text, a protocol → perplexity. */
#include "api/result_text.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/settings.h"
#include "checkpoint/checkpoint.h"
#include "evaluation/perplexity.h"
#include "model/model.h"
#include "text/windows.h"
#include "tokenizer/tokenizer.h"

#include <fistapruner/fistapruner.h>
#include <math.h>

static fp_status choose_length(int64_t *length, fp_context *ctx, const fp_settings *settings, const fp_model *model)
{
	*length = settings->sequence_length ? settings->sequence_length : fp_model_default_length(model);
	if (*length < 2)
		return fp_fail(ctx, FP_ERROR_USAGE, "sequence_length %lld: a window needs 2 tokens at least, such as %lld",
					   (long long)*length, (long long)fp_model_default_length(model));
	return fp_model_check_length(model, *length);
}

fp_status fp_evaluate(char **json, fp_context *ctx, const char *model_name, const char *text,
					  const fp_settings *settings)
{
	fp_status status;
	fp_checkpoint *checkpoint = NULL;
	fp_backend *backend = NULL;
	fp_model *model = NULL;
	fp_tokenizer *tokenizer = NULL;
	fp_windows windows = {0};
	fp_perplexity_result result;
	int64_t length;
	int64_t memory;
	double start = fp_clock();

	*json = NULL;
	FP_TRY(fp_parse_size(ctx, settings->memory, &memory));
	FP_TRY(fp_checkpoint_open(&checkpoint, ctx, model_name));
	FP_TRY(fp_backend_open(&backend, ctx, settings->device, (int)settings->threads));
	FP_TRY(fp_model_open(&model, backend, checkpoint));
	FP_TRY(fp_backend_set_figure_precision(backend, settings->precision, fp_model_get_config(model)->hidden));
	FP_TRY(choose_length(&length, ctx, settings, model));
	FP_TRY(fp_tokenizer_open(&tokenizer, ctx, fp_checkpoint_directory(checkpoint)));
	FP_TRY(fp_windows_evaluation(&windows, ctx, tokenizer, text, settings->protocol, length));
	FP_TRY(fp_perplexity(&result, model, &windows, memory));
	if (!isfinite(result.perplexity))
		FP_TRY(fp_fail(ctx, FP_ERROR_NUMERIC, "%s: the perplexity is not finite (mean loss %g): the model is damaged",
					   model_name, result.mean_loss));
	FP_TRY(fp_result_text(json, ctx,
						  json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:s, s:f, s:I}", "model", model_name,
									"architecture", fp_model_architecture(model), "text", text, "protocol",
									settings->protocol, "sequence_length", (json_int_t)length, "windows",
									(json_int_t)result.windows, "tokens", (json_int_t)result.tokens, "perplexity",
									result.perplexity, "mean_loss", result.mean_loss, "device", backend->description,
									"seconds", fp_clock() - start, "peak_memory_bytes", (json_int_t)fp_peak_memory())));

cleanup:
	fp_windows_free(&windows);
	fp_tokenizer_free(tokenizer);
	fp_model_close(model);
	fp_backend_close(backend);
	fp_checkpoint_close(checkpoint);
	return status;
}
