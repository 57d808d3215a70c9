/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/unigram.h"

#include "base/memory.h"
#include "tokenizer/unicode_text.h"

static const double unknown_penalty = 10;

void fp_unigram_start(fp_unigram *unigram, const fp_vocabulary *vocabulary)
{
	*unigram = (fp_unigram){.vocabulary = vocabulary, .unknown = -1};
	for (int i = 0; i < 256; i++)
		unigram->byte_ids[i] = -1;
}

void fp_unigram_clear(fp_unigram *unigram)
{
	fp_piece_trie_clear(&unigram->trie);
	fp_free(unigram->arrivals);
	*unigram = (fp_unigram){.unknown = -1};
}

fp_status fp_unigram_finish(fp_unigram *unigram, fp_context *ctx, fp_trie_piece *pieces, int64_t count, double least)
{
	unigram->unknown_score = least - unknown_penalty;
	if (unigram->as_sentencepiece)
		unigram->unknown_score = (float)unigram->unknown_score;
	if (unigram->byte_fallback)
		fp_vocabulary_find_bytes(unigram->vocabulary, unigram->byte_ids);
	return fp_piece_trie_build(&unigram->trie, ctx, pieces, count);
}

/* A text that is being encoded. Every way through the text passes `base`; what is before it is decided. */
typedef struct passage {
	fp_context *ctx;
	fp_unigram *unigram;
	const char *text;
	int64_t length, base;
	int64_t unknown_from, unknown_to; /* unknown text that has no id yet */
	fp_tokens *out;
} passage;

/* Whether this way to `end` (a place since the base) is better than those before. */
static bool is_better(fp_unigram *unigram, int64_t end, double score)
{
	while (unigram->furthest < end)
		unigram->arrivals[++unigram->furthest].length = 0;
	const fp_unigram_arrival *there = &unigram->arrivals[end];
	return there->length == 0 || score > there->score;
}

static void arrive(fp_unigram *unigram, int64_t end, double score, int32_t id, int32_t length)
{
	unigram->arrivals[end] = (fp_unigram_arrival){.score = score, .id = id, .length = length};
}

static double add_scores(const fp_unigram *unigram, double a, double b)
{
	return unigram->as_sentencepiece ? (float)(a + b) : a + b;
}

/* Tries all tokens that start at `at`. *size ← the bytes of the character there. */
static fp_status try_tokens(const passage *job, int64_t at, int *size)
{
	fp_unigram *unigram = job->unigram;
	const fp_piece_trie *trie = &unigram->trie;
	const char *text = job->text + at;
	const int64_t rest = job->length - at, place = at - job->base;
	const double before = unigram->arrivals[place].score;
	uint32_t code;
	bool is_known = false;
	*size = fp_utf8_decode(text, rest, &code);
	int64_t length = 1;
	for (int32_t node = trie->roots[(unsigned char)text[0]]; node >= 0; length++) {
		const fp_trie_node *found = &trie->nodes[node];
		if (found->id >= 0) {
			double score = add_scores(unigram, before, found->score);
			if (is_better(unigram, place + length, score))
				arrive(unigram, place + length, score, found->id, (int32_t)length);
			is_known |= length == *size;
		}
		node = length < rest ? fp_piece_trie_child(trie, node, (unsigned char)text[length]) : -1;
	}
	if (is_known)
		return FP_OK;
	const double score = add_scores(unigram, before, unigram->unknown_score);
	if (!is_better(unigram, place + *size, score))
		return FP_OK;
	if (unigram->unknown < 0)
		return fp_fail(job->ctx, FP_ERROR_INPUT,
					   "the character '%.*s' is not in the vocabulary, and the tokenizer has no unk_id", *size, text);
	arrive(unigram, place + *size, score, unigram->unknown, *size);
	return FP_OK;
}

static fp_status add_unknown(const passage *job)
{
	const fp_unigram *unigram = job->unigram;
	const unsigned char *text = (const unsigned char *)job->text + job->unknown_from;
	const int64_t length = job->unknown_to - job->unknown_from;
	fp_status status = FP_OK;
	if (!unigram->as_sentencepiece) { /* such as the text of the unknown token itself */
		int32_t id = fp_vocabulary_get(unigram->vocabulary, (const char *)text, length);
		if (id >= 0 && id < unigram->count)
			return fp_tokens_append(job->ctx, job->out, id);
	}
	bool bytes_known = unigram->byte_fallback;
	for (int64_t i = 0; i < length && bytes_known; i++)
		bytes_known = unigram->byte_ids[text[i]] >= 0;
	if (!bytes_known)
		return fp_tokens_append(job->ctx, job->out, unigram->unknown);
	for (int64_t i = 0; i < length; i++)
		FP_TRY(fp_tokens_append(job->ctx, job->out, unigram->byte_ids[text[i]]));
cleanup:
	return status;
}

static fp_status add_token(passage *job, int64_t start, const fp_unigram_arrival *token)
{
	fp_status status = FP_OK;
	if (token->id == job->unigram->unknown) {
		if (job->unknown_from == job->unknown_to)
			job->unknown_from = start;
		job->unknown_to = start + token->length;
		return FP_OK;
	}
	if (job->unknown_from < job->unknown_to)
		FP_TRY(add_unknown(job));
	job->unknown_from = job->unknown_to;
	FP_TRY(fp_tokens_append(job->ctx, job->out, token->id));
cleanup:
	return status;
}

/* Appends the tokens of the best way from the base to the furthest place, which becomes the base. */
static fp_status settle(passage *job)
{
	fp_status status = FP_OK;
	fp_unigram *unigram = job->unigram;
	fp_unigram_arrival *arrivals = unigram->arrivals;
	const int64_t end = unigram->furthest;
	const double score = arrivals[end].score;
	fp_unigram_arrival token = arrivals[end];
	for (int64_t start = end; start > 0;) { /* each token moves from its end to its start */
		start -= token.length;
		fp_unigram_arrival before = arrivals[start];
		arrivals[start] = token;
		token = before;
	}
	for (int64_t start = 0; start < end; start += arrivals[start].length)
		FP_TRY(add_token(job, job->base + start, &arrivals[start]));
	job->base += end;
	unigram->furthest = 0;
	arrivals[0] = (fp_unigram_arrival){.score = score};
cleanup:
	return status;
}

fp_status fp_unigram_encode(fp_context *ctx, fp_unigram *unigram, const char *piece, int64_t length, fp_tokens *out)
{
	enum { LONGEST_CHARACTER = 4 };
	fp_status status = FP_OK;
	passage job = {.ctx = ctx, .unigram = unigram, .text = piece, .length = length, .out = out};
	const int64_t reach = unigram->trie.longest > LONGEST_CHARACTER ? unigram->trie.longest : LONGEST_CHARACTER;
	int size = 0;
	unigram->furthest = 0;
	for (int64_t at = 0; at < length; at += size) {
		const int64_t rest = length - at, needed = at - job.base + (reach < rest ? reach : rest) + 1;
		if (needed > unigram->capacity)
			FP_TRY(FP_GROW(ctx, &unigram->arrivals, &unigram->capacity, needed));
		if (at == 0)
			unigram->arrivals[0] = (fp_unigram_arrival){0};
		else if (at - job.base == unigram->furthest)
			FP_TRY(settle(&job));
		FP_TRY(try_tokens(&job, at, &size));
	}
	if (length > 0)
		FP_TRY(settle(&job));
	if (job.unknown_from < job.unknown_to)
		FP_TRY(add_unknown(&job));
cleanup:
	return status;
}
