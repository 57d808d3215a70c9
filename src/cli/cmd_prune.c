/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_prune.c: fistapruner prune MODEL -o DIR --calibration FILE... */
#include "cli/commands.h"
#include "cli/report_file.h"
#include "cli/result.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static void render_stages(const json_t *stages)
{
	const char *name;
	json_t *seconds;
	json_object_foreach((json_t *)stages, name, seconds)
	{
		if (json_number_value(seconds) >= 0.005) /* what is printed is not all zeros */
			printf("  %-12s%.2f s\n", name, json_number_value(seconds));
	}
}

static void render(const json_t *result, const fp_cli_options *options)
{
	(void)options;
	static const fp_cli_column columns[] = {
		{"name", "operator", NULL, 0, false},          {"sparsity", "zeros", "%.2f%%", 100, false},
		{"relative_error", "error", "%.5f", 1, false}, {"lambda", "lambda", "%.3g", 1, true},
		{"iterations", "steps", "%.0f", 1, true},      {"search_steps", "search", "%.0f", 1, true},
		{"seconds", "seconds", "%.2f", 1, false},
	};
	char bytes[32];
	const json_t *operators = json_object_get(result, "operators");
	if (json_array_size(operators) > 0) {
		fp_cli_print_table(operators, columns, sizeof columns / sizeof columns[0]);
		putchar('\n');
	}
	printf("output          %s\n", fp_cli_text_at(result, "output"));
	printf("pattern         %s by %s", fp_cli_text_at(result, "pattern"), fp_cli_text_at(result, "method"));
	if (json_object_get(result, "preset"))
		printf(", preset %s", fp_cli_text_at(result, "preset"));
	printf("\nsparsity        %.4f%%\n", 100 * fp_cli_number_at(result, "sparsity"));
	printf("relative error  %.5f\n", fp_cli_number_at(result, "relative_error"));
	if (json_object_get(result, "biases_updated"))
		printf("biases          %.0f updated\n", fp_cli_number_at(result, "biases_updated"));
	if (!json_object_get(result, "seconds")) /* found finished */
		return;
	fp_cli_format_bytes(bytes, fp_cli_number_at(result, "peak_memory_bytes"));
	printf("took            %.1f s, %s at most\n", fp_cli_number_at(result, "seconds"), bytes);
	render_stages(json_object_get(result, "stages"));
}

/* What a dry run says differs from run to run of the program's life; every scalar is printed under its own name. */
static void render_plan(const json_t *result, const fp_cli_options *options)
{
	(void)options;
	const char *name;
	json_t *value;
	json_object_foreach((json_t *)result, name, value)
	{
		if (json_is_string(value))
			printf("%-24s%s\n", name, json_string_value(value));
		else if (json_is_integer(value))
			printf("%-24s%lld\n", name, (long long)json_integer_value(value));
		else if (json_is_real(value))
			printf("%-24s%g\n", name, json_real_value(value));
	}
}

/* Where --metrics goes. Opened by the first line: of several ranks only one writes. */
typedef struct metrics_file {
	const char *path;
	FILE *file;
	bool failed;
} metrics_file;

static void write_line(void *data, const char *line)
{
	metrics_file *metrics = data;
	if (!metrics->file && !metrics->failed)
		metrics->file = fopen(metrics->path, "w");
	metrics->failed = metrics->failed || !metrics->file || fprintf(metrics->file, "%s\n", line) < 0 ||
					  fflush(metrics->file) != 0; /* people follow it while the run goes on */
}

/* One word as a shell reads it. */
static void print_quoted(const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:=,%@";
	if (*word && word[strspn(word, plain)] == '\0') {
		fputs(word, stderr);
		return;
	}
	fputc('\'', stderr);
	for (; *word; word++)
		fputs(*word == '\'' ? "'\\''" : (char[]){*word, '\0'}, stderr);
	fputc('\'', stderr);
}

/* What was finished is not lost: says how to go on. */
static void tell_resume(const fp_cli_options *options, int64_t kept)
{
	fprintf(stderr, "%lld finished layer%s kept; go on with:\n ", (long long)kept, kept == 1 ? " is" : "s are");
	for (char *const *word = options->words; *word; word++) {
		fputc(' ', stderr);
		print_quoted(*word);
	}
	fputs(options->resume ? "\n" : " --resume\n", stderr);
}

static fp_status run_prune(fp_context *ctx, const fp_cli_options *options, metrics_file *metrics)
{
	int64_t kept = 0;
	const fp_prune_request request = {
		.model = options->operands[0],
		.output = options->output,
		.calibration = options->calibration,
		.calibration_count = options->calibration_count,
		.dry_run = options->dry_run,
		.resume = options->resume,
		.ranks = 1,
		.metrics = metrics->path ? write_line : NULL,
		.metrics_data = metrics,
		.kept = &kept,
	};
	char *json = NULL;
	fp_status status = fp_prune(&json, ctx, &request, options->settings);
	if (status != FP_OK && *fp_context_message(ctx)) /* else another rank says it */
		fp_cli_failed(ctx, status);
	if (status != FP_OK && kept > 0)
		tell_resume(options, kept);
	if (status == FP_OK && !json) /* another rank has the result */
		return FP_OK;
	if (status == FP_OK && !options->dry_run)
		status = fp_cli_report_write(ctx, options, json);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, options->dry_run ? render_plan : render);
	fp_text_free(json);
	return status;
}

fp_status fp_cli_prune(fp_context *ctx, const fp_cli_options *options)
{
	if (!options->output && !options->dry_run)
		return fp_cli_error(FP_ERROR_USAGE, "prune needs a place for the result: -o DIR (or --dry-run)");
	if (fp_cli_report_check(options) != FP_OK)
		return FP_ERROR_IO;
	metrics_file metrics = {.path = options->metrics};
	FILE *check = options->metrics ? fopen(options->metrics, "a") : NULL;
	if (options->metrics && !check)
		return fp_cli_error(FP_ERROR_IO, "--metrics %s: %s", options->metrics, strerror(errno));
	if (check)
		fclose(check);
	fp_status status = run_prune(ctx, options, &metrics);
	if (metrics.file)
		metrics.failed |= fclose(metrics.file) != 0;
	if (metrics.failed && status == FP_OK)
		status = fp_cli_error(FP_ERROR_IO, "--metrics %s: could not be written", options->metrics);
	return status;
}
