/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/report_file.h"

#include <errno.h>
#include <string.h>

fp_status fp_cli_report_check(const fp_cli_options *options)
{
	if (!options->report)
		return FP_OK;
	FILE *file = fopen(options->report, "a"); /* appends nothing: an old report stays until the new one is written */
	if (!file)
		return fp_cli_error(FP_ERROR_IO, "--report %s: %s", options->report, strerror(errno));
	fclose(file);
	return FP_OK;
}

fp_status fp_cli_report_write(fp_context *ctx, const fp_cli_options *options, const char *json)
{
	char *html = NULL;
	if (!options->report)
		return FP_OK;
	fp_status status = fp_report_page(&html, ctx, json);
	if (status != FP_OK)
		return fp_cli_failed(ctx, status);
	FILE *file = fopen(options->report, "w");
	bool good = file && fputs(html, file) >= 0;
	if (file)
		good = fclose(file) == 0 && good;
	fp_text_free(html);
	return good ? FP_OK : fp_cli_error(FP_ERROR_IO, "--report %s: could not be written", options->report);
}
