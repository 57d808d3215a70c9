/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_behind.h: a thread that writes finished tensors while the next ones are computed. The caller
 * fills one buffer while the thread writes others, in their order. There are two buffers, for devices with enough memory up
 * to eight. A caller that is faster than the disk waits in fp_write_behind_space().
 *
 * A failure of the thread is returned by the next call, with its message in the caller's context. Nothing more is
 * written after it.
 */
#ifndef FP_RUN_WRITE_BEHIND_H
#define FP_RUN_WRITE_BEHIND_H

#include "backend/backend.h"
#include "checkpoint/writer.h"

typedef struct fp_write_behind fp_write_behind;

/* `be` and `writer` are borrowed; failures are reported to be->ctx. Without a writer (NULL) nothing is written, but the
 * buffers can be used. If `be` downloads asynchronously, they are pinned memory. Freed with fp_write_behind_free(). */
fp_status fp_write_behind_new(fp_write_behind **out, fp_backend *be, fp_writer *writer);
/* *out ← the caller's buffer, of at least `bytes`. It remains the same until fp_write_behind_put(), unless a later call
 * asks for more: then its contents may be lost. */
fp_status fp_write_behind_space(fp_write_behind *behind, int64_t bytes, char **out);
/* Hands the caller's buffer over as the new bytes of `tensor`. */
fp_status fp_write_behind_put(fp_write_behind *behind, const fp_tensor_info *tensor);
/* The same for a tensor that is quantised, with the numbers of its grid (copied), `groups` of them in all. */
fp_status fp_write_behind_quantise(fp_write_behind *behind, const fp_tensor_info *tensor, fp_grid_numbers numbers,
								   int64_t groups);
/* Has the thread call work(data, ctx) after everything that was put so far, unless that failed; needs a writer. `work`
 * reports failures to its ctx, which is not the caller's. release(data) is called once in any case, also if this call
 * fails; NULL: nothing is to be freed. */
typedef fp_status (*fp_behind_work)(void *data, fp_context *ctx);
fp_status fp_write_behind_call(fp_write_behind *behind, fp_behind_work work, void (*release)(void *data), void *data);
/* Waits until everything is written, and returns the failure if there was one. */
fp_status fp_write_behind_finish(fp_write_behind *behind);
void fp_write_behind_free(fp_write_behind *behind); /* waits for the thread; NULL is allowed */

#endif
