/* SPDX-License-Identifier: Apache-2.0 */
/* completion.h: completion scripts for shells, made from the tables of commands, flags and settings. */
#ifndef FP_CLI_COMPLETION_H
#define FP_CLI_COMPLETION_H

#include "cli/options.h"

/* shell: bash, zsh or fish; another one is said on stderr. */
fp_status fp_cli_completion(FILE *out, const char *shell);

#endif
