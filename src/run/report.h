/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: the result of a prune as JSON: the document of `prune --json`, pruning_report.json, a line of --metrics. */
#ifndef FP_RUN_REPORT_H
#define FP_RUN_REPORT_H

#include "run/prune_model.h"
#include <jansson.h>

/* New references; NULL if there is no memory. */
json_t *fp_report_operator(const fp_operator_result *result, bool with_times);
json_t *fp_report_settings(const fp_settings *settings, fp_context *ctx);
/* Without times it is what pruning_report.json holds: the same bytes for every run. */
json_t *fp_report_result(const fp_prune_task *task, const fp_prune_result *result, const char *model, bool with_times);

#endif
