/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: a prune as JSON: the document of `prune --json`, pruning_report.json in the output, and a line of
 * --metrics. */
#ifndef FP_RUN_REPORT_H
#define FP_RUN_REPORT_H

#include "run/prune_model.h"
#include <jansson.h>

/* New references; NULL when there is no memory. */
json_t *fp_report_operator(const fp_operator_result *result, bool with_times);
json_t *fp_report_settings(const fp_settings *settings, fp_context *ctx);
/* The part that does not change from one run to the next: what pruning_report.json holds. */
json_t *fp_report_result(const fp_prune_task *task, const fp_prune_result *result, const char *model, bool with_times);

#endif
