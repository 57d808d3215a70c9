/* SPDX-License-Identifier: Apache-2.0 */
/* run_identity.h: what the bytes of a pruned model depend on, as a JSON document that two runs can be compared by. */
#ifndef FP_RUN_RUN_IDENTITY_H
#define FP_RUN_RUN_IDENTITY_H

#include "run/prune_model.h"
#include <jansson.h>

/* A new reference, or NULL where there is no memory. */
json_t *fp_run_identity(const fp_prune_task *task);
/* Fails, naming what differs, when a run with `now` cannot go on with what one with `then` began. What may change the
 * last bits only (threads, memory, the processor) is a warning. `where` names the earlier run. */
fp_status fp_run_identity_compare(fp_context *ctx, const json_t *then, const json_t *now, const char *where);
/* The tokens of all windows, spelled; for reports. */
void fp_windows_digest(char *out, size_t size, const fp_windows *windows);

#endif
