/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_eval.c: fistapruner eval MODEL --text FILE [--reference DENSE], or --task NAME=FILE… */
#include "cli/commands.h"
#include "cli/output_file.h"
#include "cli/result.h"

#include <errno.h>
#include <string.h>

static void render_end(const json_t *result)
{
	char bytes[32];
	fp_cli_format_bytes(bytes, fp_cli_number_at(result, "peak_memory_bytes"));
	printf("took        %.1f s, %s at most, on %s\n", fp_cli_number_at(result, "seconds"), bytes,
		   fp_cli_text_at(result, "device"));
}

/* The model, and how its weights are stored if they were decoded. */
static void render_model(const json_t *result)
{
	printf("model       %s (%s)\n", fp_cli_text_at(result, "model"), fp_cli_text_at(result, "architecture"));
	if (json_object_get(result, "stored_as"))
		printf("stored as   %s\n", fp_cli_text_at(result, "stored_as"));
}

static void render_divergence(const json_t *result)
{
	printf("reference   %s: perplexity %.4f, ratio %.4f\n", fp_cli_text_at(result, "reference"),
		   fp_cli_number_at(result, "reference_perplexity"), fp_cli_number_at(result, "perplexity_ratio"));
	printf("KL          %.5f ± %.5f per token; median %.5f, 99th percentile %.5f\n", fp_cli_number_at(result, "kl"),
		   fp_cli_number_at(result, "kl_stderr"), fp_cli_number_at(result, "kl_median"),
		   fp_cli_number_at(result, "kl_p99"));
	printf("same top 1  %.2f%%\n", 100 * fp_cli_number_at(result, "top1"));
}

static void render(const json_t *result, const fp_cli_options *options)
{
	(void)options;
	render_model(result);
	printf("text        %s\n", fp_cli_text_at(result, "text"));
	printf("protocol    %s: %.0f windows of %.0f tokens\n", fp_cli_text_at(result, "protocol"),
		   fp_cli_number_at(result, "windows"), fp_cli_number_at(result, "sequence_length"));
	printf("perplexity  %.4f\n", fp_cli_number_at(result, "perplexity"));
	if (json_object_get(result, "reference"))
		render_divergence(result);
	render_end(result);
}

static void render_tasks(const json_t *result, const fp_cli_options *options)
{
	(void)options;
	static const fp_cli_column columns[] = {
		{"name", "task", NULL, 0, false},
		{"samples", "samples", "%.0f", 0, false},
		{"acc", "acc", "%.4f", 0, false},
		{"acc_stderr", "stderr", "%.4f", 0, false},
		{"acc_norm", "acc_norm", "%.4f", 0, false},
		{"acc_norm_stderr", "stderr", "%.4f", 0, false},
		{"perplexity", "perplexity", "%.4f", 0, false},
		{"truncated", "truncated", "%.0f", 0, false},
	};
	render_model(result);
	render_end(result);
	printf("\n");
	fp_cli_print_table(json_object_get(result, "tasks"), columns, sizeof columns / sizeof columns[0]);
}

static void write_line(void *data, const char *line)
{
	fprintf(data, "%s\n", line);
}

static fp_status evaluate_tasks(fp_context *ctx, const fp_cli_options *options)
{
	FILE *samples = NULL;
	fp_status checked = fp_cli_output_check(options, "--samples-file", options->metrics);
	if (checked != FP_OK)
		return checked;
	if (options->metrics) {
		samples = fopen(options->metrics, "w");
		if (!samples)
			return fp_cli_output_failed("--samples-file", options->metrics, errno);
	}
	const fp_tasks_request request = {
		.model = options->operands[0],
		.tasks = options->tasks,
		.task_count = options->task_count,
		.sampled = samples ? write_line : NULL,
		.sampled_data = samples,
	};
	char *json = NULL;
	fp_status status = fp_evaluate_tasks(&json, ctx, &request, options->settings);
	if (status != FP_OK)
		fp_cli_failed(ctx, status);
	if (samples && (ferror(samples) | fclose(samples)) != 0 && status == FP_OK)
		status = fp_cli_output_failed("--samples-file", options->metrics, errno);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, render_tasks);
	fp_text_free(json);
	return status;
}

fp_status fp_cli_eval(fp_context *ctx, const fp_cli_options *options)
{
	if (!options->text && options->task_count == 0)
		return fp_cli_error(FP_ERROR_USAGE, "eval needs a text or a task: --text FILE, or --task NAME=FILE");
	if (options->text && options->task_count > 0)
		return fp_cli_error(FP_ERROR_USAGE, "--text and --task are different measurements: give one at a time");
	if (options->reference && options->task_count > 0)
		return fp_cli_error(FP_ERROR_USAGE, "--reference works only with --text");
	if (options->task_count > 0)
		return evaluate_tasks(ctx, options);
	if (options->metrics)
		return fp_cli_error(FP_ERROR_USAGE, "--samples-file works only with --task");
	char *json = NULL;
	fp_status status =
		fp_evaluate_against(&json, ctx, options->operands[0], options->reference, options->text, options->settings);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, render);
	else
		fp_cli_failed(ctx, status);
	fp_text_free(json);
	return status;
}
