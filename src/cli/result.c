/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/result.h"

#include <math.h>
#include <string.h>

enum { CELL_SIZE = 128 };

fp_status fp_cli_print_result(const fp_cli_options *options, const char *json, fp_cli_render *render)
{
	if (options->json) {
		puts(json);
	} else {
		json_error_t error;
		json_t *result = json_loads(json, 0, &error);
		if (!result)
			return fp_cli_error(FP_ERROR_INTERNAL, "the result is not JSON: %s", error.text);
		render(result, options);
		json_decref(result);
	}
	/* a full disk or a closed pipe is a failure */
	if (fflush(stdout) != 0 || ferror(stdout))
		return fp_cli_error(FP_ERROR_IO, "stdout: the result could not be written");
	return FP_OK;
}

const char *fp_cli_text_at(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "-";
}

double fp_cli_number_at(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	return json_is_number(value) ? json_number_value(value) : NAN;
}

void fp_cli_print_wrapped(FILE *out, int column, const char *text)
{
	enum { WIDTH = 100 };
	int at = column;
	while (*text) {
		size_t length = strcspn(text, " ");
		bool first = at == column;
		if (!first && at + 1 + (int)length > WIDTH) {
			fprintf(out, "\n%*s", column, "");
			at = column;
			first = true;
		}
		at += fprintf(out, "%s%.*s", first ? "" : " ", (int)length, text);
		text += length;
		text += *text == ' ';
	}
	fputc('\n', out);
}

void fp_cli_print_word(FILE *out, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:=,%@";
	if (*word && word[strspn(word, plain)] == '\0') {
		fputs(word, out);
		return;
	}
	fputc('\'', out);
	for (; *word; word++)
		fputs(*word == '\'' ? "'\\''" : (char[]){*word, '\0'}, out);
	fputc('\'', out);
}

json_t *fp_cli_largest_rows(const json_t *rows, const char *key, size_t most)
{
	json_t *largest = json_array();
	for (size_t i = 0; i < json_array_size(rows); i++) {
		json_t *row = json_array_get(rows, i);
		double value = fp_cli_number_at(row, key);
		if (!(value > 0))
			continue;
		size_t at = json_array_size(largest);
		while (at > 0 && fp_cli_number_at(json_array_get(largest, at - 1), key) < value)
			at--;
		if (at < most)
			json_array_insert(largest, at, row);
		if (json_array_size(largest) > most)
			json_array_remove(largest, most);
	}
	return largest;
}

void fp_cli_name_kind(char *out, size_t size, const char *name)
{
	size_t used = 0;
	for (const char *at = name; *at && used < size - 1;) {
		size_t digits = at == name || at[-1] == '.' ? strspn(at, "0123456789") : 0;
		bool number = digits > 0 && (at[digits] == '.' || at[digits] == '\0');
		out[used++] = number ? '*' : *at;
		at += number ? digits : 1;
	}
	out[used] = '\0';
}

void fp_cli_format_bytes(char out[static 32], double bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	size_t unit = 0;
	while (bytes >= 1024 && unit < sizeof units / sizeof units[0] - 1) {
		bytes /= 1024;
		unit++;
	}
	snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

void fp_cli_format_count(char out[static 32], double count)
{
	char digits[24];
	int length = snprintf(digits, sizeof digits, "%.0f", count);
	int at = 0;
	for (int i = 0; i < length && at < 30; i++) {
		if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
			out[at++] = ',';
		out[at++] = digits[i];
	}
	out[at] = '\0';
}

/* [288, 768] → "288x768" */
static void format_list(char out[static CELL_SIZE], const json_t *list)
{
	size_t used = 0;
	out[0] = '\0';
	for (size_t i = 0; i < json_array_size(list) && used < CELL_SIZE - 1; i++)
		used += (size_t)snprintf(out + used, CELL_SIZE - used, "%s%lld", i ? "x" : "",
								 (long long)json_integer_value(json_array_get(list, i)));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* formats come from the tables of columns */
static void format_cell(char out[static CELL_SIZE], const json_t *row, const fp_cli_column *column)
{
	const json_t *value = json_object_get(row, column->key);
	if (json_is_number(value) && column->format)
		snprintf(out, CELL_SIZE, column->format, json_number_value(value) * (column->scale != 0 ? column->scale : 1));
	else if (json_is_integer(value))
		snprintf(out, CELL_SIZE, "%lld", (long long)json_integer_value(value));
	else if (json_is_real(value))
		snprintf(out, CELL_SIZE, "%g", json_real_value(value));
	else if (json_is_string(value))
		snprintf(out, CELL_SIZE, "%s", json_string_value(value));
	else if (json_is_array(value))
		format_list(out, value);
	else
		snprintf(out, CELL_SIZE, "-");
}
#pragma GCC diagnostic pop

/* Width in characters, not in bytes: continuation bytes of UTF-8 do not count. */
static int display_width(const char *text)
{
	int width = 0;
	for (; *text; text++)
		width += ((unsigned char)*text & 0xC0) != 0x80;
	return width;
}

static void print_cell(const char *text, int width, bool right, bool last)
{
	int padding = width - display_width(text);
	if (right)
		printf("%*s%s", padding > 0 ? padding : 0, "", text);
	else
		printf("%s%*s", text, padding > 0 && !last ? padding : 0, "");
	fputs(last ? "\n" : "  ", stdout);
}

void fp_cli_print_table(const json_t *rows, const fp_cli_column *columns, size_t column_count)
{
	enum { MAX_COLUMNS = 16 };
	int widths[MAX_COLUMNS] = {0};
	bool numbers[MAX_COLUMNS] = {false};
	size_t last = 0;
	char cell[CELL_SIZE];
	for (size_t c = 0; c < column_count && c < MAX_COLUMNS; c++) {
		for (size_t r = 0; r < json_array_size(rows); r++) {
			const json_t *row = json_array_get(rows, r);
			const json_t *value = json_object_get(row, columns[c].key);
			if (!value || (columns[c].unless_zero && json_number_value(value) == 0))
				continue;
			format_cell(cell, row, &columns[c]);
			int width = display_width(cell);
			widths[c] = width > widths[c] ? width : widths[c];
			numbers[c] = numbers[c] || json_is_number(value);
			last = c;
		}
		if (widths[c] > 0 && display_width(columns[c].title) > widths[c])
			widths[c] = display_width(columns[c].title);
	}
	for (size_t r = 0; r <= json_array_size(rows); r++)
		for (size_t c = 0; c < column_count && c < MAX_COLUMNS; c++) {
			if (widths[c] == 0)
				continue;
			if (r > 0)
				format_cell(cell, json_array_get(rows, r - 1), &columns[c]);
			print_cell(r == 0 ? columns[c].title : cell, widths[c], numbers[c], c == last);
		}
}
