/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_fit.h: fits the remaining weights and the biases of a pruned layer so that the output of the whole layer, not
 * only that of each operator, approaches the dense one.
 */
#ifndef FP_FITTING_LAYER_FIT_H
#define FP_FITTING_LAYER_FIT_H

#include "base/settings.h"
#include "model/layer_backward.h"
#include "sharing/share.h"

/* Losses (fit_loss.h) on the held-out windows, of weights rounded to the checkpoint's types. The slope of the token
 * loss may make them negative. */
typedef struct fp_fit_result {
	int64_t layer;
	double loss_before, loss_after;
	int64_t steps; /* up to the point that was kept; 0: no point was better and the layer is unchanged */
	double seconds;
} fp_fit_result;

/* Reads one window, of those that this rank has: the layer's input and the output that it should have, length × hidden each. */
typedef fp_status (*fp_fit_read)(void *data, int64_t window, fp_matrix input, fp_matrix target);

/* Reads Σ ggᵀ, with g the gradients of the token loss with respect to the dense layer's output: the upper triangle of a
 * hidden × hidden matrix. */
typedef fp_status (*fp_fit_read_fisher)(void *data, fp_matrix out);

/* Reads g of one window: length × hidden. */
typedef fp_status (*fp_fit_read_gradients)(void *data, int64_t window, fp_matrix out);

typedef struct fp_fit_task {
	fp_backend *be;
	fp_context *ctx;
	const fp_settings *settings;
	fp_layer *layer;    /* pruned and rounded to the checkpoint's types; fitted in place. Zeros stay zeros. */
	const bool *frozen; /* operators that stay as they are, by number; NULL: none */
	fp_fit_read read;
	fp_fit_read_fisher read_fisher;       /* NULL: the metric is plain */
	fp_fit_read_gradients read_gradients; /* for windows below gradient_windows; NULL: there are none */
	void *read_data;                      /* for all three */
	const fp_share *share;                /* of the windows; NULL: this process has all of them */
	int64_t windows, gradient_windows;    /* of all ranks */
	int64_t fisher_tokens;                /* over which Σ ggᵀ is */
	int64_t length;                       /* tokens of a window */
	int64_t batch;                        /* windows that go through the layer at once */
} fp_fit_task;

/* Leaves the layer at the best point found, by its loss on the held-out windows. The start is one of the points. */
fp_status fp_fit_layer(const fp_fit_task *task, fp_fit_result *result);

/* How many of `windows` are held out; 0: there are too few for a fit. */
int64_t fp_fit_held_out(const fp_settings *settings, int64_t windows);
/* Steps of a fit, and windows in each step. */
int64_t fp_fit_steps(const fp_settings *settings, int64_t windows, int64_t length);
int64_t fp_fit_batch(const fp_settings *settings, int64_t windows, int64_t length);
/* Bytes that fp_fit_layer() allocates at its peak with batches of `tokens` tokens, not counting what single products
 * take (backend/work_space.h); `metric`: with Fisher matrix; `slope`: with gradients; `registers`: sums of gradients
 * in memory at the same time (sharing/part_sum.h). */
int64_t fp_fit_bytes(const fp_model *model, int64_t layer, int64_t tokens, bool metric, bool slope, int registers);
/* Fails when the device has no gradients. */
fp_status fp_fit_check(const fp_backend *be);

#endif
