/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_distill.c: fistapruner distill MODEL --reference DENSE -o DIR */
#include "cli/commands.h"
#include "cli/result.h"

static void render(const json_t *result, const fp_cli_options *options)
{
	char bytes[32];
	double on_device = fp_cli_number_at(result, "peak_device_memory_bytes");
	(void)options;
	fp_cli_format_bytes(bytes, fp_cli_number_at(result, "peak_memory_bytes"));
	printf("output  %s\n", fp_cli_text_at(result, "output"));
	printf("KL      %.5f → %.5f per token, on %.0f windows of the text that were held out\n",
		   fp_cli_number_at(result, "kl_before"), fp_cli_number_at(result, "kl_after"),
		   fp_cli_number_at(result, "held_out_windows"));
	if (fp_cli_number_at(result, "kept_steps") > 0)
		printf("steps   %.0f of %.0f\n", fp_cli_number_at(result, "kept_steps"), fp_cli_number_at(result, "steps"));
	else
		printf("steps   none was better than the start: the weights are those of %s\n",
			   fp_cli_text_at(result, "model"));
	printf("took    %.1f s on %s\n", fp_cli_number_at(result, "seconds"), fp_cli_text_at(result, "device"));
	printf("memory  %s at most", bytes);
	if (on_device > 0) {
		fp_cli_format_bytes(bytes, on_device);
		printf(", and %s of the device's", bytes);
	}
	putchar('\n');
}

fp_status fp_cli_distill(fp_context *ctx, const fp_cli_options *options)
{
	const fp_distill_request request = {.model = options->operands[0],
										.reference = options->reference,
										.output = options->output,
										.calibration = options->calibration,
										.calibration_count = options->calibration_count};
	char *json = NULL;
	fp_status status = fp_distill(&json, ctx, &request, options->settings);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, render);
	else
		fp_cli_failed(ctx, status);
	fp_text_free(json);
	return status;
}
