/* SPDX-License-Identifier: Apache-2.0 */
/* demo_table.h: the demo's result: one table for all of its models, and the text around it. */
#ifndef FP_CLI_DEMO_TABLE_H
#define FP_CLI_DEMO_TABLE_H

#include "cli/result.h"

/* Gives every row of a comparison a "title", its name in the table and the report. `addition` goes into the
 * parentheses of a preset's title ("…, short fit"); NULL: none. */
void fp_cli_demo_add_titles(json_t *comparison, const char *addition);
/* Appends the rows of a comparison, in the form of the demo's JSON, to `rows`. */
void fp_cli_demo_add_rows(json_t *rows, const json_t *comparison);
/* Prints {"rows": […], "report": …} for people. */
void fp_cli_demo_render(const json_t *result, const fp_cli_options *options);

#endif
