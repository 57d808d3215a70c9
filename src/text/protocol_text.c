/* SPDX-License-Identifier: Apache-2.0 */
#include "text/protocol_text.h"

#include <string.h>

enum { C4_DOCUMENTS = 1100 };

/* Python's str.isspace(): Unicode's White_Space and the ASCII separators U+001C to U+001F. */
static bool is_python_space(uint32_t code)
{
	return fp_is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

static void strip(const char **text, int64_t *length)
{
	uint32_t code;
	while (*length > 0) {
		int size = fp_utf8_decode(*text, *length, &code);
		if (!is_python_space(code))
			break;
		*text += size;
		*length -= size;
	}
	while (*length > 0) {
		int64_t start = *length - 1;
		while (start > 0 && *length - start < 4 && ((unsigned char)(*text)[start] & 0xC0) == 0x80)
			start--;
		if (start + fp_utf8_decode(*text + start, *length - start, &code) != *length || !is_python_space(code))
			break;
		*length = start;
	}
}

/* The first line of the text by Python's universal newlines; returns its size with the line end. */
static int64_t next_line(const char *text, int64_t length, int64_t *content, bool *ended)
{
	int64_t i = 0;
	while (i < length && text[i] != '\n' && text[i] != '\r')
		i++;
	*content = i;
	*ended = i < length;
	if (i == length)
		return i;
	return i + (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n' ? 2 : 1);
}

typedef fp_status (*row_function)(fp_context *ctx, fp_text_buffer *out, const char *line, int64_t length, bool ended);

static fp_status wikitext2_row(fp_context *ctx, fp_text_buffer *out, const char *line, int64_t length, bool ended)
{
	const char *content = line;
	int64_t content_length = length;
	strip(&content, &content_length);
	if (content_length == 0)
		return FP_OK;
	fp_status status = fp_text_append(ctx, out, line, length);
	return status == FP_OK && ended ? fp_text_append(ctx, out, "\n", 1) : status;
}

static fp_status ptb_row(fp_context *ctx, fp_text_buffer *out, const char *line, int64_t length, bool ended)
{
	(void)ended;
	strip(&line, &length);
	return fp_text_append(ctx, out, line, length);
}

static fp_status join_lines(fp_context *ctx, fp_document text, const char *separator, row_function row,
							fp_text_buffer *out)
{
	fp_status status = FP_OK;
	int64_t content;
	bool ended;
	for (int64_t start = 0; start < text.length;) {
		if (start > 0)
			FP_TRY(fp_text_append(ctx, out, separator, (int64_t)strlen(separator)));
		int64_t size = next_line(text.text + start, text.length - start, &content, &ended);
		FP_TRY(row(ctx, out, text.text + start, content, ended));
		start += size;
	}
cleanup:
	return status;
}

static fp_status join_documents(fp_context *ctx, const fp_corpus *corpus, int64_t count, const char *separator,
								fp_text_buffer *out)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < count; i++) {
		fp_document document = fp_corpus_document(corpus, i);
		if (i > 0)
			FP_TRY(fp_text_append(ctx, out, separator, (int64_t)strlen(separator)));
		FP_TRY(fp_text_append(ctx, out, document.text, document.length));
	}
cleanup:
	return status;
}

fp_status fp_join_wikitext2(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out)
{
	if (fp_corpus_is_plain(corpus))
		return join_lines(ctx, fp_corpus_document(corpus, 0), "\n\n", wikitext2_row, out);
	return join_documents(ctx, corpus, fp_corpus_count(corpus), "\n\n", out);
}

fp_status fp_join_ptb(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out)
{
	if (fp_corpus_is_plain(corpus))
		return join_lines(ctx, fp_corpus_document(corpus, 0), " ", ptb_row, out);
	return join_documents(ctx, corpus, fp_corpus_count(corpus), " ", out);
}

fp_status fp_join_c4(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out)
{
	int64_t count = fp_corpus_count(corpus);
	return join_documents(ctx, corpus, count < C4_DOCUMENTS ? count : C4_DOCUMENTS, " ", out);
}
