/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_basis.h: the basis of a run: which one the settings and the model allow, how it is learned or restored from an
 * earlier run, and what it changes in the output besides the pruned operators.
 */
#ifndef FP_RUN_MODEL_BASIS_H
#define FP_RUN_MODEL_BASIS_H

#include "basis/learn_basis.h"
#include "checkpoint/writer.h"
#include "pruning/selection.h"

/* What `--basis` means for a model. */
typedef struct fp_basis_choice {
	bool local;  /* heads are turned; false: the checkpoint's basis */
	bool stream; /* the residual stream too */
	bool unties; /* the output gets a head of its own */
	fp_basis_freedom freedom;
	fp_tensor_info head;          /* with `stream` */
	char name[FP_HEAD_NAME_SIZE]; /* of the head, if `unties` */
} fp_basis_choice;

/* Reads the setting `basis`. An explicit "full" that the model does not allow becomes "local" with a warning; "auto" also
 * takes "local" where a head of its own would add more than a fixed share to the checkpoint. calibrated: there is text.
 * The log says what was chosen and why. `out` must not be moved: out->head refers to it. */
fp_status fp_basis_choose(fp_basis_choice *out, fp_model *model, const fp_settings *settings, bool calibrated);
/* "none", "local" or "full" */
const char *fp_basis_word(const fp_basis_choice *choice);

/* config.json of an output with a head of its own: with "tie_word_embeddings": false. Freed with free(). */
char *fp_basis_config(const fp_writer *writer);

struct fp_prune_task;
struct fp_run_output;
/* *task->basis ← the learned basis, or that of the run that is resumed, and sets it on the model; nothing if the caller
 * has set one already. *gain ← what was gained. Several ranks learn together if they share windows, else rank 0
 * learns. The model in the new basis is
 * compared with the model as it was: a difference beyond rounding is an error. */
fp_status fp_basis_prepare(const struct fp_prune_task *task, fp_basis_gain *gain);

/* Bytes that the basis holds during the run, and at least while it is learned; 0 without one. */
int64_t fp_basis_bytes(const struct fp_prune_task *task);
int64_t fp_basis_learning_bytes(const struct fp_prune_task *task);
/* Operations of the matrix products of its learning, with so many weights in a layer. */
double fp_basis_flops(const struct fp_prune_task *task, int64_t weights);

/* Writes what the basis changes outside the layers that are pruned: embeddings, final norm, head, config.json, and the
 * other layers. */
fp_status fp_basis_write_rest(const struct fp_prune_task *task, struct fp_run_output *output,
							  const fp_selection *selection);

#endif
