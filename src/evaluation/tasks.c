/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tasks.c: turns examples into requests and their results into scores. Tokens and metrics follow
 * lm-evaluation-harness:
 *
 *   context        encoded with the tokenizer's special tokens, unless the text already starts with BOS
 *   continuation   context and continuation are encoded as one text; the tokens after as many as the
 *                  context alone has are the continuation
 *   spaces         at the end of the context are moved to the continuation
 *   no context     BOS, or else EOS, is the context
 */
#include "evaluation/tasks.h"

#include "base/memory.h"
#include "evaluation/loglikelihood.h"
#include "evaluation/tasks_examples.h"

#include <math.h>
#include <string.h>

typedef struct encoder {
	fp_context *ctx;
	fp_tokenizer *tokenizer;
	fp_task_examples *examples;
	int64_t length;      /* maximum input length in tokens */
	int32_t prefix;      /* BOS, or else EOS; −1: the tokenizer has neither */
	fp_tokens ids;       /* of all requests */
	fp_tokens whole;     /* scratch */
	fp_text_buffer text; /* scratch */
	int64_t *starts;     /* of each request in ids */
} encoder;

fp_status fp_task_check(fp_context *ctx, const char *name)
{
	char names[512];
	if (fp_task_find(name))
		return FP_OK;
	fp_task_names(names, sizeof names);
	return fp_fail(ctx, FP_ERROR_USAGE, "there is no task '%s'; the tasks are %s", name, names);
}

static fp_status encode(encoder *e, const char *text, int64_t length, fp_tokens *out)
{
	const char *begin = e->prefix >= 0 ? fp_tokenizer_token(e->tokenizer, e->prefix) : NULL;
	int64_t size = begin ? (int64_t)strlen(begin) : 0;
	bool has_bos = begin && length >= size && memcmp(text, begin, (size_t)size) == 0;
	return fp_tokenizer_encode(e->tokenizer, text, length, !has_bos, out);
}

static int64_t without_spaces(const char *text, int64_t length)
{
	uint32_t code;
	while (length > 0) {
		int64_t at = length - 1;
		while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80)
			at--;
		fp_utf8_decode(text + at, length - at, &code);
		if (!fp_is_python_space(code))
			break;
		length = at;
	}
	return length;
}

static fp_status append_ids(encoder *e, const int32_t *ids, int64_t count)
{
	fp_status status = FP_GROW(e->ctx, &e->ids.ids, &e->ids.capacity, e->ids.count + count + 1);
	if (status == FP_OK && count > 0)
		memcpy(e->ids.ids + e->ids.count, ids, (size_t)count * sizeof *ids);
	if (status == FP_OK)
		e->ids.count += count;
	return status;
}

static fp_status encode_without_context(encoder *e, const char *continuation, int64_t length, int64_t *context)
{
	fp_status status;
	e->whole.count = 0;
	FP_TRY(fp_tokenizer_encode(e->tokenizer, continuation, length, false, &e->whole));
	*context = 1;
	if (e->whole.count > 0 && e->whole.ids[0] == e->prefix)
		return append_ids(e, e->whole.ids, e->whole.count);
	if (e->prefix < 0)
		return fp_task_fail(e->examples, "has no context, and the tokenizer has neither BOS nor EOS to use as one");
	FP_TRY(append_ids(e, &e->prefix, 1));
	FP_TRY(append_ids(e, e->whole.ids, e->whole.count));
cleanup:
	return status;
}

static fp_status encode_pair(encoder *e, const fp_task_pair *pair, int64_t *context)
{
	fp_status status;
	const char *text = e->examples->text.bytes;
	const char *continuation = text + pair->continuation.first;
	if (pair->context.length == 0)
		return encode_without_context(e, continuation, pair->continuation.length, context);
	int64_t start = e->ids.count;
	int64_t kept = without_spaces(text + pair->context.first, pair->context.length);
	FP_TRY(encode(e, text + pair->context.first, kept, &e->ids));
	*context = e->ids.count - start;
	e->text.length = e->whole.count = 0;
	FP_TRY(fp_text_append(e->ctx, &e->text, text + pair->context.first, pair->context.length));
	FP_TRY(fp_text_append(e->ctx, &e->text, continuation, pair->continuation.length));
	FP_TRY(encode(e, e->text.bytes, e->text.length, &e->whole));
	if (e->whole.count > *context)
		FP_TRY(append_ids(e, e->whole.ids + *context, e->whole.count - *context));
cleanup:
	return status;
}

