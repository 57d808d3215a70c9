/* SPDX-License-Identifier: Apache-2.0 */
#include "text/corpus.h"

#include "base/file.h"
#include "base/memory.h"
#include "text/byte_source.h"
#include "tokenizer/unicode_text.h"
#include <jansson.h>
#include <string.h>
#include <strings.h>

enum { READ_SIZE = 1 << 17, LOOK_AT = 1 << 20 };

struct fp_corpus {
	fp_text_buffer text; /* all documents, concatenated */
	int64_t *ends;       /* of each document in `text` */
	int64_t count, capacity;
	bool plain;
};

typedef enum layout { LAYOUT_UNKNOWN, LAYOUT_PLAIN, LAYOUT_LINES } layout;

typedef struct corpus_reader {
	fp_context *ctx;
	const char *path;
	fp_corpus *corpus;
	layout layout;
	fp_text_buffer pending; /* JSON lines: the beginning of a line whose end was not read yet */
	fp_text_buffer repaired;
	int64_t line_number;
} corpus_reader;

static bool ends_with(const char *name, int64_t length, const char *ending)
{
	int64_t size = (int64_t)strlen(ending);
	return length > size && strncasecmp(name + length - size, ending, (size_t)size) == 0;
}

static layout layout_by_name(const char *path)
{
	int64_t length = (int64_t)strlen(path);
	if (ends_with(path, length, ".gz"))
		length -= 3;
	else if (ends_with(path, length, ".zst"))
		length -= 4;
	return ends_with(path, length, ".jsonl") || ends_with(path, length, ".json") ? LAYOUT_LINES : LAYOUT_UNKNOWN;
}

static bool is_blank(char byte)
{
	return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static fp_status end_document(corpus_reader *reader)
{
	fp_corpus *corpus = reader->corpus;
	fp_status status = FP_GROW(reader->ctx, &corpus->ends, &corpus->capacity, corpus->count + 1);
	if (status == FP_OK)
		corpus->ends[corpus->count++] = corpus->text.length;
	return status;
}

static fp_status take_line(corpus_reader *reader, const char *line, int64_t length)
{
	fp_context *ctx = reader->ctx;
	fp_status status = FP_OK;
	json_t *json = NULL;
	reader->line_number++;
	if (reader->line_number == 1 && length >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
		line += 3; /* a byte-order mark */
		length -= 3;
	}
	while (length > 0 && is_blank(line[length - 1]))
		length--;
	while (length > 0 && is_blank(line[0])) {
		line++;
		length--;
	}
	if (length == 0)
		return FP_OK;
	if (fp_utf8_valid_prefix(line, length) != length) {
		reader->repaired.length = 0;
		FP_TRY(fp_utf8_repair(ctx, line, length, &reader->repaired));
		line = reader->repaired.bytes;
		length = reader->repaired.length;
	}
	json_error_t error;
	json = json_loadb(line, (size_t)length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
	if (!json) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: line %lld: not valid JSON: %s", reader->path,
						 (long long)reader->line_number, error.text);
		goto cleanup;
	}
	const json_t *text = json_object_get(json, "text");
	if (!json_is_string(text)) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: line %lld: must be a JSON object with a text: {\"text\": \"…\"}",
						 reader->path, (long long)reader->line_number);
		goto cleanup;
	}
	FP_TRY(fp_text_append(ctx, &reader->corpus->text, json_string_value(text), (int64_t)json_string_length(text)));
	FP_TRY(end_document(reader));
cleanup:
	json_decref(json);
	return status;
}

/* Parses the complete lines in `pending` and keeps the rest. The first `searched` bytes have no line end. */
static fp_status take_pending(corpus_reader *reader, int64_t searched, bool last)
{
	fp_text_buffer *pending = &reader->pending;
	fp_status status = FP_OK;
	int64_t start = 0, from = searched;
	while (from < pending->length) {
		const char *end = memchr(pending->bytes + from, '\n', (size_t)(pending->length - from));
		if (!end)
			break;
		FP_TRY(take_line(reader, pending->bytes + start, end - pending->bytes - start));
		start = from = end - pending->bytes + 1;
	}
	if (last && start < pending->length) {
		FP_TRY(take_line(reader, pending->bytes + start, pending->length - start));
		start = pending->length;
	}
	if (start > 0) {
		memmove(pending->bytes, pending->bytes + start, (size_t)(pending->length - start));
		pending->length -= start;
	}
cleanup:
	return status;
}

