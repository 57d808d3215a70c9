/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hidden_error.h: how far the hidden states of a pruned model are from the dense model's behind each layer. The
 * definition is the same for every method:
 *
 *     error = √( mean over tokens of ‖h* − h‖²/‖h‖² )
 *
 * h: the dense model's hidden state of a token, h*: the pruned model's. The mean over tokens of relative errors gives no
 * weight to the few tokens whose hidden states are a thousand times larger than others.
 */
#ifndef FP_EVALUATION_HIDDEN_ERROR_H
#define FP_EVALUATION_HIDDEN_ERROR_H

#include "model/model.h"
#include "text/windows.h"

typedef struct fp_hidden_error_task {
	fp_model *model;           /* dense */
	const fp_overlay *overlay; /* the pruned tensors of all layers; NULL: layer_overlay() gives them */
	/* *out ← the pruned tensors of one layer, freed by the caller; *out NULL: the layer is not pruned. */
	fp_status (*layer_overlay)(void *data, int64_t layer, fp_overlay **out);
	void *data;
	const fp_windows *windows; /* a few of the first are used */
} fp_hidden_error_task;

/* errors: one for each layer of the model. */
fp_status fp_hidden_errors(double *errors, const fp_hidden_error_task *task);

#endif
