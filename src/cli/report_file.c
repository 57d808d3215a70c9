/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/report_file.h"

#include "cli/output_file.h"

#include <errno.h>

fp_status fp_cli_report_check(const fp_cli_options *options)
{
	return fp_cli_output_check(options, "--report", options->report);
}

fp_status fp_cli_report_write(fp_context *ctx, const fp_cli_options *options, const char *json)
{
	char *html = NULL;
	if (!options->report)
		return FP_OK;
	fp_status status = fp_report_page(&html, ctx, json);
	if (status != FP_OK)
		return fp_cli_failed(ctx, status);
	errno = 0;
	FILE *file = fopen(options->report, "w");
	bool good = file && fputs(html, file) >= 0;
	if (file)
		good = fclose(file) == 0 && good;
	fp_text_free(html);
	return good ? FP_OK : fp_cli_output_failed("--report", options->report, errno);
}
