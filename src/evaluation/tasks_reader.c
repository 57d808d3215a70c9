/* SPDX-License-Identifier: Apache-2.0 */
/* tasks_reader.c: reads the official file formats: JSON lines, with labels inside or in a separate file,
 * and GLUE's tables. */
#include "base/memory.h"
#include "evaluation/tasks_examples.h"
#include "text/byte_source.h"

#include <stdio.h>
#include <string.h>

enum { READ_SIZE = 1 << 20, MOST_COLUMNS = 16 };

typedef struct line_reader {
	const char *at, *end;
} line_reader;

static fp_status read_bytes(fp_text_buffer *out, fp_context *ctx, const char *path)
{
	fp_status status;
	fp_byte_source *source = NULL;
	int64_t got;
	FP_TRY(fp_byte_source_open(&source, ctx, path));
	do {
		FP_TRY(FP_GROW(ctx, &out->bytes, &out->capacity, out->length + READ_SIZE));
		FP_TRY(fp_byte_source_read(source, out->bytes + out->length, READ_SIZE, &got));
		out->length += got;
		FP_TRY(fp_check_interrupt(ctx));
	} while (got > 0);
cleanup:
	fp_byte_source_close(source);
	return status;
}

/* Skips a byte-order mark. */
static line_reader first_line(const fp_text_buffer *bytes)
{
	bool marked = bytes->length >= 3 && memcmp(bytes->bytes, "\xEF\xBB\xBF", 3) == 0;
	return (line_reader){bytes->bytes + (marked ? 3 : 0), bytes->bytes + bytes->length};
}

static bool next_line(line_reader *reader, fp_piece *line)
{
	if (reader->at >= reader->end)
		return false;
	const char *end = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
	if (!end)
		end = reader->end;
	*line = (fp_piece){reader->at, end - reader->at};
	if (line->length > 0 && line->bytes[line->length - 1] == '\r')
		line->length--;
	reader->at = end + 1;
	return true;
}

static bool is_blank(fp_piece line)
{
	for (int64_t i = 0; i < line.length; i++)
		if (line.bytes[i] != ' ' && line.bytes[i] != '\t')
			return false;
	return true;
}

/* valid.jsonl → valid-labels.lst, or NULL if there is no such file. The caller frees it with fp_free(). */
static fp_status find_labels(char **out, fp_context *ctx, const char *path)
{
	const char *ending = strrchr(path, '.');
	int64_t stem = ending && !strchr(ending, '/') ? ending - path : (int64_t)strlen(path);
	fp_status status = FP_NEW(ctx, out, stem + 16);
	if (status != FP_OK)
		return status;
	memcpy(*out, path, (size_t)stem);
	strcpy(*out + stem, "-labels.lst");
	FILE *file = fopen(*out, "rb");
	if (file) {
		fclose(file);
		return FP_OK;
	}
	fp_free(*out);
	*out = NULL;
	return FP_OK;
}

static fp_status add_label(fp_task_examples *out, json_t *record, line_reader *labels, const char *labels_path)
{
	fp_piece line;
	if (!next_line(labels, &line) || is_blank(line))
		return fp_task_fail(out, "%s has no label for this line; both files must have the same number of lines",
							labels_path);
	json_t *label = json_stringn(line.bytes, (size_t)line.length);
	if (!label || json_object_set_new(record, "label", label) != 0)
		return fp_task_fail(out, "its label in %s is not valid UTF-8", labels_path);
	return FP_OK;
}

static fp_status read_lines(fp_task_examples *out, const fp_task_row *task, const fp_text_buffer *bytes, int64_t limit)
{
	fp_status status = FP_OK;
	json_t *record = NULL;
	char *labels_path = NULL;
	fp_text_buffer label_bytes = {0};
	line_reader reader = first_line(bytes);
	line_reader labels = {0};
	fp_piece line;
	if (task->label_file)
		FP_TRY(find_labels(&labels_path, out->ctx, out->path));
	if (labels_path) {
		FP_TRY(read_bytes(&label_bytes, out->ctx, labels_path));
		labels = first_line(&label_bytes);
	}
	while ((limit == 0 || out->count < limit) && next_line(&reader, &line)) {
		out->line++;
		if (is_blank(line))
			continue;
		json_error_t error;
		record = json_loadb(line.bytes, (size_t)line.length, JSON_ALLOW_NUL, &error);
		if (!record)
			FP_TRY(fp_task_fail(out, "not valid JSON: %s", error.text));
		if (!json_is_object(record))
			FP_TRY(fp_task_fail(out, "must be a JSON object, {…}"));
		if (labels_path)
			FP_TRY(add_label(out, record, &labels, labels_path));
		FP_TRY(task->prompt(out, record));
		json_decref(record);
		record = NULL;
	}
cleanup:
	json_decref(record);
	fp_free(label_bytes.bytes);
	fp_free(labels_path);
	return status;
}

