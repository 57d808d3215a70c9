/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_eval.c: fistapruner eval MODEL --text FILE */
#include "cli/commands.h"
#include "cli/result.h"

static void render(const json_t *result)
{
	char bytes[32];
	fp_cli_format_bytes(bytes, fp_cli_number_at(result, "peak_memory_bytes"));
	printf("model       %s (%s)\n", fp_cli_text_at(result, "model"), fp_cli_text_at(result, "architecture"));
	printf("text        %s\n", fp_cli_text_at(result, "text"));
	printf("protocol    %s: %.0f windows of %.0f tokens\n", fp_cli_text_at(result, "protocol"),
		   fp_cli_number_at(result, "windows"), fp_cli_number_at(result, "sequence_length"));
	printf("perplexity  %.4f\n", fp_cli_number_at(result, "perplexity"));
	printf("took        %.1f s, %s at most, on %s\n", fp_cli_number_at(result, "seconds"), bytes,
		   fp_cli_text_at(result, "device"));
}

fp_status fp_cli_eval(fp_context *ctx, const fp_cli_options *options)
{
	if (!options->text)
		return fp_cli_error(FP_ERROR_USAGE, "eval needs a text: --text FILE");
	char *json = NULL;
	fp_status status = fp_evaluate(&json, ctx, options->operands[0], options->text, options->settings);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, render);
	else
		fp_cli_failed(ctx, status);
	fp_text_free(json);
	return status;
}
