/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of tokens for evaluation: a protocol is a row of a table. */
#include "text/windows.h"

#include "base/memory.h"
#include "base/name_list.h"
#include "text/protocol_text.h"
#include "text/window_tokens.h"
#include <string.h>

enum { C4_WINDOWS = 256 };

typedef fp_status (*join_function)(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out);

static const struct protocol {
	const char *name;
	join_function join;   /* NULL: every document by itself */
	int64_t most_windows; /* 0: no limit */
} protocols[] = {
	{"documents", NULL, 0},
	{"wikitext2", fp_join_wikitext2, 0},
	{"ptb", fp_join_ptb, 0},
	{"c4", fp_join_c4, C4_WINDOWS},
};

void fp_windows_free(fp_windows *windows)
{
	fp_free(windows->ids);
	*windows = (fp_windows){0};
}

fp_status fp_tokenize_documents(fp_context *ctx, fp_tokenizer *tokenizer, const fp_corpus *corpus, int64_t enough,
								fp_tokens *tokens)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < fp_corpus_count(corpus) && tokens->count < enough; i++) {
		fp_document document = fp_corpus_document(corpus, i);
		FP_TRY(fp_check_interrupt(ctx));
		FP_TRY(fp_tokenizer_encode(tokenizer, document.text, document.length, true, tokens));
	}
cleanup:
	return status;
}

fp_status fp_check_window_length(fp_context *ctx, int64_t length)
{
	if (length < 2 || length > FP_LONGEST_WINDOW)
		return fp_fail(ctx, FP_ERROR_USAGE, "sequence length %lld: must be from 2 to %d, such as 2048",
					   (long long)length, FP_LONGEST_WINDOW);
	return FP_OK;
}

static fp_status tokenize_joined(fp_context *ctx, fp_tokenizer *tokenizer, const fp_corpus *corpus, join_function join,
								 fp_tokens *tokens)
{
	fp_text_buffer text = {0};
	fp_status status = join(ctx, corpus, &text);
	if (status == FP_OK)
		status = fp_tokenizer_encode(tokenizer, text.bytes ? text.bytes : "", text.length, true, tokens);
	fp_free(text.bytes);
	return status;
}

fp_status fp_windows_evaluation(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *path,
								const char *protocol, int64_t length)
{
	fp_status status = FP_OK;
	fp_corpus *corpus = NULL;
	fp_tokens tokens = {0};
	*out = (fp_windows){0};
	const struct protocol *chosen = NULL;
	fp_name_list names = {0};
	for (size_t i = 0; i < sizeof protocols / sizeof protocols[0]; i++) {
		fp_name_list_add(&names, protocols[i].name);
		if (strcmp(protocol, protocols[i].name) == 0)
			chosen = &protocols[i];
	}
	if (!chosen)
		return fp_fail(ctx, FP_ERROR_USAGE, "protocol '%s' is unknown; it must be one of %s", protocol, names.text);
	FP_TRY(fp_check_window_length(ctx, length));
	FP_TRY(fp_corpus_read(&corpus, ctx, path));
	if (chosen->join)
		FP_TRY(tokenize_joined(ctx, tokenizer, corpus, chosen->join, &tokens));
	else
		FP_TRY(fp_tokenize_documents(ctx, tokenizer, corpus, INT64_MAX, &tokens));
	int64_t count = tokens.count / length;
	if (chosen->most_windows > 0 && count > chosen->most_windows)
		count = chosen->most_windows;
	if (count == 0) {
		status =
			fp_fail(ctx, FP_ERROR_INPUT,
					"%s: has %lld tokens by protocol '%s', less than one window of %lld; use more text or a shorter "
					"--sequence-length",
					path, (long long)tokens.count, protocol, (long long)length);
		goto cleanup;
	}
	*out = (fp_windows){.ids = tokens.ids, .count = count, .length = length};
	tokens = (fp_tokens){0};
cleanup:
	fp_free(tokens.ids);
	fp_corpus_free(corpus);
	return status;
}
