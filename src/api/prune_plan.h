/* SPDX-License-Identifier: Apache-2.0 */
/* prune_plan.h: what --dry-run prints. */
#ifndef FP_API_PRUNE_PLAN_H
#define FP_API_PRUNE_PLAN_H

#include "run/prune_model.h"

/* *json ← the estimates of a run and the operators that it would prune; freed with fp_text_free(). */
fp_status fp_prune_plan_text(char **json, const fp_prune_task *task, const char *model);

#endif
