/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: the result of a run as JSON, for `prune --json`, pruning_report.json and the lines of --metrics. */
#ifndef FP_RUN_REPORT_H
#define FP_RUN_REPORT_H

#include "run/prune_model.h"
#include <jansson.h>

/* New references; NULL if memory is exhausted. */
json_t *fp_report_operator(const fp_operator_result *result, bool with_times);
json_t *fp_report_settings(const fp_settings *settings, fp_context *ctx);
/* The format of the pruned operators' weights, and what zeros are worth in it; NULL also if they are not quantised. */
json_t *fp_report_quantised(const fp_settings *settings);
/* Without times it is the content of pruning_report.json, the same bytes in every run. */
json_t *fp_report_result(const fp_prune_task *task, const fp_prune_result *result, const char *model, bool with_times);

#endif
