/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c: fp_compare() and fp_report_page() of the public interface. */
#include "api/own_calibration.h"
#include "api/result_text.h"
#include "comparison/comparison.h"
#include "report/page.h"

#include <fistapruner/fistapruner.h>

fp_status fp_compare(char **json, fp_context *ctx, const fp_compare_request *request, const fp_settings *settings)
{
	bool own;
	fp_status status = fp_own_calibration_asked(&own, ctx, request->calibration, request->calibration_count);
	const fp_comparison_task task = {
		.model = request->model,
		.calibration = request->calibration,
		.calibration_count = own ? 0 : request->calibration_count,
		.text = request->text,
		.lists = {.recipe = request->recipe,
				  .methods = request->methods,
				  .presets = request->presets,
				  .corrections = request->corrections,
				  .patterns = request->patterns,
				  .samples = request->samples,
				  .seeds = request->seeds},
		.journal = request->journal,
		.settings = settings,
	};
	json_t *document = NULL;
	*json = NULL;
	if (!request->text)
		return fp_fail(ctx, FP_ERROR_USAGE, "a text to score is needed: --text FILE");
	if (status == FP_OK)
		status = fp_comparison_run(&document, ctx, &task);
	return status == FP_OK ? fp_result_text(json, ctx, document) : status;
}

fp_status fp_report_page(char **html, fp_context *ctx, const char *json)
{
	json_error_t error;
	*html = NULL;
	json_t *document = json_loads(json, 0, &error);
	if (!document)
		return fp_fail(ctx, FP_ERROR_INPUT, "the result is not JSON: line %d: %s", error.line, error.text);
	fp_status status = fp_page_write(html, ctx, document);
	json_decref(document);
	return status;
}
