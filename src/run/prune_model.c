/* SPDX-License-Identifier: Apache-2.0 */
/* prune_model.c: the layers in order, with their journal and their ranks. */
#include "run/prune_model.h"

#include "base/memory.h"
#include "run/layer_journal.h"
#include "run/layer_line.h"
#include "run/layer_shares.h"
#include "run/memory_plan.h"
#include "run/run_output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct model_run {
	const fp_prune_task *task;
	fp_prune_result *result;
	fp_run_output output;
	fp_pattern pattern;
	int64_t first, end;     /* layers to prune, by all ranks */
	int64_t begin, own_end; /* layers of this rank; 0 to `end` unless ranks divide the layers */
	fp_share share;         /* of the windows */
	int64_t pending;        /* one past its last unfinished layer; after that no stream is needed */
	bool streamed;          /* hidden states are needed; `plan` says how they are kept */
	fp_memory_plan plan;
	bool sends_streams;   /* the next rank waits for the stream */
	double layer_seconds; /* of the `layer_count` layers that this run pruned */
	int64_t layer_count;
	fp_allocation *allocation; /* NULL: one share for all operators */
	fp_fisher *fisher;
	fp_selection *selection;
} model_run;

/* An asynchronous device is waited for when the stage changes, so that its time counts for the stage that queued the
 * work. */
static void wait_for_device(void *data)
{
	fp_backend *be = data;
	(void)be->memory->synchronize(be); /* the next operation reports a failure too */
}

void fp_prune_result_count(fp_prune_result *result, const fp_operator_result *added)
{
	result->squared_error += added->squared_error;
	result->squared_output += added->squared_output;
	result->zeros += added->zeros;
	result->entries += added->tensor->elements;
}

fp_share fp_prune_share(const fp_prune_task *task)
{
	int64_t windows = task->windows->count;
	bool divided = windows > 0 && fp_feed_chains_layers(fp_feed_of(task->settings));
	return divided ? fp_share_divided(task->comm, windows) : fp_share_whole(windows);
}

static int rank_count(const model_run *run)
{
	return run->task->comm ? run->task->comm->size : 1;
}

/* Ranks divide the layers, or they share the windows of every layer. */
static bool divides_layers(const model_run *run)
{
	return rank_count(run) > 1 && !fp_share_is_divided(&run->share);
}

/* If ranks divide the layers, each writes its own; otherwise rank 0 writes all of them. */
static bool writes(const model_run *run)
{
	return !run->task->comm || run->task->comm->rank == 0 || divides_layers(run);
}

static fp_layer_task layer_task_of(model_run *run, fp_streams *streams)
{
	return (fp_layer_task){.be = run->task->be,
						   .experts_at_once = run->plan.experts_at_once,
						   .ctx = run->task->ctx,
						   .model = run->task->model,
						   .settings = run->task->settings,
						   .pattern = run->pattern,
						   .allocation = run->allocation,
						   .selection = run->selection,
						   .streams = streams,
						   .fisher = run->fisher,
						   .kept = run->task->kept,
						   .output = writes(run) ? fp_run_output_callbacks(&run->output) : (fp_layer_output){0}};
}

/* Takes the results of a layer that an earlier run finished, and moves the streams past it. */
static fp_status restore_layer(model_run *run, const fp_layer_task *layer_task, int64_t layer)
{
	const fp_prune_task *task = run->task;
	fp_overlay *pruned = NULL;
	int64_t before = run->result->count;
	fp_status status;
	FP_TRY(fp_layer_journal_restore(task->journal, layer, run->result));
	for (int64_t i = before; task->listener && i < run->result->count; i++)
		task->listener(task->listener_data, &run->result->operators[i]);
	if (layer_task->streams) {
		if (fp_feed_chains_layers(fp_feed_of(task->settings)))
			FP_TRY(fp_layer_journal_overlay(task->journal, layer, &pruned));
		FP_TRY(fp_pass_layer(layer_task, layer, pruned));
	}
cleanup:
	fp_overlay_free(pruned);
	return status;
}

