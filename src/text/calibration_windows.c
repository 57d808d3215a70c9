/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of tokens for calibration: a sampler is a row of a table (docs/protocols.md). */
#include "base/memory.h"
#include "base/mersenne.h"
#include "base/name_list.h"
#include "base/numbers.h"
#include "text/window_tokens.h"

#include <string.h>

typedef struct sampling {
	fp_context *ctx;
	fp_tokenizer *tokenizer;
	fp_corpus **corpora;
	int corpus_count;
	int64_t samples, length;
	int64_t held_out; /* > 0: at most so many windows that the sample does not have; 0: the sample */
	uint64_t seed;
	fp_windows *out;
} sampling;

/* *out ← 0 … count − 1 in the order that Python's random.Random(seed).shuffle() gives. */
static fp_status shuffle(fp_context *ctx, int64_t **out, int64_t count, uint64_t seed)
{
	fp_status status = FP_NEW(ctx, out, count);
	if (status != FP_OK)
		return status;
	for (int64_t i = 0; i < count; i++)
		(*out)[i] = i;
	fp_mersenne random;
	fp_mersenne_seed(&random, seed);
	for (int64_t i = count - 1; i > 0; i--) {
		int64_t other = fp_mersenne_below(&random, i + 1), kept = (*out)[i];
		(*out)[i] = (*out)[other];
		(*out)[other] = kept;
	}
	return FP_OK;
}

/* Moves `count` windows from `first` on, in the order (NULL: that of the text), to job->out. */
static fp_status take_windows(const sampling *job, const fp_tokens *tokens, const int64_t *order, int64_t first,
							  int64_t count)
{
	int64_t length = job->length;
	fp_status status = FP_NEW(job->ctx, &job->out->ids, count * length);
	if (status != FP_OK)
		return status;
	job->out->count = count;
	job->out->length = length;
	for (int64_t i = 0; i < count; i++)
		memcpy(job->out->ids + i * length, tokens->ids + (order ? order[first + i] : first + i) * length,
			   (size_t)length * sizeof *tokens->ids);
	return FP_OK;
}

static fp_status sample_packed(const sampling *job)
{
	fp_context *ctx = job->ctx;
	fp_status status = FP_OK;
	fp_tokens tokens = {0};
	int64_t *order = NULL;
	/* Seed 0 takes the first windows of the files; a shuffle needs all of them. */
	int64_t enough = INT64_MAX;
	if (job->seed == 0 && job->samples > 0 && job->samples <= INT64_MAX - job->held_out &&
		!fp_multiply_checked(job->samples + job->held_out, job->length, &enough))
		enough = INT64_MAX;
	for (int i = 0; i < job->corpus_count; i++)
		FP_TRY(fp_tokenize_documents(ctx, job->tokenizer, job->corpora[i], enough, &tokens));
	int64_t there = tokens.count / job->length, wanted = job->samples > 0 ? job->samples : there;
	if (there < wanted || there == 0) {
		status = fp_fail(
			ctx, FP_ERROR_INPUT,
			"--calibration: the text has %lld tokens, %lld windows of %lld, and %lld are needed; use more text, fewer "
			"--samples or a shorter --sequence-length",
			(long long)tokens.count, (long long)there, (long long)job->length, (long long)(wanted > 0 ? wanted : 1));
		goto cleanup;
	}
	if (job->seed != 0)
		FP_TRY(shuffle(ctx, &order, there, job->seed));
	if (job->held_out > 0)
		FP_TRY(take_windows(job, &tokens, order, wanted, fp_smaller(job->held_out, there - wanted)));
	else
		FP_TRY(take_windows(job, &tokens, order, 0, wanted));
cleanup:
	fp_free(order);
	fp_free(tokens.ids);
	return status;
}

static fp_document find_document(const sampling *job, int64_t index)
{
	int corpus = 0;
	while (index >= fp_corpus_count(job->corpora[corpus]))
		index -= fp_corpus_count(job->corpora[corpus++]);
	return fp_corpus_document(job->corpora[corpus], index);
}

/* The documents drawn so far. */
typedef struct drawn_documents {
	int64_t *tokens; /* by document: 0 if it was not drawn yet, else 1 + its number of tokens */
	int64_t count, known, longest;
} drawn_documents;

/* Draws documents until one has more tokens than a window. The published scripts loop for ever if there is none; here
 * the lengths are remembered, and the draw fails once all documents are known to be too short. */
static fp_status draw_document(const sampling *job, fp_mersenne *random, drawn_documents *drawn, fp_tokens *tokens)
{
	for (;;) {
		fp_status status = fp_check_interrupt(job->ctx);
		if (status != FP_OK)
			return status;
		int64_t index = fp_mersenne_between(random, 0, drawn->count - 1);
		if (drawn->tokens[index] > 0 && drawn->tokens[index] - 1 <= job->length)
			continue;
		fp_document document = find_document(job, index);
		tokens->count = 0;
		status = fp_tokenizer_encode(job->tokenizer, document.text, document.length, true, tokens);
		if (status != FP_OK)
			return status;
		drawn->known += drawn->tokens[index] == 0;
		drawn->tokens[index] = tokens->count + 1;
		if (tokens->count > drawn->longest)
			drawn->longest = tokens->count;
		if (tokens->count > job->length)
			return FP_OK;
		if (drawn->known == drawn->count && drawn->longest <= job->length)
			return fp_fail(
				job->ctx, FP_ERROR_INPUT,
				"--calibration: --sampler c4 needs documents of more than %lld tokens; the longest of %lld has %lld; "
				"use --sampler packed or a shorter --sequence-length",
				(long long)job->length, (long long)drawn->count, (long long)drawn->longest);
	}
}

