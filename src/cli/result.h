/* SPDX-License-Identifier: Apache-2.0 */
/* result.h: every command's result is one JSON document. --json prints it unchanged; else it is rendered as text. */
#ifndef FP_CLI_RESULT_H
#define FP_CLI_RESULT_H

#include "cli/options.h"

#include <jansson.h>

/* Prints the document for people. */
typedef void fp_cli_render(const json_t *result, const fp_cli_options *options);
/* Prints the document on stdout: unchanged with --json, else by render(). */
fp_status fp_cli_print_result(const fp_cli_options *options, const char *json, fp_cli_render *render);

/* Parts of a rendering. A missing key prints as "-". */
const char *fp_cli_text_at(const json_t *object, const char *key);
double fp_cli_number_at(const json_t *object, const char *key); /* NaN where it is missing */

/* Prints words at column `column`, wrapped at 100 columns; later lines start at `column` too. */
void fp_cli_print_wrapped(FILE *out, int column, const char *text);
/* Prints one word of a command line, quoted for a shell if need be. */
void fp_cli_print_word(FILE *out, const char *word);
/* The rows with the largest values of `key`, at most `most`, largest first; rows with 0 or without the key are left
 * out. The caller releases it. */
json_t *fp_cli_largest_rows(const json_t *rows, const char *key, size_t most);

/* "model.layers.12.mlp.up_proj.weight" → "model.layers.*.mlp.up_proj.weight", as much as fits */
void fp_cli_name_kind(char *out, size_t size, const char *name);
/* "1.2 GiB" */
void fp_cli_format_bytes(char out[static 32], double bytes);
/* 15191712 → "15,191,712" */
void fp_cli_format_count(char out[static 32], double count);

/* One column of a table: a key of each row's object. */
typedef struct fp_cli_column {
	const char *key, *title;
	const char *format; /* of a number, such as "%.4f"; NULL: text */
	double scale;       /* multiplies a number before it is printed: 100 for a percentage; 0 counts as 1 */
	bool unless_zero;   /* left out if every row has 0 */
} fp_cli_column;
/* Prints rows under titles; text is aligned left, numbers right. A column that no row has is left out. */
void fp_cli_print_table(const json_t *rows, const fp_cli_column *columns, size_t column_count);

#endif