static fp_status prune_one(model_run *run, const fp_layer_task *layer_task, int64_t layer)
{
	const fp_prune_task *task = run->task;
	fp_context *ctx = task->ctx;
	int64_t operators = run->result->count, fits = run->result->fit_count;
	double started = fp_clock();
	char name[32];
	fp_status status;
	if (!writes(run))
		return fp_prune_layer(layer_task, layer);
	fp_run_output_begin_layer(&run->output);
	FP_TRY(fp_prune_layer(layer_task, layer));
	FP_TRY(fp_run_output_end_layer(&run->output));
	snprintf(name, sizeof name, "layer %lld", (long long)layer);
	fp_memory_log_stages(task->be, name);
	if (task->journal)
		FP_TRY(fp_layer_journal_add(task->journal, run->output.behind, layer, run->result, operators, fits,
									run->output.replaced, run->output.replaced_count));
	double seconds = fp_clock() - started;
	run->layer_seconds += seconds;
	run->layer_count++;
	fp_log_layer(ctx, run->result, layer, fp_model_get_config(task->model)->layers, seconds,
				 run->layer_seconds / (double)run->layer_count * (double)(run->pending - layer - 1));
cleanup:
	return status;
}

static fp_status prune_layers(model_run *run, fp_streams *streams)
{
	const fp_prune_task *task = run->task;
	fp_context *ctx = task->ctx;
	fp_layer *ahead = NULL;
	fp_layer_task layer_task = layer_task_of(run, streams);
	fp_status status = FP_OK;
	layer_task.ahead = &ahead;
	for (int64_t layer = streams || run->begin > run->first ? run->begin : run->first; layer < run->own_end; layer++) {
		fp_report_progress(ctx, "pruning", layer, run->own_end);
		if (layer >= run->pending)
			layer_task.streams = NULL;
		layer_task.last = layer + 1 == run->pending;
		if (layer < run->first || !fp_selection_has_layer(run->selection, layer)) {
			if (layer_task.streams)
				FP_TRY(fp_pass_layer(&layer_task, layer, NULL));
		} else if (fp_layer_journal_has(task->journal, layer))
			FP_TRY(restore_layer(run, &layer_task, layer));
		else
			FP_TRY(prune_one(run, &layer_task, layer));
	}
	fp_report_progress(ctx, "pruning", run->own_end, run->own_end);
cleanup:
	fp_layer_free(ahead);
	return status;
}

/* Rank 0 divides the layers among the ranks, unless they share windows. Finished layers cost a forward pass only. */
static fp_status take_share(model_run *run)
{
	const fp_prune_task *task = run->task;
	fp_comm *comm = task->comm;
	fp_context *ctx = task->ctx;
	int64_t *shares = NULL;
	double *cost = NULL;
	fp_prune_plan plan;
	fp_status status = FP_OK;
	run->begin = 0;
	run->own_end = run->end;
	run->share = fp_prune_share(task);
	if (divides_layers(run)) {
		FP_TRY(FP_NEW(ctx, &shares, comm->size + 1));
		FP_TRY(FP_NEW(ctx, &cost, run->end));
		FP_TRY(fp_prune_estimate(&plan, task));
		int64_t last = 0; /* finished layers after the last open one need no rank: no stream passes them */
		for (int64_t layer = run->first; layer < run->end; layer++)
			if (!fp_layer_journal_has(task->journal, layer)) {
				cost[layer] = plan.flops / (double)plan.layers;
				last = layer + 1;
			}
		fp_share_layers(shares, comm->size, last, plan.forward_flops, cost);
		FP_TRY(comm->ops->broadcast(comm, 0, shares, (comm->size + 1) * (int64_t)sizeof *shares));
		run->begin = shares[comm->rank];
		run->own_end = shares[comm->rank + 1];
		run->sends_streams = task->windows->count > 0 && run->own_end > run->begin && run->own_end < shares[comm->size];
		if (run->own_end > run->begin)
			fp_log(ctx, FP_LOG_INFO, "rank %d of %d: layers %lld-%lld", comm->rank, comm->size, (long long)run->begin,
				   (long long)run->own_end - 1);
	}
	run->pending = run->own_end;
	while (run->pending > run->begin && run->pending > run->first &&
		   fp_layer_journal_has(task->journal, run->pending - 1))
		run->pending--;
	if (run->pending <= run->first)
		run->pending = run->begin;
cleanup:
	fp_free(cost);
	fp_free(shares);
	return status;
}

/* Scratch files go to the disk of the output, which is usually larger than that of temporary files. */
static const char *scratch_folder(const fp_prune_task *task)
{
	const char *folder = task->writer ? fp_writer_folder(task->writer) : getenv("TMPDIR");
	return folder ? folder : "/tmp";
}

