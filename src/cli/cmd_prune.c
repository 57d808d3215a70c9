/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_prune.c: fistapruner prune MODEL -o DIR --calibration FILE... */
#include "cli/commands.h"
#include "cli/prune_result.h"
#include "cli/report_file.h"

#include <errno.h>
#include <string.h>

/* The file of --metrics. It is opened with the first line, since only one of several ranks writes. */
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
					  fflush(metrics->file) != 0; /* so that it can be followed during the run */
}

/* Prints the command that continues a run with finished layers. */
static void print_resume(const fp_cli_options *options, int64_t kept)
{
	fprintf(stderr, "%lld finished layer%s kept; continue with:\n ", (long long)kept, kept == 1 ? " is" : "s are");
	for (char *const *word = options->words; *word; word++) {
		fputc(' ', stderr);
		fp_cli_print_word(stderr, *word);
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
		.hidden_errors = options->report != NULL,
		.check = options->check,
	};
	char *json = NULL;
	fp_status status = fp_prune(&json, ctx, &request, options->settings);
	if (status != FP_OK && *fp_context_message(ctx)) /* else another rank prints the message */
		fp_cli_failed(ctx, status);
	if (status != FP_OK && kept > 0)
		print_resume(options, kept);
	if (status == FP_OK && !json) /* another rank has the result */
		return FP_OK;
	if (status == FP_OK && !options->dry_run)
		status = fp_cli_report_write(ctx, options, json);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, options->dry_run ? fp_cli_plan_render : fp_cli_prune_render);
	fp_text_free(json);
	return status;
}

fp_status fp_cli_prune(fp_context *ctx, const fp_cli_options *options)
{
	if (!options->output && !options->dry_run)
		return fp_cli_error(FP_ERROR_USAGE, "prune needs an output directory: -o DIR (or --dry-run)");
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