/* The beginnings of the first documents that are long enough and were not drawn. Documents of the sample are left out
 * as a whole, because windows of one document may overlap. */
static fp_status take_undrawn(const sampling *job, const drawn_documents *drawn, fp_tokens *tokens)
{
	fp_windows *out = job->out;
	fp_status status;
	fp_free(out->ids);
	*out = (fp_windows){.length = job->length};
	FP_TRY(FP_NEW(job->ctx, &out->ids, job->held_out * job->length));
	for (int64_t index = 0; index < drawn->count && out->count < job->held_out; index++) {
		if (drawn->tokens[index] > 0)
			continue;
		fp_document document = find_document(job, index);
		tokens->count = 0;
		FP_TRY(fp_check_interrupt(job->ctx));
		FP_TRY(fp_tokenizer_encode(job->tokenizer, document.text, document.length, true, tokens));
		if (tokens->count > job->length)
			memcpy(out->ids + out->count++ * job->length, tokens->ids, (size_t)job->length * sizeof *tokens->ids);
	}
cleanup:
	return status;
}

/* As get_c4() of SparseGPT and Wanda draws: randint for the document until one is long enough, then for the offset. */
static fp_status sample_c4(const sampling *job)
{
	fp_context *ctx = job->ctx;
	fp_status status = FP_OK;
	fp_tokens tokens = {0};
	drawn_documents drawn = {0};
	fp_mersenne random;
	int64_t total;
	if (job->samples < 1 || !fp_multiply_checked(job->samples, job->length, &total))
		return fp_fail(ctx, FP_ERROR_USAGE,
					   "calibration: sampler c4 needs a number of samples, such as 128, but got %lld",
					   (long long)job->samples);
	for (int i = 0; i < job->corpus_count; i++)
		drawn.count += fp_corpus_count(job->corpora[i]);
	FP_TRY(FP_NEW(ctx, &drawn.tokens, drawn.count));
	FP_TRY(FP_NEW(ctx, &job->out->ids, total));
	job->out->length = job->length;
	fp_mersenne_seed(&random, job->seed);
	for (job->out->count = 0; job->out->count < job->samples; job->out->count++) {
		FP_TRY(draw_document(job, &random, &drawn, &tokens));
		int64_t offset = fp_mersenne_between(&random, 0, tokens.count - job->length - 1);
		memcpy(job->out->ids + job->out->count * job->length, tokens.ids + offset,
			   (size_t)job->length * sizeof *tokens.ids);
	}
	if (job->held_out > 0)
		FP_TRY(take_undrawn(job, &drawn, &tokens));
cleanup:
	fp_free(tokens.ids);
	fp_free(drawn.tokens);
	return status;
}

static const struct sampler {
	const char *name;
	fp_status (*draw)(const sampling *job);
} samplers[] = {
	{"packed", sample_packed},
	{"c4", sample_c4},
};

static fp_status find_sampler(const struct sampler **out, fp_context *ctx, const char *name)
{
	fp_name_list names = {0};
	for (size_t i = 0; i < sizeof samplers / sizeof samplers[0]; i++) {
		*out = &samplers[i];
		if (strcmp(name, samplers[i].name) == 0)
			return FP_OK;
		fp_name_list_add(&names, samplers[i].name);
	}
	return fp_fail(ctx, FP_ERROR_USAGE, "sampler '%s' is unknown; it must be one of %s", name, names.text);
}

static fp_status draw(sampling *job, const char *const *paths, int path_count, const char *sampler)
{
	fp_status status = FP_OK;
	fp_context *ctx = job->ctx;
	*job->out = (fp_windows){0};
	const struct sampler *chosen;
	FP_TRY(find_sampler(&chosen, ctx, sampler));
	if (path_count < 1 || job->samples < 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "calibration needs at least one file and a number of samples such as 128");
	FP_TRY(fp_check_window_length(ctx, job->length));
	FP_TRY(FP_NEW(ctx, &job->corpora, path_count));
	for (job->corpus_count = 0; job->corpus_count < path_count; job->corpus_count++)
		FP_TRY(fp_corpus_read(&job->corpora[job->corpus_count], ctx, paths[job->corpus_count]));
	FP_TRY(chosen->draw(job));
cleanup:
	for (int i = 0; i < job->corpus_count; i++)
		fp_corpus_free(job->corpora[i]);
	fp_free(job->corpora);
	if (status != FP_OK)
		fp_windows_free(job->out);
	return status;
}

fp_status fp_windows_calibration(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *const *paths,
								 int path_count, const char *sampler, int64_t samples, int64_t length, uint64_t seed)
{
	sampling job = {.ctx = ctx, .tokenizer = tokenizer, .samples = samples, .length = length, .seed = seed, .out = out};
	return draw(&job, paths, path_count, sampler);
}

fp_status fp_windows_held_out(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *const *paths,
							  int path_count, const char *sampler, int64_t samples, int64_t length, uint64_t seed,
							  int64_t most)
{
	sampling job = {.ctx = ctx, .tokenizer = tokenizer, .samples = samples, .length = length, .seed = seed, .out = out};
	job.held_out = most;
	return draw(&job, paths, path_count, sampler);
}