/* Fisher matrices for the fits of this rank's layers. */
static fp_status make_fisher(model_run *run)
{
	const fp_prune_task *task = run->task;
	int64_t first = run->begin > run->first ? run->begin : run->first;
	while (first < run->pending && fp_layer_journal_has(task->journal, first))
		first++;
	if (first >= run->pending || !fp_fisher_wanted(task->settings, task->windows))
		return FP_OK;
	fp_status status = fp_fisher_new(&run->fisher, &(fp_fisher_request){.model = task->model,
																		.settings = task->settings,
																		.windows = task->windows,
																		.first = first,
																		.end = run->pending,
																		.folder = scratch_folder(task),
																		.room = run->plan.fisher,
																		.share = run->share});
	fp_memory_log_stages(task->be, "Fisher matrices");
	return status;
}

/* All ranks take the smallest batch of any: they send their streams to each other batch by batch, or sum over them. */
static fp_status agree_on_batches(model_run *run)
{
	fp_comm *comm = run->task->comm;
	int64_t batch = run->streamed ? run->plan.streams.batch : INT64_MAX;
	int64_t experts = run->streamed ? run->plan.experts_at_once : INT64_MAX;
	fp_status status;
	FP_TRY(comm->ops->minimum(comm, &batch));
	FP_TRY(comm->ops->minimum(comm, &experts));
	if (run->streamed) {
		run->plan.streams.batch = batch;
		run->plan.experts_at_once = experts;
	}
cleanup:
	return status;
}

/* Decides whether hidden states are needed and how they are kept. This comes before anything that takes time, so that a
 * memory limit that cannot be met ends the run at once. */
static fp_status plan_streams(model_run *run)
{
	const fp_prune_task *task = run->task;
	const fp_settings *settings = task->settings;
	bool wanted = run->sends_streams || run->pending > run->begin;
	bool known = fp_feed_of(settings) == FP_FEED_NONE && settings->fit_steps == 0 && !settings->bias_update &&
				 fp_dense_statistics_cover(task->kept, task->model, run->first, run->end);
	fp_status status = FP_OK;
	run->streamed = task->windows->count > 0 && wanted && !known;
	if (run->streamed) {
		FP_TRY(fp_memory_plan_make(&run->plan, task, divides_layers(run)));
		run->plan.streams.folder = scratch_folder(task);
		run->plan.streams.share = run->share;
	}
	if (rank_count(run) > 1) /* a rank without layers of its own takes part */
		FP_TRY(agree_on_batches(run));
cleanup:
	return status;
}

/* Opens the streams that this rank's layers need, if any. */
static fp_status open_streams(model_run *run, fp_streams *streams)
{
	const fp_prune_task *task = run->task;
	fp_windows windows = *task->windows;
	fp_status status = FP_OK;
	if (!run->streamed)
		return FP_OK;
	if (run->begin > 0)
		windows.ids = NULL; /* the previous rank sends them */
	task->be->frugal = run->plan.streams.residence != FP_RESIDENT;
	FP_TRY(fp_streams_open(streams, task->model, &windows, &run->plan.streams));
	if (divides_layers(run))
		FP_TRY(fp_streams_relay(streams, task->comm, run->begin, run->own_end, run->sends_streams));
cleanup:
	return status;
}

/* When all ranks are done, rank 0 reads the results that the others recorded. */
static fp_status collect_results(model_run *run)
{
	const fp_prune_task *task = run->task;
	fp_status status = FP_OK;
	if (rank_count(run) == 1)
		return FP_OK;
	FP_TRY(fp_comm_agree(task->comm, FP_OK));
	if (task->comm->rank > 0 || !divides_layers(run))
		return FP_OK;
	FP_TRY(fp_layer_journal_refresh(task->journal));
	for (int64_t layer = run->own_end > run->first ? run->own_end : run->first; layer < run->end; layer++) {
		const fp_layer_task nothing = {0};
		if (fp_selection_has_layer(run->selection, layer))
			FP_TRY(restore_layer(run, &nothing, layer));
	}
cleanup:
	return status;
}

static fp_status pattern_of(fp_context *ctx, const fp_settings *settings, fp_pattern *out)
{
	return fp_parse_sparsity(ctx, settings->pattern, &out->sparsity, &out->kept, &out->group);
}

