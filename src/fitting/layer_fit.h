/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_fit.h: with the masks of a layer chosen, fit the weights that stay (and the biases) so that the layer's output,
 * not only each operator's, comes near the dense one.
 */
#ifndef FP_FITTING_LAYER_FIT_H
#define FP_FITTING_LAYER_FIT_H

#include "base/settings.h"
#include "model/layer_backward.h"

/* The losses are those of the held-out windows: ‖layer(input) − target‖² / ‖target − input‖² in the metric of the fit,
 * and the slope of the token loss where it has a weight (which may take them below zero); of weights as the checkpoint
 * holds them. */
typedef struct fp_fit_result {
	int64_t layer;
	double loss_before, loss_after;
	int64_t steps; /* after which the kept point was reached; 0: the fit was dropped and nothing has changed */
	double seconds;
} fp_fit_result;

/* The hidden states of one window before the layer, and what it should give for them: length × hidden. */
typedef fp_status (*fp_fit_read)(void *data, int64_t window, fp_matrix input, fp_matrix target);

/* The gradients of the token loss by the dense layer's output, of one window: length × hidden. */
typedef fp_status (*fp_fit_read_gradients)(void *data, int64_t window, fp_matrix out);

typedef struct fp_fit_task {
	const fp_settings *settings;
	fp_layer *layer; /* pruned, as the checkpoint would hold it; fitted in place. Zeros stay zeros. */
	fp_fit_read read;
	void *read_data; /* of both */
	int64_t windows, length;
	fp_fit_read_gradients read_gradients; /* for the first gradient_windows; NULL: the metric is plain */
	int64_t gradient_windows;
	int64_t batch; /* windows that go through the layer at once */
} fp_fit_task;

/* Leaves the layer at the best point found, by the held-out windows: never worse on them than it was. */
fp_status fp_fit_layer(const fp_fit_task *task, fp_fit_result *result);

/* How many of `windows` are held out; 0: too few for a fit. */
int64_t fp_fit_held_out(const fp_settings *settings, int64_t windows);
/* Steps of the fit and windows in one of them. */
int64_t fp_fit_steps(const fp_settings *settings, int64_t windows, int64_t length);
int64_t fp_fit_batch(const fp_settings *settings, int64_t windows, int64_t length);
/* Bytes that fp_fit_layer() takes for a layer with this many weights, held in so many bytes, for planning; `metric`:
 * not the plain one. */
int64_t fp_fit_bytes(const fp_model *model, int64_t weights, int64_t held, int64_t tokens, bool metric);
/* Fails when the device has no gradients. */
fp_status fp_fit_check(const fp_backend *be);

#endif
