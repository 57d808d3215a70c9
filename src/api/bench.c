/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: fp_bench(): the machine's speed, and how much of it a model reaches. */
#include "api/result_text.h"
#include "api/weights_document.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/settings.h"
#include "generation/decode_rate.h"

#include <fistapruner/fistapruner.h>

enum { PROMPT_TOKENS = 512, TOKENS = 32 };

typedef struct bench_session {
	fp_context *ctx;
	const char *name;
	const fp_settings *settings;
	fp_backend *be;
	fp_checkpoint *checkpoint;
	fp_model *model;
	double bandwidth, flops; /* bytes and operations a second */
} bench_session;

static void close_session(bench_session *s)
{
	fp_model_close(s->model);
	fp_checkpoint_close(s->checkpoint);
	fp_backend_close(s->be);
}

/* The larger of what was measured before and now: the machine may have been busy. */
static fp_status measure_machine(bench_session *s)
{
	fp_status status;
	int64_t bytes = s->be->asynchronous ? (int64_t)4 << 30 : (int64_t)1 << 30;
	int64_t available, total;
	double seconds, rate;
	FP_TRY(s->be->memory->available(s->be, &available, &total));
	bytes = fp_smaller(bytes, available / 4);
	FP_TRY(s->be->decode->read_time(s->be, bytes, &seconds));
	if (seconds > 0 && (double)bytes / seconds > s->bandwidth)
		s->bandwidth = (double)bytes / seconds;
	FP_TRY(fp_backend_gemm_rate(s->be, &rate));
	s->flops = rate > s->flops ? rate : s->flops;
cleanup:
	return status;
}

/* One way of holding the weights. What a token reads: all weights and the head, but not keys and values, which are few
 * at these lengths. What a prompt computes: two operations for each entry and token; the head has one token. */
static json_t *rate_document(const bench_session *s, const char *name, const fp_decode_rate *rate)
{
	int64_t bytes = rate->weights.head_bytes;
	double operations = 2.0 * (double)rate->weights.entries * (double)rate->prompt_tokens;
	for (int form = 0; form < FP_HELD_FORMS; form++)
		bytes += rate->weights.bytes[form];
	operations += 2.0 * (double)rate->weights.head_entries;
	return json_pack("{s:s, s:o, s:I, s:f, s:f, s:f, s:f}", "held", name, "weights",
					 fp_weights_document(&rate->weights), "bytes_per_token", (json_int_t)bytes, "tokens_per_second",
					 1 / rate->token_seconds, "bandwidth_share", (double)bytes / rate->token_seconds / s->bandwidth,
					 "prompt_tokens_per_second", (double)rate->prompt_tokens / rate->prompt_seconds, "sgemm_share",
					 operations / rate->prompt_seconds / s->flops);
}

static fp_status measure_model(bench_session *s, json_t *document)
{
	fp_status status;
	fp_decode_rate dense, smallest;
	int64_t memory, positions, prompt;
	json_t *rates = json_array();
	bool has_experts;
	FP_TRY(fp_checkpoint_open(&s->checkpoint, s->ctx, s->name));
	FP_TRY(fp_model_open(&s->model, s->be, s->checkpoint));
	FP_TRY(fp_backend_set_precision(s->be, s->settings->precision, fp_model_get_config(s->model)->hidden));
	FP_TRY(fp_parse_size(s->ctx, s->settings->memory, &memory));
	positions = fp_model_get_config(s->model)->positions;
	if (positions < 2) {
		status = fp_fail(s->ctx, FP_ERROR_USAGE, "%s: its positions are too few to measure text", s->name);
		goto cleanup;
	}
	has_experts = fp_model_get_config(s->model)->experts.count > 0;
	prompt = fp_larger(1, fp_smaller(PROMPT_TOKENS, positions - TOKENS));
	FP_TRY(
		fp_measure_decoding(&dense, s->model, FP_HELD_DENSE, prompt, fp_smaller(TOKENS, positions - prompt), memory));
	FP_TRY(measure_machine(s));
	json_array_append_new(rates, rate_document(s, "dense", &dense));
	FP_TRY(fp_measure_decoding(&smallest, s->model, FP_HELD_SMALLEST, prompt, dense.tokens, memory));
	if (smallest.weights.operators[FP_HELD_MASK] + smallest.weights.operators[FP_HELD_TWO_OF_FOUR] > 0) {
		json_array_append_new(rates, rate_document(s, "without zeros", &smallest));
		json_object_set_new(document, "speedup", json_real(dense.token_seconds / smallest.token_seconds));
	}
	json_object_set_new(document, "model", json_string(s->name));
	json_object_set_new(document, "architecture", json_string(fp_model_architecture(s->model)));
	json_object_set_new(document, "prompt_tokens", json_integer(prompt));
	json_object_set_new(document, "tokens", json_integer(dense.tokens));
	json_object_set(document, "rates", rates);
	if (has_experts)
		json_object_set_new(document, "note",
							json_string("bytes per token and shares count all experts, of which a token uses a few"));
cleanup:
	json_decref(rates);
	return status;
}

fp_status fp_bench(char **json, fp_context *ctx, const char *model, const fp_settings *settings)
{
	bench_session s = {.ctx = ctx, .name = model, .settings = settings};
	double start = fp_clock();
	json_t *document = json_object();
	fp_status status;
	*json = NULL;
	fp_clear_message(ctx);
	FP_TRY(fp_backend_open(&s.be, ctx, settings->device, (int)settings->threads));
	FP_TRY(measure_machine(&s));
	if (model)
		FP_TRY(measure_model(&s, document));
	json_object_set_new(document, "device", json_string(s.be->description));
	json_object_set_new(document, "read_bytes_per_second", json_real(s.bandwidth));
	json_object_set_new(document, "sgemm_flops", json_real(s.flops));
	json_object_set_new(document, "seconds", json_real(fp_clock() - start));
	FP_TRY(fp_result_text(json, ctx, json_incref(document)));
cleanup:
	if (status != FP_OK)
		fp_require_message(ctx, status);
	json_decref(document);
	close_session(&s);
	return status;
}
