/* SPDX-License-Identifier: Apache-2.0 */
/* report_file.h: --report FILE.html of prune, compare and demo. Without the flag both functions do nothing. */
#ifndef FP_CLI_REPORT_FILE_H
#define FP_CLI_REPORT_FILE_H

#include "cli/options.h"

/* Checks before a long run that the file can be written. */
fp_status fp_cli_report_check(const fp_cli_options *options);
/* Writes the page of a result document. */
fp_status fp_cli_report_write(fp_context *ctx, const fp_cli_options *options, const char *json);

#endif
