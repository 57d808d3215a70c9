/* SPDX-License-Identifier: Apache-2.0 */
/* generate_text.c: fp_generate(): a model and prompts → the texts that continue them. */
#include "api/prompts.h"
#include "api/result_text.h"
#include "api/weights_document.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/settings.h"
#include "generation/generate.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/unicode_text.h"

#include <stdlib.h>

/* The text behind one prompt. */
typedef struct written_text {
	fp_detokenizer *detokenizer;
	fp_text_buffer text;
	bool complete;
} written_text;

typedef struct generation_session {
	fp_context *ctx;
	const fp_generate_request *request;
	const fp_settings *settings;
	fp_backend *be;
	fp_checkpoint *checkpoint;
	fp_model *model;
	fp_tokenizer *tokenizer;
	fp_decoder *decoder;
	fp_prompts prompts;
	fp_generation_task task;
	fp_generation *texts; /* of each prompt */
	written_text *written;
	int64_t reported; /* texts of a batch that were passed on */
} generation_session;

static void close_session(generation_session *s)
{
	for (int64_t i = 0; i < s->prompts.count; i++) {
		if (s->texts)
			fp_free(s->texts[i].ids);
		if (s->written) {
			fp_detokenizer_free(s->written[i].detokenizer);
			fp_free(s->written[i].text.bytes);
		}
	}
	fp_free(s->texts);
	fp_free(s->written);
	fp_prompts_free(&s->prompts);
	fp_decoder_free(s->decoder);
	fp_tokenizer_free(s->tokenizer);
	fp_model_close(s->model);
	fp_checkpoint_close(s->checkpoint);
	fp_backend_close(s->be);
}

static fp_status open_session(generation_session *s)
{
	const fp_settings *settings = s->settings;
	fp_status status;
	FP_TRY(fp_checkpoint_open(&s->checkpoint, s->ctx, s->request->model));
	FP_TRY(fp_backend_open(&s->be, s->ctx, settings->device, (int)settings->threads));
	FP_TRY(fp_model_open(&s->model, s->be, s->checkpoint));
	FP_TRY(fp_backend_set_precision(s->be, settings->precision, fp_model_get_config(s->model)->hidden));
	FP_TRY(fp_tokenizer_open(&s->tokenizer, s->ctx, fp_checkpoint_directory(s->checkpoint)));
	FP_TRY(fp_prompts_read(&s->prompts, s->model, s->tokenizer, s->request));
	FP_TRY(fp_stop_tokens_read(&s->task.stop, s->ctx, s->checkpoint));
	if (s->task.stop.count == 0)
		fp_log(s->ctx, FP_LOG_WARNING,
			   "%s: its files name no stop token (eos_token_id): texts end at --max-tokens %lld only",
			   s->request->model, (long long)settings->max_tokens);
cleanup:
	return status;
}

static fp_status prepare_texts(generation_session *s)
{
	int64_t capacity = 0, slots = fp_smaller(s->prompts.count, s->settings->batch_size), memory;
	fp_status status;
	FP_TRY(fp_parse_size(s->ctx, s->settings->memory, &memory));
	FP_TRY(FP_NEW(s->ctx, &s->texts, s->prompts.count));
	FP_TRY(FP_NEW(s->ctx, &s->written, s->prompts.count));
	for (int64_t i = 0; i < s->prompts.count; i++) {
		fp_generation *text = &s->texts[i];
		text->prompt = s->prompts.tokens[i].ids;
		text->prompt_count = s->prompts.tokens[i].count;
		int64_t positions = fp_generation_capacity(s->model, text->prompt_count, s->settings->max_tokens);
		FP_TRY(FP_NEW(s->ctx, &text->ids, positions - text->prompt_count));
		capacity = fp_larger(capacity, positions);
	}
	FP_TRY(fp_decoder_new(&s->decoder, s->model, slots, capacity, memory, FP_HELD_SMALLEST));
cleanup:
	return status;
}

/* A name for the "stop" of a result. */
static const char *stop_name(fp_stop_reason stop)
{
	static const char *const names[] = {[FP_STOP_TOKEN] = "a stop token",
										[FP_STOP_LIMIT] = "--max-tokens",
										[FP_STOP_POSITIONS] = "the model's last position"};
	return names[stop];
}

static json_t *text_result(const generation_session *s, int64_t index)
{
	const fp_generation *text = &s->texts[index];
	const fp_text_buffer *written = &s->written[index].text;
	json_t *ids = json_array();
	for (int64_t i = 0; i < text->count; i++)
		json_array_append_new(ids, json_integer(text->ids[i]));
	return json_pack("{s:s%, s:I, s:I, s:s, s:o}", "text", written->bytes ? written->bytes : "",
					 (size_t)written->length, "prompt_tokens", (json_int_t)text->prompt_count, "tokens",
					 (json_int_t)text->count, "stop", stop_name(text->stop), "ids", ids);
}

