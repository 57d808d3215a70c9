/* SPDX-License-Identifier: Apache-2.0 */
/* prune_result.h: what prune prints at its end: the result by kind of operator, the worst operators, the totals, and
 * the commands to go on with. */
#ifndef FP_CLI_PRUNE_RESULT_H
#define FP_CLI_PRUNE_RESULT_H

#include "cli/result.h"

void fp_cli_prune_render(const json_t *result, const fp_cli_options *options);
/* The same for a dry run. */
void fp_cli_plan_render(const json_t *result, const fp_cli_options *options);

#endif
