/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.c: fp_evaluate() and fp_evaluate_against(): a model, a text, a protocol → perplexity; with a reference also
 * the divergence from it. */
#include "api/divergence_document.h"
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

typedef struct evaluation {
	fp_context *ctx;
	const fp_settings *settings;
	const char *model_name, *reference_name, *text; /* reference_name NULL: perplexity only */
	fp_backend *backend;
	fp_checkpoint *checkpoint, *reference_checkpoint;
	fp_model *model, *reference;
	fp_windows windows;
	int64_t length, memory;
} evaluation;

static void close_all(evaluation *e)
{
	fp_windows_free(&e->windows);
	fp_model_close(e->reference);
	fp_model_close(e->model);
	fp_backend_close(e->backend);
	fp_checkpoint_close(e->reference_checkpoint);
	fp_checkpoint_close(e->checkpoint);
}

static fp_status choose_length(int64_t *length, fp_context *ctx, const fp_settings *settings, const fp_model *model)
{
	*length = settings->sequence_length ? settings->sequence_length : fp_model_default_length(model);
	if (*length < 2)
		return fp_fail(ctx, FP_ERROR_USAGE, "sequence_length %lld: a window needs 2 tokens at least, such as %lld",
					   (long long)*length, (long long)fp_model_default_length(model));
	return fp_model_check_length(model, *length);
}

/* The text in windows of the ids of one checkpoint's tokenizer. */
static fp_status read_text(evaluation *e, const fp_checkpoint *checkpoint, fp_windows *out)
{
	fp_status status;
	fp_tokenizer *tokenizer = NULL;
	FP_TRY(fp_tokenizer_open(&tokenizer, e->ctx, fp_checkpoint_directory(checkpoint)));
	FP_TRY(fp_windows_evaluation(out, e->ctx, tokenizer, e->text, e->settings->protocol, e->length));
cleanup:
	fp_tokenizer_free(tokenizer);
	return status;
}

/* Both models must read the same ids, else their predictions cannot be compared. */
static fp_status check_reference_tokens(evaluation *e)
{
	fp_status status;
	fp_windows other = {0};
	const fp_windows *own = &e->windows;
	int64_t at = 0, count;
	FP_TRY(read_text(e, e->reference_checkpoint, &other));
	count = (own->count < other.count ? own->count : other.count) * e->length;
	while (at < count && own->ids[at] == other.ids[at])
		at++;
	if (at < count || own->count != other.count)
		status =
			fp_fail(e->ctx, FP_ERROR_INPUT,
					"%s and the reference %s have different tokenizers: their ids of %s differ from token %lld on; the "
					"reference must be the dense model that was pruned",
					e->model_name, e->reference_name, e->text, (long long)at);
cleanup:
	fp_windows_free(&other);
	return status;
}

static fp_status open_all(evaluation *e)
{
	fp_status status;
	const fp_settings *settings = e->settings;
	FP_TRY(fp_parse_size(e->ctx, settings->memory, &e->memory));
	FP_TRY(fp_checkpoint_open(&e->checkpoint, e->ctx, e->model_name));
	if (e->reference_name)
		FP_TRY(fp_checkpoint_open(&e->reference_checkpoint, e->ctx, e->reference_name));
	FP_TRY(fp_backend_open(&e->backend, e->ctx, settings->device, (int)settings->threads));
	FP_TRY(fp_model_open(&e->model, e->backend, e->checkpoint));
	if (e->reference_name)
		FP_TRY(fp_model_open(&e->reference, e->backend, e->reference_checkpoint));
	FP_TRY(fp_backend_set_figure_precision(e->backend, settings->precision, fp_model_get_config(e->model)->hidden));
	FP_TRY(choose_length(&e->length, e->ctx, settings, e->model));
	FP_TRY(read_text(e, e->checkpoint, &e->windows));
	if (e->reference_name)
		FP_TRY(check_reference_tokens(e));
cleanup:
	return status;
}

static fp_status measure(evaluation *e, fp_perplexity_result *plain, fp_divergence_result *result)
{
	fp_status status;
	fp_divergence *divergence = NULL;
	if (!e->reference)
		return fp_perplexity(plain, e->model, &e->windows, e->memory);
	FP_TRY(fp_divergence_new(&divergence, e->reference, &e->windows, e->memory));
	FP_TRY(fp_divergence_measure(result, divergence, e->model, NULL));
	*plain = (fp_perplexity_result){.perplexity = result->perplexity,
									.mean_loss = result->mean_loss,
									.windows = result->windows,
									.tokens = result->tokens};
cleanup:
	fp_divergence_free(divergence);
	return status;
}

fp_status fp_evaluate_against(char **json, fp_context *ctx, const char *model, const char *reference, const char *text,
							  const fp_settings *settings)
{
	fp_status status;
	evaluation e = {.ctx = ctx, .settings = settings, .model_name = model, .reference_name = reference, .text = text};
	fp_perplexity_result plain;
	fp_divergence_result divergence;
	json_t *document = NULL;
	double start = fp_clock();
	*json = NULL;
	FP_TRY(open_all(&e));
	FP_TRY(measure(&e, &plain, &divergence));
	if (!isfinite(plain.perplexity))
		FP_TRY(fp_fail(ctx, FP_ERROR_NUMERIC, "%s: the perplexity is not finite (mean loss %g): the model is damaged",
					   model, plain.mean_loss));
	document = json_pack(
		"{s:s, s:s*, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:s, s:f, s:I}", "model", model, "stored_as",
		fp_checkpoint_coding(e.checkpoint), "architecture", fp_model_architecture(e.model), "text", text, "protocol",
		settings->protocol, "sequence_length", (json_int_t)e.length, "windows", (json_int_t)plain.windows, "tokens",
		(json_int_t)plain.tokens, "perplexity", plain.perplexity, "mean_loss", plain.mean_loss, "device",
		e.backend->description, "seconds", fp_clock() - start, "peak_memory_bytes", (json_int_t)fp_peak_memory());
	if (document && reference) {
		json_object_set_new(document, "reference", json_string(reference));
		FP_TRY(fp_divergence_document(document, ctx, &divergence));
	}
	status = fp_result_text(json, ctx, document);
	document = NULL;
cleanup:
	json_decref(document);
	close_all(&e);
	return status;
}

fp_status fp_evaluate(char **json, fp_context *ctx, const char *model, const char *text, const fp_settings *settings)
{
	return fp_evaluate_against(json, ctx, model, NULL, text, settings);
}
