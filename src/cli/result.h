/* SPDX-License-Identifier: Apache-2.0 */
/* result.h: every command's result is one JSON document: --json prints it as it is, people get a text made from it. */
#ifndef FP_CLI_RESULT_H
#define FP_CLI_RESULT_H

#include "cli/options.h"

#include <jansson.h>

/* Prints the document on stdout: as it is with --json, else through render(). */
fp_status fp_cli_print_result(const fp_cli_options *options, const char *json, void (*render)(const json_t *result));

/* Parts of a rendering. A missing key prints as "-". */
const char *fp_cli_text_at(const json_t *object, const char *key);
double fp_cli_number_at(const json_t *object, const char *key); /* NaN where it is missing */

/* "1.2 GiB" */
void fp_cli_format_bytes(char out[static 32], double bytes);
/* 15191712 → "15,191,712" */
void fp_cli_format_count(char out[static 32], double count);

/* One column of a table: a key of each row's object. */
typedef struct fp_cli_column {
	const char *key, *title;
	const char *format; /* of a number: "%.4f"; "%" prefixed with a share: "%.1f%%" prints 100 × the number; NULL: as
						   text */
	double scale;       /* multiplies a number before it is printed; 0 counts as 1 */
	bool unless_zero;   /* left out where every row has 0 */
} fp_cli_column;
/* Rows under titles, columns padded; text on the left, numbers on the right. A column that no row has is left out. */
void fp_cli_print_table(const json_t *rows, const fp_cli_column *columns, size_t column_count);

#endif
