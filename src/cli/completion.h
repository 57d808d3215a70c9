/* SPDX-License-Identifier: Apache-2.0 */
/* completion.h: completion scripts for shells, generated from the tables of commands, flags and settings. */
#ifndef FP_CLI_COMPLETION_H
#define FP_CLI_COMPLETION_H

#include "cli/options.h"

/* shell: bash, zsh or fish; for any other it prints an error. */
fp_status fp_cli_completion(FILE *out, const char *shell);

#endif
