/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_inspect.c: fistapruner inspect MODEL [--pattern P] */
#include "cli/commands.h"
#include "cli/result.h"

static void render(const json_t *result, const fp_cli_options *options)
{
	(void)options;
	static const fp_cli_column columns[] = {
		{"name", "tensor", NULL, 0, false},
		{"shape", "shape", NULL, 0, false},
		{"dtype", "type", NULL, 0, false},
		{"sparsity", "zeros", "%.2f%%", 100, false},
		{"negative_zeros", "-0.0", "%.0f", 1, false},
		{"violations", "violations", "%.0f", 1, false},
	};
	char count[32];
	fp_cli_print_table(json_object_get(result, "tensors"), columns, sizeof columns / sizeof columns[0]);
	fp_cli_format_count(count, fp_cli_number_at(result, "parameters"));
	printf("\nmodel         %s\n", fp_cli_text_at(result, "model"));
	printf("architecture  %s, %.0f layers\n", fp_cli_text_at(result, "architecture"),
		   fp_cli_number_at(result, "layers"));
	printf("parameters    %s, %s\n", count, fp_cli_text_at(result, "dtype"));
	printf("sparsity      %.4f%% of the linear operators, %.4f%% of all\n", 100 * fp_cli_number_at(result, "sparsity"),
		   100 * fp_cli_number_at(result, "total_sparsity"));
	if (json_object_get(result, "note"))
		printf("note          %s\n", fp_cli_text_at(result, "note"));
	if (json_is_string(json_object_get(result, "pattern"))) {
		double violations = fp_cli_number_at(result, "violations");
		printf("pattern       %s %s", fp_cli_text_at(result, "pattern"), violations > 0 ? "is broken" : "holds");
		if (violations > 0)
			printf(" %.0f times", violations);
		putchar('\n');
	}
}

fp_status fp_cli_inspect(fp_context *ctx, const fp_cli_options *options)
{
	char *json = NULL;
	fp_status status = fp_inspect(&json, ctx, options->operands[0], options->pattern);
	/* A check that fails still has its document. */
	if (json) {
		fp_status printed = fp_cli_print_result(options, json, render);
		if (status == FP_OK)
			status = printed;
		else
			fp_cli_failed(ctx, status);
	} else if (status != FP_OK) {
		fp_cli_failed(ctx, status);
	}
	fp_text_free(json);
	return status;
}
