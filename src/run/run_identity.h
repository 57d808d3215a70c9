/* SPDX-License-Identifier: Apache-2.0 */
/* run_identity.h: everything that the bytes of a pruned model depend on, as JSON; a run resumes only one with the same. */
#ifndef FP_RUN_RUN_IDENTITY_H
#define FP_RUN_RUN_IDENTITY_H

#include "run/prune_model.h"
#include <jansson.h>

/* A new reference, or NULL if memory is exhausted. */
json_t *fp_run_identity(const fp_prune_task *task);
/* Fails if a run with the identity `now` cannot resume one with `then`, and says what differs. Differences that change at
 * most the last bits (threads, memory, the processor) only cause a warning. where: the directory of the earlier run. */
fp_status fp_run_identity_compare(fp_context *ctx, const json_t *then, const json_t *now, const char *where);
/* out ← a digest of the tokens of all windows, as text; for reports. */
void fp_windows_digest(char *out, size_t size, const fp_windows *windows);

#endif