/* What the settings say about the model's layers and operators. */
static fp_status read_settings(model_run *run)
{
	const fp_prune_task *task = run->task;
	const fp_settings *settings = task->settings;
	fp_status status;
	FP_TRY(pattern_of(task->ctx, settings, &run->pattern));
	FP_TRY(
		fp_parse_range(task->ctx, settings->layers, fp_model_get_config(task->model)->layers, &run->first, &run->end));
	FP_TRY(fp_selection_new(&run->selection, task->model, settings));
	if (settings->allocate > 0 && run->pattern.group > 0)
		FP_TRY(fp_fail(task->ctx, FP_ERROR_USAGE,
					   "allocate %g: N:M has the same sparsity everywhere; use allocate=0, or a pattern such as 50%%",
					   settings->allocate));
	if (settings->allocate > 0 && !fp_selection_is_plain(run->selection))
		FP_TRY(
			fp_fail(task->ctx, FP_ERROR_USAGE,
					"allocate %g: gives every operator a share of its own and cannot be combined with --only, --skip "
					"or --pattern REGEX=PATTERN; use allocate=0",
					settings->allocate));
cleanup:
	return status;
}

fp_status fp_prune_check_settings(const fp_prune_task *task)
{
	model_run run = {.task = task};
	fp_status status = read_settings(&run);
	fp_selection_free(run.selection);
	return status;
}

fp_status fp_prune_model(fp_prune_result *out, const fp_prune_task *task)
{
	fp_context *ctx = task->ctx;
	model_run run = {.task = task, .result = out};
	fp_streams streams = {0};
	bool calibrated = task->windows->count > 0;
	double started = fp_clock();
	fp_log_level level = ctx->log_level;
	fp_status status;
	memset(out, 0, sizeof *out);
	ctx->stopwatch = &out->stopwatch;
	if (task->be->asynchronous) {
		out->stopwatch.wait_for_device = wait_for_device;
		out->stopwatch.device = task->be;
	}
	fp_stage_enter(ctx, FP_STAGE_OTHER);
	if (task->settings->fit_steps > 0)
		FP_TRY(fp_fit_check(task->be));
	FP_TRY(read_settings(&run));
	if (!calibrated && fp_method_of(task->settings)->needs_text)
		FP_TRY(fp_fail(ctx, FP_ERROR_USAGE, "method %s needs calibration text; only magnitude works without",
					   task->settings->method));
	FP_TRY(take_share(&run));
	if (!writes(&run)) /* all ranks do the same, and rank 0 tells */
		ctx->log_level = FP_LOG_ERROR;
	FP_TRY(plan_streams(&run));
	FP_TRY(fp_basis_prepare(task, &out->basis));
	if (task->settings->allocate > 0 && run.pending > run.begin)
		FP_TRY(fp_allocation_new(&run.allocation, &(fp_allocation_request){.model = task->model,
																		   .settings = task->settings,
																		   .windows = task->windows,
																		   .pattern = run.pattern,
																		   .first = run.first,
																		   .end = run.end}));
	FP_TRY(make_fisher(&run));
	FP_TRY(open_streams(&run, &streams));
	if (writes(&run))
		FP_TRY(fp_run_output_new(&run.output, task, out));
	FP_TRY(prune_layers(&run, streams.model ? &streams : NULL));
	fp_stage_enter(ctx, FP_STAGE_OUTPUT);
	if (!task->comm || task->comm->rank == 0)
		FP_TRY(fp_basis_write_rest(task, &run.output, run.selection));
	if (run.output.behind)
		FP_TRY(fp_write_behind_finish(run.output.behind));
	FP_TRY(collect_results(&run));
	if (!task->comm || task->comm->rank == 0)
		fp_log_experts(ctx, out);
cleanup:
	fp_stage_enter(ctx, FP_STAGE_OTHER);
	ctx->stopwatch = NULL;
	ctx->log_level = level;
	fp_run_output_free(&run.output);
	fp_allocation_free(run.allocation);
	fp_fisher_free(run.fisher);
	fp_selection_free(run.selection);
	out->seconds = fp_clock() - started;
	fp_streams_free(&streams);
	if (status != FP_OK)
		fp_prune_result_free(out);
	return status;
}

void fp_prune_result_free(fp_prune_result *result)
{
	fp_free(result->operators);
	fp_free(result->fits);
	result->operators = NULL;
	result->fits = NULL;
	result->count = result->capacity = result->fit_count = result->fit_capacity = 0;
}
