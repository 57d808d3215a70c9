/* SPDX-License-Identifier: Apache-2.0 */
/* output_file.h: the files that a command writes besides its result: --metrics, --samples-file and --report. */
#ifndef FP_CLI_OUTPUT_FILE_H
#define FP_CLI_OUTPUT_FILE_H

#include "cli/options.h"

/* Checks before a long run that the file can be written, and that it is none of those that the command reads. An old file
 * stays as it is, and a new one is not left behind. path NULL: nothing is done. */
fp_status fp_cli_output_check(const fp_cli_options *options, const char *flag, const char *path);
/* Prints that a file could not be written, and why if `error`, of errno, says so. */
fp_status fp_cli_output_failed(const char *flag, const char *path, int error);

#endif