/* By the first byte that is not blank. */
static void detect_layout(corpus_reader *reader)
{
	for (int64_t i = 0; i < reader->pending.length && reader->layout == LAYOUT_UNKNOWN; i++)
		if (!is_blank(reader->pending.bytes[i]))
			reader->layout = reader->pending.bytes[i] == '{' ? LAYOUT_LINES : LAYOUT_PLAIN;
}

/* Some bytes that are no text are read all the same; a file with many of them is another kind of file, or in another
 * encoding. */
static fp_status check_is_text(const corpus_reader *reader)
{
	const char *text = reader->pending.bytes;
	int64_t size = reader->pending.length < LOOK_AT ? reader->pending.length : LOOK_AT, wrong = 0;
	if (size >= 4 && memcmp(text, "PAR1", 4) == 0)
		return fp_fail(reader->ctx, FP_ERROR_INPUT,
					   "%s: is a Parquet file; write its texts as JSON lines {\"text\": \"…\"}, as "
					   "pandas.read_parquet(FILE).to_json(NAME, orient=\"records\", lines=True) does",
					   reader->path);
	for (int64_t i = 0; i < size; i++) {
		int64_t valid = fp_utf8_valid_prefix(text + i, size - i);
		for (int64_t end = i + valid; i < end; i++)
			wrong += text[i] == '\0';
		wrong += i < size;
	}
	if (wrong * 4 < size)
		return FP_OK;
	return fp_fail(
		reader->ctx, FP_ERROR_INPUT,
		"%s: is not text: %lld of its first %lld bytes are 0 or not UTF-8; must be plain text in UTF-8 or JSON "
		"lines {\"text\": \"…\"}",
		reader->path, (long long)wrong, (long long)size);
}

static fp_status read_all(corpus_reader *reader, fp_byte_source *source)
{
	fp_status status = FP_OK;
	int64_t got, before;
	do {
		fp_text_buffer *pending = &reader->pending;
		before = pending->length;
		FP_TRY(FP_GROW(reader->ctx, &pending->bytes, &pending->capacity, pending->length + READ_SIZE));
		FP_TRY(fp_byte_source_read(source, pending->bytes + pending->length, READ_SIZE, &got));
		pending->length += got;
		bool known = reader->layout != LAYOUT_UNKNOWN;
		detect_layout(reader);
		if (reader->layout == LAYOUT_LINES)
			FP_TRY(take_pending(reader, known ? before : 0, got == 0));
		FP_TRY(fp_check_interrupt(reader->ctx));
	} while (got > 0);
	if (reader->layout != LAYOUT_LINES && reader->pending.length > 0) {
		FP_TRY(check_is_text(reader));
		reader->corpus->text = reader->pending;
		reader->pending = (fp_text_buffer){0};
		reader->corpus->plain = true;
		FP_TRY(end_document(reader));
	}
cleanup:
	return status;
}

fp_status fp_corpus_read(fp_corpus **out, fp_context *ctx, const char *path)
{
	fp_status status = FP_OK;
	fp_byte_source *source = NULL;
	corpus_reader reader = {.ctx = ctx, .path = path, .layout = layout_by_name(path)};
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &reader.corpus, 1));
	FP_TRY(fp_byte_source_open(&source, ctx, path));
	FP_TRY(read_all(&reader, source));
	if (reader.corpus->count == 0) {
		status = fp_fail(
			ctx, FP_ERROR_INPUT, "%s: has no text; must be plain text or JSON lines {\"text\": \"…\"}%s", path,
			fp_is_file(path) ? "" : "; a pipe can be read only once, so give a file if this run reads it again");
		goto cleanup;
	}
	*out = reader.corpus;
	reader.corpus = NULL;
cleanup:
	fp_byte_source_close(source);
	fp_corpus_free(reader.corpus);
	fp_free(reader.pending.bytes);
	fp_free(reader.repaired.bytes);
	return status;
}

void fp_corpus_free(fp_corpus *corpus)
{
	if (!corpus)
		return;
	fp_free(corpus->text.bytes);
	fp_free(corpus->ends);
	fp_free(corpus);
}

int64_t fp_corpus_count(const fp_corpus *corpus)
{
	return corpus->count;
}

fp_document fp_corpus_document(const fp_corpus *corpus, int64_t index)
{
	int64_t start = index > 0 ? corpus->ends[index - 1] : 0;
	return (fp_document){.text = corpus->text.bytes ? corpus->text.bytes + start : "",
						 .length = corpus->ends[index] - start};
}

bool fp_corpus_is_plain(const fp_corpus *corpus)
{
	return corpus->plain;
}
