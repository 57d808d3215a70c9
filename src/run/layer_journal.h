/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_journal.h: records which decoder layers of a run are finished, so that a later run can resume it. Files in the
 * writer's directory:
 *
 *     run.json        what the result depends on: the model's files, the tokens of the text, the settings, the device
 *     layer-00007     the results of layer 7 and the list of tensors it replaced; written after these are on disk
 *
 * A record is written under another name, synced and renamed, so that it is complete or absent. Hidden states are not
 * kept: a resumed run recomputes them in one forward pass through the finished layers. That is cheap compared with
 * pruning a layer, and for large models faster than reading them back (128 × 2048 tokens of a 7B model take 4 GiB).
 */
#ifndef FP_RUN_LAYER_JOURNAL_H
#define FP_RUN_LAYER_JOURNAL_H

#include "checkpoint/overlay.h"
#include "run/prune_model.h"
#include "run/write_behind.h"

/* Everything is borrowed. begun: the writer continues an earlier run, whose identity must be the same. */
fp_status fp_layer_journal_open(fp_layer_journal **out, const fp_prune_task *task, bool begun);
void fp_layer_journal_close(fp_layer_journal *journal); /* NULL is allowed */

bool fp_layer_journal_has(const fp_layer_journal *journal, int64_t layer); /* false if journal is NULL */
int64_t fp_layer_journal_count(const fp_layer_journal *journal);
/* Looks for records again: other processes may have written some. */
fp_status fp_layer_journal_refresh(fp_layer_journal *journal);

/* Appends a finished layer's results to `result` and marks its tensors as written. */
fp_status fp_layer_journal_restore(fp_layer_journal *journal, int64_t layer, fp_prune_result *result);
/* *out ← the tensors that a finished layer replaced, read from the output. Freed with fp_overlay_free(). */
fp_status fp_layer_journal_overlay(fp_layer_journal *journal, int64_t layer, fp_overlay **out);

/* Records a layer once everything put into `behind` is on disk: the results from the indices `operators` and `fits` of
 * `result` on, and the replaced tensors. */
fp_status fp_layer_journal_add(fp_layer_journal *journal, fp_write_behind *behind, int64_t layer,
							   const fp_prune_result *result, int64_t operators, int64_t fits,
							   const fp_tensor_info *const *replaced, int64_t replaced_count);

#endif
