/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune_layer.h: prune one decoder layer, group by group, each operator against inputs that have already gone through
 * the pruned operators before it.
 */
#ifndef FP_PRUNING_PRUNE_LAYER_H
#define FP_PRUNING_PRUNE_LAYER_H

#include "fitting/layer_fit.h"
#include "fitting/token_gradients.h"
#include "pruning/allocation.h"
#include "pruning/dense_statistics.h"
#include "pruning/streams.h"
#include "run/write_behind.h"
#include "solver/problem.h"

/* How the two streams feed a layer. */
typedef enum fp_feed {
	FP_FEED_NONE,       /* X* = X from the dense model: no correction */
	FP_FEED_INTRA,      /* X* through this layer's pruned operators; the layer's input is the dense model's */
	FP_FEED_CROSS,      /* X* through all pruned operators before */
	FP_FEED_SEQUENTIAL, /* as Wanda and SparseGPT run alone: X* = X, through the pruned layers before and this layer's
						   dense weights */
} fp_feed;

fp_feed fp_feed_of(const fp_settings *settings);
bool fp_feed_needs_both(fp_feed feed);
/* What a pruned layer gives is the next one's input; else layers are independent of each other. */
bool fp_feed_chains_layers(fp_feed feed);
/* The group's inputs are those of two streams: its operators repair what was pruned before them. */
bool fp_group_is_corrected(const fp_settings *settings, int group);
/* The targets of the group's operators may have the residual stream's error in them. */
bool fp_group_repairs(const fp_settings *settings, int group);

/* What is known of a pruned operator, for the report. The error is that of its solve: a layer fit comes after it. */
typedef struct fp_operator_result {
	const fp_tensor_info *tensor; /* borrowed */
	int64_t layer;
	fp_role role;
	double squared_error;  /* ‖W*X* − WX‖², the change of the bias included */
	double squared_output; /* ‖WX‖² */
	int64_t zeros;
	bool bias_updated;
	double bias_change; /* root mean square over the outputs */
	double seconds;
	fp_solution solution;
} fp_operator_result;

/* Called with each operator as it is finished: its new bytes (the tensor's type and shape), borrowed for the call; they
 * are in the free space of task->behind where there is one. */
typedef fp_status (*fp_operator_done)(void *data, const fp_operator_result *result, const void *bytes);
/* Called with each bias that the solve or a layer fit has changed, likewise. */
typedef fp_status (*fp_bias_done)(void *data, const fp_tensor_info *tensor, const void *bytes);
/* Called once for each fitted layer. */
typedef fp_status (*fp_fit_done)(void *data, const fp_fit_result *result);

typedef struct fp_layer_task {
	fp_model *model;
	const fp_settings *settings;
	fp_pattern pattern;
	const fp_allocation *allocation; /* each operator's own share of it; NULL: the same for all */
	fp_streams *streams;       /* NULL: no calibration text (magnitude), and errors are those of the weights; or all
								  statistics are in `kept` */
	fp_dense_statistics *kept; /* of the same windows; read and added to; may be NULL */
	const fp_token_gradients *gradients; /* the fit's metric; NULL: plain */
	bool last;                           /* no layer comes after it: the streams need not be moved on */
	fp_layer **ahead;                    /* the next layer once it is loaded, while the streams move on; may be NULL */
	fp_write_behind *behind;             /* has space for the bytes of finished operators; may be NULL */
	fp_operator_done done;
	fp_bias_done bias_done; /* done, bias_done and fit_done may be NULL */
	fp_fit_done fit_done;
	void *done_data;
} fp_layer_task;

/* True when the layer is fitted after its groups are pruned: its operators are finished only then. */
bool fp_layer_is_fitted(const fp_layer_task *task);

/* Prunes layer `index` and moves the streams on to the next layer. */
fp_status fp_prune_layer(const fp_layer_task *task, int64_t index);
/* Moves the streams past a layer that is not to be pruned now: the dense stream through its dense weights, the pruned
 * one through those with the overlay (NULL: it stays as it is). Only streams that the next layer needs are moved. */
fp_status fp_pass_layer(const fp_layer_task *task, int64_t index, const fp_overlay *pruned);

#endif
