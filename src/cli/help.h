/* SPDX-License-Identifier: Apache-2.0 */
/* help.h: --help and the manual page, generated from the tables of commands, flags, settings and presets. */
#ifndef FP_CLI_HELP_H
#define FP_CLI_HELP_H

#include "cli/options.h"

/* The program's help, or a command's. */
void fp_cli_help(FILE *out, const fp_cli_command *command);
/* The manual page in roff. */
void fp_cli_manual(FILE *out);

#endif
