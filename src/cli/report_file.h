/* SPDX-License-Identifier: Apache-2.0 */
/* report_file.h: --report FILE.html of prune, compare and demo. Both do nothing where it was not asked for. */
#ifndef FP_CLI_REPORT_FILE_H
#define FP_CLI_REPORT_FILE_H

#include "cli/options.h"

/* Before a long run: whether the file can be written. */
fp_status fp_cli_report_check(const fp_cli_options *options);
/* The page of a result document. */
fp_status fp_cli_report_write(fp_context *ctx, const fp_cli_options *options, const char *json);

#endif
