/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_compare.c: fistapruner compare MODEL --text FILE */
#include "cli/commands.h"
#include "cli/report_file.h"
#include "cli/result.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *basis_of(const json_t *row)
{
	return json_string_value(json_object_get(json_object_get(row, "basis"), "kind"));
}

static bool has_basis(const json_t *rows)
{
	bool any = false;
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const char *basis = basis_of(json_array_get(rows, i));
		any = any || (basis && strcmp(basis, "none") != 0);
	}
	return any;
}

/* The rows under the names that the report has too, with the word for their basis if some row has one. The caller
 * releases them. */
static json_t *with_titles(const json_t *rows)
{
	json_t *copies = json_array();
	bool bases = has_basis(rows);
	for (size_t i = 0; i < json_array_size(rows); i++) {
		json_t *row = json_copy(json_array_get(rows, i));
		const char *preset = json_string_value(json_object_get(row, "preset"));
		json_object_set_new(row, "title", json_string(fp_method_title(fp_cli_text_at(row, "method"), preset)));
		const char *basis = basis_of(row);
		if (bases && basis)
			json_object_set_new(row, "basis", json_string(basis));
		else
			json_object_del(row, "basis");
		json_array_append_new(copies, row);
	}
	return copies;
}

static void render(const json_t *result, const fp_cli_options *options)
{
	(void)options;
	static const fp_cli_column columns[] = {
		{"title", "method", NULL, 0, false},
		{"correction", "correction", NULL, 0, false},
		{"basis", "basis", NULL, 0, false},
		{"pattern", "pattern", NULL, 0, false},
		{"samples", "samples", "%.0f", 1, false},
		{"seed", "seed", "%.0f", 1, false},
		{"perplexity", "perplexity", "%.4f", 1, false},
		{"kl", "KL", "%.4f", 1, false},
		{"relative_error", "error", "%.5f", 1, false},
		{"seconds", "seconds", "%.1f", 1, false},
	};
	static const fp_cli_column summary[] = {
		{"title", "method", NULL, 0, false},          {"correction", "correction", NULL, 0, false},
		{"pattern", "pattern", NULL, 0, false},       {"samples", "samples", "%.0f", 1, false},
		{"seeds", "seeds", "%.0f", 1, false},         {"mean", "mean", "%.4f", 1, false},
		{"deviation", "deviation", "%.4f", 1, false},
	};
	json_t *rows = with_titles(json_object_get(result, "rows"));
	json_t *means = with_titles(json_object_get(result, "summary"));
	fp_cli_print_table(rows, columns, sizeof columns / sizeof columns[0]);
	if (json_array_size(means) > 0) {
		putchar('\n');
		fp_cli_print_table(means, summary, sizeof summary / sizeof summary[0]);
	}
	json_decref(rows);
	json_decref(means);
	printf("\nmodel  %s (%s)\n", fp_cli_text_at(result, "model"), fp_cli_text_at(result, "architecture"));
	if (json_object_get(result, "stored_as"))
		printf("       stored as %s\n", fp_cli_text_at(result, "stored_as"));
	if (json_object_get(result, "quantized"))
		printf("       all rows but the dense one with %s\n",
			   fp_cli_text_at(json_object_get(result, "quantized"), "stored_as"));
	printf("text   %s, protocol %s: %.0f windows of %.0f tokens\n", fp_cli_text_at(result, "text"),
		   fp_cli_text_at(result, "protocol"), fp_cli_number_at(result, "windows"),
		   fp_cli_number_at(result, "sequence_length"));
	printf("took   %.1f s on %s", fp_cli_number_at(result, "seconds"), fp_cli_text_at(result, "device"));
	if (fp_cli_number_at(result, "reused") > 0)
		printf("; %.0f of %zu rows are from an earlier run", fp_cli_number_at(result, "reused"),
			   json_array_size(json_object_get(result, "rows")));
	putchar('\n');
}

/* The file that keeps finished rows: in --work, else beside the report, else in the current directory. */
static fp_status choose_journal(char out[static PATH_MAX], const fp_cli_options *options)
{
	int length;
	if (options->work) {
		if (mkdir(options->work, 0777) != 0 && errno != EEXIST)
			return fp_cli_error(FP_ERROR_IO, "--work %s: %s", options->work, strerror(errno));
		length = snprintf(out, PATH_MAX, "%s/compare.jsonl", options->work);
	} else if (options->report) {
		length = snprintf(out, PATH_MAX, "%s.jsonl", options->report);
	} else {
		length = snprintf(out, PATH_MAX, "fistapruner-compare.jsonl");
	}
	if (length >= PATH_MAX)
		return fp_cli_error(FP_ERROR_USAGE, "the name of the journal is too long; give a shorter --work DIR");
	if (!options->quiet)
		fprintf(stderr, "finished rows are kept in %s\n", out);
	return FP_OK;
}

fp_status fp_cli_compare(fp_context *ctx, const fp_cli_options *options)
{
	char journal[PATH_MAX];
	char *json = NULL;
	if (!options->text)
		return fp_cli_error(FP_ERROR_USAGE, "compare needs a text to score: --text FILE");
	fp_status status = fp_cli_report_check(options);
	if (status == FP_OK)
		status = choose_journal(journal, options);
	if (status != FP_OK)
		return status;
	const fp_compare_request request = {
		.model = options->operands[0],
		.calibration = options->calibration,
		.calibration_count = options->calibration_count,
		.text = options->text,
		.recipe = options->recipe,
		.methods = options->methods,
		.presets = options->presets,
		.corrections = options->corrections,
		.patterns = options->patterns,
		.samples = options->samples_list,
		.seeds = options->seeds,
		.journal = journal,
	};
	status = fp_compare(&json, ctx, &request, options->settings);
	if (status != FP_OK)
		fp_cli_failed(ctx, status);
	if (status == FP_OK)
		status = fp_cli_report_write(ctx, options, json);
	if (status == FP_OK)
		status = fp_cli_print_result(options, json, render);
	fp_text_free(json);
	return status;
}
