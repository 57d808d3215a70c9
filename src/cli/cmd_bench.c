/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bench.c: fistapruner bench [MODEL] */
#include "cli/commands.h"
#include "cli/result.h"

static void print_forms(const json_t *weights)
{
	for (size_t i = 0; i < json_array_size(weights); i++) {
		const json_t *form = json_array_get(weights, i);
		char bytes[32];
		fp_cli_format_bytes(bytes, fp_cli_number_at(form, "bytes"));
		printf("%s%.0f %s, %s", i > 0 ? "; " : "", fp_cli_number_at(form, "operators"), fp_cli_text_at(form, "form"),
			   bytes);
	}
}

static void render(const json_t *result, const fp_cli_options *options)
{
	const json_t *rates = json_object_get(result, "rates");
	(void)options;
	printf("device     %s\n", fp_cli_text_at(result, "device"));
	printf("memory     %.1f GB/s read\n", 1e-9 * fp_cli_number_at(result, "read_bytes_per_second"));
	printf("sgemm      %.1f GFLOP/s\n", 1e-9 * fp_cli_number_at(result, "sgemm_flops"));
	if (!rates)
		return;
	printf("model      %s (%s)\n", fp_cli_text_at(result, "model"), fp_cli_text_at(result, "architecture"));
	printf("measured   a prompt of %.0f tokens through the whole model; then %.0f tokens one at a time, "
		   "all of the model, the median\n",
		   fp_cli_number_at(result, "prompt_tokens"), fp_cli_number_at(result, "tokens"));
	for (size_t i = 0; i < json_array_size(rates); i++) {
		const json_t *rate = json_array_get(rates, i);
		printf("\n%s: ", fp_cli_text_at(rate, "held"));
		print_forms(json_object_get(rate, "weights"));
		printf("\n  prompt   %10.1f tokens/s, %.2f of sgemm\n", fp_cli_number_at(rate, "prompt_tokens_per_second"),
			   fp_cli_number_at(rate, "sgemm_share"));
		printf("  text     %10.1f tokens/s, weights read at %.2f of the memory's speed\n",
			   fp_cli_number_at(rate, "tokens_per_second"), fp_cli_number_at(rate, "bandwidth_share"));
	}
	if (json_object_get(result, "speedup"))
		printf("\nwithout zeros %.2f times as fast as dense\n", fp_cli_number_at(result, "speedup"));
	else
		puts("\nno operator has enough zeros to be held without them");
	if (json_object_get(result, "note"))
		printf("note       %s\n", fp_cli_text_at(result, "note"));
}

fp_status fp_cli_bench(fp_context *ctx, const fp_cli_options *options)
{
	char *json = NULL;
	if (options->operand_count > 1)
		return fp_cli_error(FP_ERROR_USAGE, "unexpected argument '%s': bench takes one MODEL or none",
							options->operands[1]);
	fp_status status =
		fp_bench(&json, ctx, options->operand_count > 0 ? options->operands[0] : NULL, options->settings);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, render);
	else
		fp_cli_failed(ctx, status);
	fp_text_free(json);
	return status;
}