/* Passes on the texts of a batch that are complete, in their order. */
static fp_status report_texts(generation_session *s)
{
	while (s->reported < s->prompts.count && s->written[s->reported].complete) {
		json_t *line = text_result(s, s->reported);
		json_t *source = json_array_get(s->prompts.lines, (size_t)s->reported);
		json_t *prompt = json_object_get(source, "prompt");
		if (line)
			json_object_set(line, "prompt", json_is_string(prompt) ? prompt : json_object_get(source, "text"));
		char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
		json_decref(line);
		if (!text)
			return fp_fail(s->ctx, FP_ERROR_MEMORY, "out of memory for a text of %lld tokens",
						   (long long)s->texts[s->reported].count);
		s->request->finished(s->request->finished_data, text);
		free(text);
		s->reported++;
	}
	return FP_OK;
}

static fp_status take_text(generation_session *s, int64_t index, const char *text, int64_t length)
{
	if (s->request->text && !s->request->batch && length > 0)
		s->request->text(s->request->text_data, text, length);
	return fp_text_append(s->ctx, &s->written[index].text, text, length);
}

static fp_status take_token(void *data, int64_t index, int32_t id)
{
	generation_session *s = data;
	written_text *written = &s->written[index];
	const char *text;
	int64_t length;
	fp_status status = FP_OK;
	if (!written->detokenizer)
		FP_TRY(fp_detokenizer_new(&written->detokenizer, s->ctx, s->tokenizer, false));
	if (fp_is_stop_token(&s->task.stop, id))
		goto cleanup;
	FP_TRY(fp_detokenizer_add(written->detokenizer, id, &text, &length));
	FP_TRY(take_text(s, index, text, length));
cleanup:
	return status;
}

static fp_status end_text(void *data, int64_t index)
{
	generation_session *s = data;
	written_text *written = &s->written[index];
	const char *text;
	int64_t length;
	fp_status status;
	FP_TRY(fp_detokenizer_finish(written->detokenizer, &text, &length));
	FP_TRY(take_text(s, index, text, length));
	fp_detokenizer_free(written->detokenizer);
	written->detokenizer = NULL;
	written->complete = true;
	if (s->request->batch && s->request->finished)
		FP_TRY(report_texts(s));
cleanup:
	return status;
}

static double rate(int64_t count, double seconds)
{
	return seconds > 0 ? (double)count / seconds : 0;
}

static json_t *document_of(const generation_session *s, double seconds)
{
	const fp_settings *settings = s->settings;
	const fp_generation_task *task = &s->task;
	const fp_decoder_weights weights = fp_decoder_held(s->decoder);
	json_t *results = json_array();
	int64_t tokens = 0;
	for (int64_t i = 0; i < s->prompts.count; i++) {
		json_array_append_new(results, text_result(s, i));
		tokens += s->texts[i].count;
	}
	return json_pack("{s:s, s:s*, s:s, s:I, s:f, s:I, s:f, s:I, s:o, s:o, s:I, s:I, s:f, s:f, s:s, s:f, s:I}", "model",
					 s->request->model, "stored_as", fp_checkpoint_coding(fp_model_checkpoint(s->model)),
					 "architecture", fp_model_architecture(s->model), "max_tokens", (json_int_t)settings->max_tokens,
					 "temperature", settings->temperature, "top_k", (json_int_t)settings->top_k, "top_p",
					 settings->top_p, "seed", (json_int_t)settings->seed, "results", results, "weights",
					 fp_weights_document(&weights), "prompt_tokens", (json_int_t)task->prompt_tokens, "tokens",
					 (json_int_t)tokens, "prompt_tokens_per_second", rate(task->prompt_tokens, task->prompt_seconds),
					 "tokens_per_second", rate(task->tokens, task->seconds), "device", s->be->description, "seconds",
					 seconds, "peak_memory_bytes", (json_int_t)fp_peak_memory());
}

fp_status fp_generate(char **json, fp_context *ctx, const fp_generate_request *request, const fp_settings *settings)
{
	generation_session s = {.ctx = ctx, .request = request, .settings = settings};
	double start = fp_clock();
	fp_status status;
	*json = NULL;
	fp_clear_message(ctx);
	FP_TRY(open_session(&s));
	FP_TRY(prepare_texts(&s));
	s.task.sampling =
		(fp_sampling){.temperature = settings->temperature, .top_k = settings->top_k, .top_p = settings->top_p};
	s.task.seed = (uint64_t)settings->seed;
	s.task.max_tokens = settings->max_tokens;
	s.task.token = take_token;
	s.task.complete = end_text;
	s.task.data = &s;
	FP_TRY(fp_generate_texts(&s.task, s.model, s.decoder, fp_smaller(s.prompts.count, settings->batch_size), s.texts,
							 s.prompts.count));
	FP_TRY(fp_result_text(json, ctx, document_of(&s, fp_clock() - start)));
cleanup:
	if (status != FP_OK)
		fp_require_message(ctx, status);
	close_session(&s);
	return status;
}
