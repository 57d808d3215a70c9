/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: the commands in main.c's table, one file each. A command prints its own errors on stderr. */
#ifndef FP_CLI_COMMANDS_H
#define FP_CLI_COMMANDS_H

#include "cli/options.h"

fp_status fp_cli_prune(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_distill(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_eval(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_compare(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_inspect(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_tokenize(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_generate(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_pack(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_unpack(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_bench(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_demo(fp_context *ctx, const fp_cli_options *options);
fp_status fp_cli_show_help(fp_context *ctx, const fp_cli_options *options);

#endif
