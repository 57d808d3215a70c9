/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_prune.c: fistapruner prune MODEL -o DIR --calibration FILE... */
#include "cli/commands.h"
#include "cli/output_file.h"
#include "cli/prune_result.h"
#include "cli/report_file.h"

#include <errno.h>
#include <string.h>

/* The file of --metrics. It is opened with the first line, since only one of several ranks writes. */
typedef struct metrics_file {
	const char *path;
	FILE *file;
	bool failed;
	int error; /* of errno */
} metrics_file;

static void write_line(void *data, const char *line)
{
	metrics_file *metrics = data;
	if (metrics->failed)
		return;
	errno = 0;
	if (!metrics->file)
		metrics->file = fopen(metrics->path, "w");
	metrics->failed = !metrics->file || fprintf(metrics->file, "%s\n", line) < 0 ||
					  fflush(metrics->file) != 0; /* so that it can be followed during the run */
	metrics->error = errno;
}

/* Prints the command that continues a run with finished layers. */
static void print_resume(const fp_cli_options *options, int64_t kept)
{
	fprintf(stderr, "%lld finished layer%s kept; continue with:\n ", (long long)kept, kept == 1 ? " is" : "s are");
	for (char *const *word = options->words; *word; word++) {
		fputc(' ', stderr);
		fp_cli_print_word(stderr, *word);
		if (word == options->words + 1 && !options->resume) /* after "prune": a "--" ends the flags */
			fputs(" --resume", stderr);
	}
	fputc('\n', stderr);
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
	metrics_file metrics = {.path = options->metrics};
	fp_status status = fp_cli_report_check(options);
	if (status == FP_OK)
		status = fp_cli_output_check(options, "--metrics", options->metrics);
	if (status == FP_OK && options->metrics && options->report && strcmp(options->metrics, options->report) == 0)
		status =
			fp_cli_error(FP_ERROR_USAGE, "--metrics and --report name the same file, %s; give two", options->report);
	if (status != FP_OK)
		return status;
	status = run_prune(ctx, options, &metrics);
	if (metrics.file && fclose(metrics.file) != 0 && !metrics.failed) {
		metrics.failed = true;
		metrics.error = errno;
	}
	if (metrics.failed && status == FP_OK)
		status = fp_cli_output_failed("--metrics", options->metrics, metrics.error);
	return status;
}
