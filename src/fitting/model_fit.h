/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_fit.h: fits the remaining weights and the biases of all layers of a pruned model at once, so that its predictions
 * approach the dense model's. With the softmax p of the dense model's logits and q of the pruned model's:
 *
 *     loss = mean over tokens of KL(p‖q)
 *
 * Zeros of weights stay zeros. All layers of the pruned model are in memory, with the moments of Adam (fitted_layers.h); of
 * the dense model, one layer at a time, and then only its hidden states and its head.
 */
#ifndef FP_FITTING_MODEL_FIT_H
#define FP_FITTING_MODEL_FIT_H

#include "base/settings.h"
#include "fitting/fitted_layers.h"
#include "text/windows.h"

/* What waits in the host's memory. The result is the same. */
typedef enum fp_offload {
	FP_OFFLOAD_NOTHING,
	FP_OFFLOAD_LAYERS,
	FP_OFFLOAD_STATES, /* and the dense model's hidden states of all windows */
	FP_OFFLOAD_COUNT
} fp_offload;

typedef struct fp_model_fit_task {
	fp_model *pruned, *dense; /* on one device, with one vocabulary */
	const fp_settings *settings;
	const fp_windows *windows; /* the first `held_out` of them judge the fit and have no part in it */
	int64_t held_out;          /* 1 or more, and fewer than there are */
	fp_offload offload;
} fp_model_fit_task;

typedef struct fp_model_fit_result {
	int64_t steps;      /* up to the point that was kept; 0: no point was better, and the model is unchanged */
	int64_t most_steps; /* of an attempt */
	double kl_before,
		kl_after; /* mean KL of the tokens of the held-out windows, with weights in the checkpoint's types */
} fp_model_fit_result;

/* Fits the model and gives away its layers. Progress stage: "distilling". */
fp_status fp_fit_model(const fp_model_fit_task *task, fp_take_layer take, void *data, fp_model_fit_result *result);
/* *bytes ← what it allocates of the device's memory, for planning. What is offloaded counts if that is the host's: then the
 * layers are read, for their zeros take no room. */
fp_status fp_model_fit_bytes(const fp_model_fit_task *task, int64_t *bytes);

#endif
