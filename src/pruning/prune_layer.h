/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune_layer.h: prunes one decoder layer, group by group. The settings' feed (feed.h) says which pruned operators the
 * inputs have passed through.
 */
#ifndef FP_PRUNING_PRUNE_LAYER_H
#define FP_PRUNING_PRUNE_LAYER_H

#include "fitting/fisher.h"
#include "fitting/layer_fit.h"
#include "pruning/allocation.h"
#include "pruning/dense_statistics.h"
#include "pruning/feed.h"
#include "pruning/selection.h"
#include "pruning/streams.h"
#include "solver/problem.h"

/* An expert that fewer tokens than so many times its inputs reach gets a stronger ridge. */
enum { FP_ENOUGH_TOKENS = 4 };

/* The result of pruning one operator. The error is that of the solve, before a layer fit. */
typedef struct fp_operator_result {
	const fp_tensor_info *tensor; /* borrowed */
	int64_t layer;
	int number;            /* in the layer */
	int64_t tokens;        /* that reached its expert; −1: it belongs to none */
	double squared_error;  /* ‖W*X* − WX‖², including the change of the bias */
	double squared_output; /* ‖WX‖² */
	int64_t zeros;
	bool bias_updated;
	double bias_change; /* root mean square over the outputs */
	double seconds;
	fp_solution solution;
	char pattern[32]; /* its own, as text; "": that of the run */
	int64_t groups;   /* entries of a row that have a scale of their own, with --quantize; 0: not quantised */
	/* With --quantize, of each group, row by row; zero points only of formats that have them. On the host, and there only
	 * while operator_done() runs. */
	const float *scales, *zero_points;
} fp_operator_result;

/* Where results go. Every function may be NULL. */
typedef struct fp_layer_output {
	/* *out ← memory for the bytes of one operator, which are then passed to operator_done(). Called once per operator,
	 * always with the size of the layer's largest, since pinned memory is expensive to allocate. NULL: the layer
	 * allocates its own. */
	fp_status (*space)(void *data, int64_t bytes, char **out);
	/* Called with each finished operator and its new bytes (the tensor's type and shape), valid during the call. */
	fp_status (*operator_done)(void *data, const fp_operator_result *result, const void *bytes);
	/* Called with each bias that the solve or the layer fit changed. */
	fp_status (*bias_done)(void *data, const fp_tensor_info *tensor, const void *bytes);
	/* Called once for each fitted layer. */
	fp_status (*fit_done)(void *data, const fp_fit_result *result);
	void *data;
} fp_layer_output;

typedef struct fp_layer_task {
	fp_backend *be;
	fp_context *ctx;
	fp_model *model;
	const fp_settings *settings;
	fp_pattern pattern;
	const fp_allocation *allocation; /* each operator's own share of zeros; NULL: the same for all */
	const fp_selection *selection;   /* which operators are pruned, some with patterns of their own; NULL: all */
	fp_streams *streams;             /* NULL: no calibration text (magnitude), and errors are those of the weights; or
										all statistics are in `kept` */
	fp_dense_statistics *kept;       /* of the same windows; read and added to; may be NULL */
	const fp_fisher *fisher;         /* for the fit's metric; NULL: the plain metric */
	bool last;                       /* the streams are not needed after this layer */
	int64_t experts_at_once;         /* whose statistics are in memory at the same time; 0: all */
	fp_layer **ahead; /* *ahead ← the next layer, uploaded while the streams pass this one; may be NULL */
	fp_layer_output output;
} fp_layer_task;

/* True if the layer is fitted after its groups are pruned; its operators are output after the fit. */
bool fp_layer_is_fitted(const fp_layer_task *task);
/* True if the windows are in parts, which ranks may share, and how many ranks share them. */
bool fp_layer_is_divided(const fp_layer_task *task);
int fp_layer_ranks(const fp_layer_task *task);
/* True if an operator is not output as soon as it is solved: a fit follows, or other ranks solve operators too. */
bool fp_layer_defers_output(const fp_layer_task *task);
/* Whether an operator is pruned, and its pattern. */
bool fp_layer_task_has(const fp_layer_task *task, int64_t layer, int number);
fp_pattern fp_layer_task_pattern(const fp_layer_task *task, int64_t layer, int number);

/* Prunes layer `index` and moves the streams to the next layer. */
fp_status fp_prune_layer(const fp_layer_task *task, int64_t index);
/* Moves the streams past a layer that is not pruned in this run: the dense stream through the dense weights, the pruned
 * one through those of the overlay (NULL: the dense weights). Only streams that the next layer needs are moved. */
fp_status fp_pass_layer(const fp_layer_task *task, int64_t index, const fp_overlay *pruned);

#endif
