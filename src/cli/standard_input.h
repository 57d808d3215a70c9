/* SPDX-License-Identifier: Apache-2.0 */
/* standard_input.h: reads standard input. */
#ifndef FP_CLI_STANDARD_INPUT_H
#define FP_CLI_STANDARD_INPUT_H

#include "cli/options.h"

/* All of standard input; the caller frees *bytes with free(). Prints a message on failure. */
fp_status fp_cli_read_input(char **bytes, size_t *size);

#endif
