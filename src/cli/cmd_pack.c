/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_pack.c: fistapruner pack MODEL -o DIR, and unpack. */
#include "cli/commands.h"
#include "cli/result.h"

static void render(const json_t *result, const fp_cli_options *options)
{
	char before[32], after[32];
	double mask = fp_cli_number_at(result, "by_mask"), pairs = fp_cli_number_at(result, "as_2_4");
	double matrices = fp_cli_number_at(result, "matrix_bytes");
	(void)options;
	printf("output    %s\n", fp_cli_text_at(result, "output"));
	printf("packed    %.0f of %.0f tensors: %.0f as 2:4, %.0f by mask\n", mask + pairs,
		   fp_cli_number_at(result, "tensors"), pairs, mask);
	if (matrices > 0) {
		fp_cli_format_bytes(before, matrices);
		fp_cli_format_bytes(after, fp_cli_number_at(result, "packed_bytes"));
		printf("matrices  %s packed, %s unpacked: %.4f\n", after, before,
			   fp_cli_number_at(result, "packed_bytes") / matrices);
	}
	fp_cli_format_bytes(before, fp_cli_number_at(result, "unpacked_total"));
	fp_cli_format_bytes(after, fp_cli_number_at(result, "packed_total"));
	printf("files     %s packed, %s unpacked: %.4f\n", after, before,
		   fp_cli_number_at(result, "packed_total") / fp_cli_number_at(result, "unpacked_total"));
	printf("took      %.1f s\n", fp_cli_number_at(result, "seconds"));
}

typedef fp_status pack_function(char **json, fp_context *ctx, const char *model, const char *output);

static fp_status run(fp_context *ctx, const fp_cli_options *options, pack_function *function)
{
	char *json = NULL;
	fp_status status = function(&json, ctx, options->operands[0], options->output);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, render);
	else
		fp_cli_failed(ctx, status);
	fp_text_free(json);
	return status;
}

fp_status fp_cli_pack(fp_context *ctx, const fp_cli_options *options)
{
	return run(ctx, options, fp_pack);
}

fp_status fp_cli_unpack(fp_context *ctx, const fp_cli_options *options)
{
	return run(ctx, options, fp_unpack);
}