static int split_cells(fp_piece line, fp_piece cells[static MOST_COLUMNS])
{
	int count = 0;
	for (const char *at = line.bytes, *end = line.bytes + line.length; count < MOST_COLUMNS; count++) {
		const char *tab = memchr(at, '\t', (size_t)(end - at));
		cells[count] = (fp_piece){at, (tab ? tab : end) - at};
		if (!tab)
			return count + 1;
		at = tab + 1;
	}
	return MOST_COLUMNS + 1;
}

static bool has_quote(fp_piece cell)
{
	return memchr(cell.bytes, '"', (size_t)cell.length) != NULL;
}

/* "…" with inner quotes doubled */
static bool is_quoted(fp_piece cell)
{
	if (cell.length < 2 || cell.bytes[0] != '"' || cell.bytes[cell.length - 1] != '"')
		return false;
	for (int64_t i = 1; i < cell.length - 1; i++)
		if (cell.bytes[i] == '"' && (++i == cell.length - 1 || cell.bytes[i] != '"'))
			return false;
	return true;
}

/* In GLUE's own files a quote is part of the text. Files written by a CSV library quote every cell that
 * contains a quote. A file is of the second kind if all such cells are quoted. */
static bool file_quotes(const fp_text_buffer *bytes)
{
	line_reader reader = first_line(bytes);
	fp_piece line, cells[MOST_COLUMNS];
	bool any = false;
	while (next_line(&reader, &line)) {
		int count = split_cells(line, cells);
		for (int i = 0; i < count && i < MOST_COLUMNS; i++)
			if (has_quote(cells[i])) {
				if (!is_quoted(cells[i]))
					return false;
				any = true;
			}
	}
	return any;
}

static fp_status set_cell(fp_task_examples *out, json_t *record, fp_piece name, fp_piece cell, bool quotes)
{
	fp_status status = FP_OK;
	if (quotes && has_quote(cell)) {
		out->scratch.length = 0;
		for (int64_t i = 1; i < cell.length - 1; i++) {
			FP_TRY(fp_text_append(out->ctx, &out->scratch, cell.bytes + i, 1));
			if (cell.bytes[i] == '"')
				i++;
		}
		cell = (fp_piece){out->scratch.bytes ? out->scratch.bytes : "", out->scratch.length};
	}
	json_t *value = json_stringn(cell.bytes, (size_t)cell.length);
	if (!value || json_object_setn_new(record, name.bytes, (size_t)name.length, value) != 0)
		status = fp_task_fail(out, "column '%.*s' is not valid UTF-8", (int)name.length, name.bytes);
cleanup:
	return status;
}

static fp_status read_table(fp_task_examples *out, const fp_task_row *task, const fp_text_buffer *bytes, int64_t limit)
{
	fp_status status = FP_OK;
	json_t *record = NULL;
	line_reader reader = first_line(bytes);
	fp_piece line, names[MOST_COLUMNS], cells[MOST_COLUMNS] = {{0}};
	bool quotes = file_quotes(bytes);
	if (!next_line(&reader, &line))
		return fp_fail(out->ctx, FP_ERROR_INPUT, "%s: the file is empty; line 1 must name the columns", out->path);
	out->line = 1;
	int columns = split_cells(line, names);
	if (columns > MOST_COLUMNS || columns < 2)
		return fp_task_fail(out, "must name 2 to %d columns, separated by tabs", MOST_COLUMNS);
	while ((limit == 0 || out->count < limit) && next_line(&reader, &line)) {
		out->line++;
		if (line.length == 0)
			continue;
		int count = split_cells(line, cells);
		if (count != columns)
			FP_TRY(fp_task_fail(out, "has %s%d columns; line 1 names %d", count > MOST_COLUMNS ? "more than " : "",
								count > MOST_COLUMNS ? MOST_COLUMNS : count, columns));
		record = json_object();
		if (!record)
			FP_TRY(fp_fail(out->ctx, FP_ERROR_MEMORY, "%s: no memory for line %lld", out->path, (long long)out->line));
		for (int i = 0; i < columns; i++)
			FP_TRY(set_cell(out, record, names[i], cells[i], quotes));
		FP_TRY(task->prompt(out, record));
		json_decref(record);
		record = NULL;
	}
cleanup:
	json_decref(record);
	return status;
}

fp_status fp_task_read(fp_task_examples *out, const fp_task_row *task, const char *path, int64_t limit)
{
	fp_status status;
	fp_text_buffer bytes = {0};
	out->path = path;
	FP_TRY(read_bytes(&bytes, out->ctx, path));
	FP_TRY(task->layout == FP_TASK_TABLE ? read_table(out, task, &bytes, limit) : read_lines(out, task, &bytes, limit));
	if (out->count == 0)
		status = fp_fail(out->ctx, FP_ERROR_INPUT, "%s: contains no example of the task %s", path, task->name);
cleanup:
	fp_free(bytes.bytes);
	return status;
}
