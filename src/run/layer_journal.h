/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_journal.h: which decoder layers of a run are finished, so that a run that was killed goes on. In the writer's
 * folder:
 *     run.json        what the result depends on: the model's files, the tokens of the text, the settings, the device
 *     layer-00007     the results of layer 7 and which tensors it replaced; written once these are on the disk
 * A record counts when it is whole; it is written beside its name, synced and renamed. Hidden states are not kept:
 * taking them through the finished layers again costs one forward pass, which is little beside what pruning a layer
 * costs and, for models worth resuming, less than reading them back (a stream of 128 × 2048 tokens of a 7B model has
 * 4 GiB).
 */
#ifndef FP_RUN_LAYER_JOURNAL_H
#define FP_RUN_LAYER_JOURNAL_H

#include "checkpoint/overlay.h"
#include "run/prune_model.h"
#include "run/write_behind.h"

/* Everything is borrowed. begun: the writer goes on with an earlier run, which must have been the same one. */
fp_status fp_layer_journal_open(fp_layer_journal **out, const fp_prune_task *task, bool begun);
void fp_layer_journal_close(fp_layer_journal *journal); /* NULL is allowed */

bool fp_layer_journal_has(const fp_layer_journal *journal, int64_t layer); /* a NULL journal has none */
int64_t fp_layer_journal_count(const fp_layer_journal *journal);
/* Looks again for records: those of other processes. */
fp_status fp_layer_journal_refresh(fp_layer_journal *journal);

/* A finished layer's results to the end of `result`'s, and its tensors are marked as written. */
fp_status fp_layer_journal_restore(fp_layer_journal *journal, int64_t layer, fp_prune_result *result);
/* *out ← the tensors that a finished layer replaced, as they are in the output. Freed with fp_overlay_free(). */
fp_status fp_layer_journal_overlay(fp_layer_journal *journal, int64_t layer, fp_overlay **out);

/* Records a layer behind what was put into `behind`: results from `operators` and `fits` on (indices into `result`) and
 * the replaced tensors. */
fp_status fp_layer_journal_add(fp_layer_journal *journal, fp_write_behind *behind, int64_t layer,
							   const fp_prune_result *result, int64_t operators, int64_t fits,
							   const fp_tensor_info *const *replaced, int64_t replaced_count);

#endif
