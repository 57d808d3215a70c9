/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_behind.h: writes a finished operator while the next one is solved. Two spaces take turns: one is filled while
 * the other is on its way to the file. A failure comes back with the next call.
 */
#ifndef FP_RUN_WRITE_BEHIND_H
#define FP_RUN_WRITE_BEHIND_H

#include "backend/backend.h"
#include "checkpoint/writer.h"

typedef struct fp_write_behind fp_write_behind;

/* writer NULL: nothing is written, but the spaces are there, such that `be` (borrowed) reaches them by itself where it
 * can. Freed with fp_write_behind_free(). */
fp_status fp_write_behind_new(fp_write_behind **out, fp_backend *be, fp_writer *writer);
/* *out ← the free space, at least `bytes` large; it stays the same until fp_write_behind_put(), but for a call that
 * asks for more. */
fp_status fp_write_behind_space(fp_write_behind *behind, int64_t bytes, char **out);
/* Hands the free space over as the bytes of `tensor`; waits while the one before is still being written. */
fp_status fp_write_behind_put(fp_write_behind *behind, const fp_tensor_info *tensor);
/* Has `work` done behind what was put so far; failures go to its context, which is not the caller's. When the call
 * fails the work was not begun. */
typedef fp_status (*fp_behind_work)(void *data, fp_context *ctx);
fp_status fp_write_behind_call(fp_write_behind *behind, fp_behind_work work, void *data);
/* Waits for everything to be written and says how that went. */
fp_status fp_write_behind_finish(fp_write_behind *behind);
void fp_write_behind_free(fp_write_behind *behind); /* NULL is allowed */

#endif