static fp_status encode_example(encoder *e, const fp_task_example *example, fp_likelihood_request *requests)
{
	fp_status status = FP_OK;
	e->examples->line = example->line; /* for messages */
	for (int64_t i = example->first_pair; i < example->first_pair + example->pair_count; i++) {
		int64_t context;
		e->starts[i] = e->ids.count;
		FP_TRY(encode_pair(e, &e->examples->pairs[i], &context));
		int64_t continuation = e->ids.count - e->starts[i] - context;
		if (context < 1 || continuation < 1)
			return fp_task_fail(e->examples, "choice %lld: %s has no tokens", (long long)(i - example->first_pair),
								context < 1 ? "the context" : "the continuation");
		if (continuation > e->length)
			return fp_task_fail(e->examples,
								"choice %lld has %lld tokens; the limit is %lld, and only contexts are cut",
								(long long)(i - example->first_pair), (long long)continuation, (long long)e->length);
		requests[i] = (fp_likelihood_request){.context = context, .continuation = continuation};
	}
cleanup:
	return status;
}

static fp_status encode_all(encoder *e, fp_likelihood_request *requests)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < e->examples->count; i++) {
		FP_TRY(encode_example(e, &e->examples->examples[i], requests));
		FP_TRY(fp_check_interrupt(e->ctx));
	}
	for (int64_t i = 0; i < e->examples->pair_count; i++)
		requests[i].ids = e->ids.ids + e->starts[i];
cleanup:
	return status;
}

/* The first of the largest, as in numpy's argmax. */
static int64_t largest(const double *values, int64_t count)
{
	int64_t best = 0;
	for (int64_t i = 1; i < count; i++)
		if (values[i] > values[best])
			best = i;
	return best;
}

/* Of a mean of zeros and ones: the sample standard deviation divided by √n. */
static double standard_error(double mean, int64_t count)
{
	if (count < 2)
		return NAN;
	double n = (double)count;
	return sqrt(mean * (1 - mean) * n / (n - 1)) / sqrt(n);
}

static fp_status score(fp_task_result *out, const fp_task_row *task, const fp_task_examples *examples,
					   const fp_likelihood_request *requests, const fp_task_options *options)
{
	fp_status status = FP_OK;
	double likelihood[FP_MOST_CHOICES], by_length[FP_MOST_CHOICES];
	double correct = 0, correct_norm = 0;
	for (int64_t i = 0; i < examples->count; i++) {
		const fp_task_example *example = &examples->examples[i];
		for (int64_t j = 0; j < example->pair_count; j++) {
			const fp_likelihood_request *request = &requests[example->first_pair + j];
			likelihood[j] = request->loglikelihood;
			by_length[j] = likelihood[j] / (double)examples->pairs[example->first_pair + j].characters;
			out->loglikelihood_sum += likelihood[j];
			out->truncated += request->truncated;
		}
		int64_t chosen = task->single ? requests[example->first_pair].greedy : largest(likelihood, example->pair_count);
		int64_t chosen_norm = task->single ? chosen : largest(by_length, example->pair_count);
		correct += chosen == (task->single ? 1 : example->gold);
		correct_norm += chosen_norm == example->gold;
		const fp_task_sample sample = {task->name, i,           example->line, example->gold,
									   chosen,     chosen_norm, likelihood,    example->pair_count};
		if (options->sampled)
			FP_TRY(options->sampled(options->data, &sample));
	}
	out->samples = examples->count;
	out->has_acc_norm = task->acc_norm;
	out->has_perplexity = task->single;
	out->acc = correct / (double)out->samples;
	out->acc_stderr = standard_error(out->acc, out->samples);
	out->acc_norm = correct_norm / (double)out->samples;
	out->acc_norm_stderr = standard_error(out->acc_norm, out->samples);
	out->perplexity = exp(-out->loglikelihood_sum / (double)out->samples);
cleanup:
	return status;
}

fp_status fp_task_evaluate(fp_task_result *out, fp_model *model, fp_tokenizer *tokenizer, const char *name,
						   const char *path, const fp_task_options *options)
{
	fp_status status;
	fp_context *ctx = fp_model_backend(model)->ctx;
	const fp_task_row *task = fp_task_find(name);
	fp_task_examples examples = {.ctx = ctx};
	fp_likelihood_request *requests = NULL;
	encoder e = {.ctx = ctx, .tokenizer = tokenizer, .examples = &examples, .length = options->length};
	*out = (fp_task_result){0};
	FP_TRY(fp_task_check(ctx, name));
	out->name = task->name;
	FP_TRY(fp_task_read(&examples, task, path, options->limit));
	e.prefix = fp_tokenizer_bos(tokenizer) >= 0 ? fp_tokenizer_bos(tokenizer) : fp_tokenizer_eos(tokenizer);
	FP_TRY(FP_NEW(ctx, &requests, examples.pair_count));
	FP_TRY(FP_NEW(ctx, &e.starts, examples.pair_count));
	FP_TRY(encode_all(&e, requests));
	FP_TRY(fp_loglikelihoods(model, requests, examples.pair_count, options->length, options->memory));
	FP_TRY(score(out, task, &examples, requests, options));
cleanup:
	fp_free(e.starts);
	fp_free(e.text.bytes);
	fp_free(e.whole.ids);
	fp_free(e.ids.ids);
	fp_free(requests);
	fp_task_examples_free(&examples);
	return status;
}
