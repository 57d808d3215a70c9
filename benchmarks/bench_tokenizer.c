/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_tokenizer: encoding speed on one thread.
 *
 *     bench_tokenizer TEXT MODEL…
 *
 * Prints MB/s for each model: the first pass over the file's documents, with a cold word cache, and the
 * best of five. tokenizer_peer.py times Hugging Face's tokenizers on the same files.
 */
#include "base/memory.h"
#include "text/corpus.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <time.h>

enum { PASSES = 5 };

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static fp_status encode_all(fp_tokenizer *tokenizer, const fp_corpus *corpus, fp_tokens *tokens, int64_t *bytes)
{
	*bytes = 0;
	tokens->count = 0;
	for (int64_t i = 0; i < fp_corpus_count(corpus); i++) {
		fp_document document = fp_corpus_document(corpus, i);
		*bytes += document.length;
		fp_status status = fp_tokenizer_encode(tokenizer, document.text, document.length, true, tokens);
		if (status != FP_OK)
			return status;
	}
	return FP_OK;
}

static fp_status bench(fp_context *ctx, const fp_corpus *corpus, const char *model)
{
	fp_status status = FP_OK;
	fp_tokenizer *tokenizer = NULL;
	fp_tokens tokens = {0};
	int64_t bytes = 0;
	double start = now(), first = 0, best = 0;
	FP_TRY(fp_tokenizer_open(&tokenizer, ctx, model));
	double opened = now() - start;
	for (int pass = 0; pass < PASSES; pass++) {
		start = now();
		FP_TRY(encode_all(tokenizer, corpus, &tokens, &bytes));
		double speed = (double)bytes / 1e6 / (now() - start);
		first = pass == 0 ? speed : first;
		best = speed > best ? speed : best;
	}
	printf("%-40s %-18s %9lld tokens  first pass %7.1f MB/s  best %7.1f MB/s  opened in %.3f s\n", model,
		   fp_tokenizer_kind(tokenizer), (long long)tokens.count, first, best, opened);
cleanup:
	fp_free(tokens.ids);
	fp_tokenizer_free(tokenizer);
	return status;
}

int main(int count, char **arguments)
{
	if (count < 3) {
		fprintf(stderr, "usage: bench_tokenizer TEXT MODEL...\n");
		return 2;
	}
	fp_context *ctx = fp_context_new();
	fp_corpus *corpus = NULL;
	fp_status status = fp_corpus_read(&corpus, ctx, arguments[1]);
	for (int i = 2; status == FP_OK && i < count; i++)
		status = bench(ctx, corpus, arguments[i]);
	if (status != FP_OK)
		fprintf(stderr, "bench_tokenizer: %s\n", fp_context_message(ctx));
	fp_corpus_free(corpus);
	fp_context_free(ctx);
	return fp_status_exit_code(status);
}
