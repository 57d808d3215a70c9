/* SPDX-License-Identifier: Apache-2.0 */
/* prune_model.h: prunes a model layer by layer, with one layer in memory at a time. */
#ifndef FP_RUN_PRUNE_MODEL_H
#define FP_RUN_PRUNE_MODEL_H

#include "base/clock.h"
#include "checkpoint/writer.h"
#include "comm/comm.h"
#include "pruning/prune_layer.h"
#include "run/model_basis.h"

typedef struct fp_prune_result { /* freed with fp_prune_result_free() */
	fp_operator_result *operators;
	int64_t count, capacity;
	fp_fit_result *fits; /* of the layers that were fitted */
	int64_t fit_count, fit_capacity;
	double squared_error, squared_output; /* summed over the operators */
	int64_t zeros, entries;
	fp_basis_gain basis; /* with a basis */
	double seconds;
	fp_stopwatch stopwatch;
} fp_prune_result;
void fp_prune_result_free(fp_prune_result *result);
/* Adds an operator to the sums. */
void fp_prune_result_count(fp_prune_result *result, const fp_operator_result *added);

/* Called with each finished operator; for --metrics. */
typedef void (*fp_operator_listener)(void *data, const fp_operator_result *result);

typedef struct fp_layer_journal fp_layer_journal; /* layer_journal.h */

typedef struct fp_prune_task {
	fp_backend *be; /* the model's */
	fp_context *ctx;
	fp_model *model;
	const fp_settings *settings;   /* resolved */
	const fp_windows *windows;     /* count 0: none, for magnitude */
	fp_writer *writer;             /* NULL: nothing is written */
	fp_comm *comm;                 /* NULL: one process */
	fp_layer_journal *journal;     /* required with several ranks; NULL: the run cannot be resumed */
	fp_overlay *overlay;           /* NULL: the new tensors are not kept in memory */
	const fp_basis_choice *choice; /* NULL: the checkpoint's basis */
	fp_basis **basis;              /* with `choice`: the caller's; learned unless it is there, and set on the model */
	fp_dense_statistics *kept;     /* shared by runs on the same model and windows; may be NULL */
	fp_operator_listener listener; /* may be NULL */
	void *listener_data;
} fp_prune_task;

/* Fails as fp_prune_model() would on account of the settings, before any text is written or read. */
fp_status fp_prune_check_settings(const fp_prune_task *task);

/* With several ranks, each prunes some layers if these are independent of each other, else all of them share the windows
 * and the solves of every layer. Rank 0's result has all layers in the end. */
fp_status fp_prune_model(fp_prune_result *out, const fp_prune_task *task);
/* This rank's share of the windows: all of them if ranks share layers. */
fp_share fp_prune_share(const fp_prune_task *task);

/* Estimates for a run, without running it. */
typedef struct fp_prune_plan {
	int64_t layers, operators, tokens;
	int64_t memory_bytes;
	double flops;
	double forward_flops; /* of one layer's dense forward pass over all tokens */
} fp_prune_plan;
fp_status fp_prune_estimate(fp_prune_plan *out, const fp_prune_task *task);

#endif
