/* SPDX-License-Identifier: Apache-2.0 */
/* prune_layer.c: the order of work in a layer: statistics, solve, fit, and the streams' way to the next layer. */
#include "pruning/prune_layer.h"

#include "base/clock.h"
#include "base/memory.h"
#include "model/basis.h"
#include "pruning/layer_job.h"

bool fp_layer_is_fitted(const fp_layer_task *task)
{
	return task->settings->fit_steps > 0 && task->streams;
}

bool fp_layer_is_divided(const fp_layer_task *task)
{
	return task->streams && fp_share_is_divided(&task->streams->share);
}

int fp_layer_ranks(const fp_layer_task *task)
{
	return task->streams ? fp_share_ranks(&task->streams->share) : 1;
}

bool fp_layer_task_has(const fp_layer_task *task, int64_t layer, int number)
{
	return !task->selection || fp_selection_has(task->selection, layer, number);
}

fp_pattern fp_layer_task_pattern(const fp_layer_task *task, int64_t layer, int number)
{
	fp_pattern pattern = fp_allocation_pattern(task->allocation, task->pattern, layer, number);
	return task->selection ? fp_selection_pattern(task->selection, pattern, layer, number) : pattern;
}

/* How many experts have their statistics in memory at the same time. */
static int64_t experts_at_once(const fp_layer_job *job)
{
	int64_t limit = job->task->experts_at_once;
	return limit > 0 ? limit : INT64_MAX / 2;
}

/* With correction: a group's inputs depend on the pruned groups before it. */
static fp_status prune_corrected_group(fp_layer_job *job, int group)
{
	const fp_layer_task *task = job->task;
	int64_t index = job->dense->index, step = experts_at_once(job);
	fp_statistics_plan plan = fp_group_statistics_plan(task->model, task->settings, index, group, -1, 0);
	bool dense = !plan.two_streams && !(plan.centred && task->streams);
	bool keeps = dense && !fp_config_has_experts(fp_model_get_config(task->model), index);
	const fp_statistics *kept = keeps ? fp_dense_statistics_find(task->kept, index, group) : NULL;
	fp_group_statistics set = {0};
	fp_status status = FP_OK;
	if (kept)
		return fp_solve_kept(job, group, kept);
	for (int64_t first = 0; !set.ends; first += step) {
		fp_group_statistics_free(&set);
		FP_TRY(fp_group_statistics_new(&set, task, job->dense, group, first, first + step));
		FP_TRY(fp_pass_group(job, group, &set));
		FP_TRY(fp_group_statistics_add(&set));
		FP_TRY(fp_solves_share(job, group, &set));
		FP_TRY(fp_group_statistics_finish(&set));
		FP_TRY(fp_solve_set(job, group, &set, &set.own));
		FP_TRY(fp_solves_exchange(job, group, &set));
		if (keeps)
			fp_dense_statistics_keep(task->kept, index, group, &set.own);
	}
cleanup:
	fp_group_statistics_free(&set);
	return status;
}

/* sets[group] ← from one pass over the text, or A = I without text; for all groups and the experts from `first` on */
static fp_status measure_uncorrected(fp_layer_job *job, int64_t first, fp_group_statistics sets[FP_GROUP_COUNT])
{
	const fp_layer_task *task = job->task;
	int64_t step = experts_at_once(job);
	fp_status status = FP_OK;
	for (int group = first > 0 ? fp_role_group(FP_UP) : 0; group < FP_GROUP_COUNT; group++)
		FP_TRY(fp_group_statistics_new(&sets[group], task, job->dense, group, first, first + step));
	if (task->streams)
		FP_TRY(fp_pass_uncorrected(job, sets));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		FP_TRY(fp_group_statistics_add(&sets[group]));
		FP_TRY(fp_solves_share(job, group, &sets[group]));
		FP_TRY(task->streams ? fp_group_statistics_finish(&sets[group]) : fp_group_statistics_identity(&sets[group]));
	}
cleanup:
	return status;
}

static fp_status prune_uncorrected(fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	int64_t index = job->dense->index;
	fp_group_statistics sets[FP_GROUP_COUNT] = {{.first = 0}};
	/* the first layer's inputs are always the dense model's; statistics that are centred or those of parts are not kept */
	bool dense =
		(job->feed == FP_FEED_NONE || (index == 0 && !fp_layer_is_divided(task))) && !task->settings->bias_update;
	bool kept = dense && fp_dense_statistics_cover(task->kept, task->model, index, index + 1), done = kept;
	fp_status status = FP_OK;
	if (kept && task->streams && (job->feed == FP_FEED_NONE || fp_layer_is_fitted(task)))
		FP_TRY(fp_streams_forward(task->streams, FP_DENSE, job->dense));
	for (int group = 0; kept && group < FP_GROUP_COUNT; group++)
		if (fp_model_has_group(task->model, group))
			FP_TRY(fp_solve_kept(job, group, fp_dense_statistics_find(task->kept, index, group)));
	for (int64_t first = 0; !done; first += experts_at_once(job)) {
		FP_TRY(measure_uncorrected(job, first, sets));
		for (int group = 0; group < FP_GROUP_COUNT; group++) {
			FP_TRY(fp_solve_set(job, group, &sets[group], NULL));
			if (dense && task->streams && !fp_config_has_experts(fp_model_get_config(task->model), index))
				fp_dense_statistics_keep(task->kept, index, group, &sets[group].own);
		}
		for (int group = 0; group < FP_GROUP_COUNT; group++)
			FP_TRY(fp_solves_exchange(job, group, &sets[group]));
		done = sets[FP_GROUP_COUNT - 1].ends;
		for (int group = 0; group < FP_GROUP_COUNT; group++)
			fp_group_statistics_free(&sets[group]);
	}
cleanup:
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		fp_group_statistics_free(&sets[group]);
	return status;
}

static fp_status load(fp_layer **out, const fp_layer_task *task, int64_t index)
{
	fp_stage stage = fp_stage_enter(task->ctx, FP_STAGE_LOAD);
	fp_status status = fp_layer_load(out, task->model, index);
	fp_stage_enter(task->ctx, stage);
	return status;
}

/* *out ← the layer loaded in advance if it is this one, else the layer from the checkpoint. */
static fp_status take(fp_layer **out, const fp_layer_task *task, int64_t index)
{
	fp_layer *ahead = task->ahead ? *task->ahead : NULL;
	if (task->ahead)
		*task->ahead = NULL;
	if (ahead && ahead->index == index) {
		*out = ahead;
		return FP_OK;
	}
	fp_layer_free(ahead);
	return load(out, task, index);
}

/* The stream that holds the pruned model's hidden states before the layer is pruned. */
static int pruned_stream(const fp_layer_job *job)
{
	return job->feed == FP_FEED_NONE ? FP_DENSE : FP_PRUNED;
}

/* Sets up the streams as the feed needs them at the start of the layer. */
static fp_status prepare_streams(const fp_layer_job *job)
{
	fp_streams *streams = job->task->streams;
	fp_status status = FP_OK;
	if (job->feed == FP_FEED_INTRA)
		FP_TRY(fp_streams_copy(streams, FP_PRUNED, FP_DENSE));
	if (streams && job->feed == FP_FEED_SEQUENTIAL)
		FP_TRY(fp_streams_copy(streams, FP_DENSE, FP_PRUNED));
	if (fp_layer_is_fitted(job->task))
		FP_TRY(fp_streams_copy(streams, FP_LAYER_INPUT, pruned_stream(job)));
cleanup:
	return status;
}

/* True if the next layer reads streams that this one has to move on. */
static bool has_to_move(const fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	if (!task->streams || task->last)
		return false;
	return fp_layer_is_fitted(task) ? fp_feed_chains_layers(job->feed)
									: job->corrected || job->feed == FP_FEED_SEQUENTIAL;
}

/* Moves the streams past the layer, and uploads the next layer's weights at the same time. Both are in one stage, since a
 * change of stage waits for the device. */
static fp_status leave_layer(fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	fp_stage stage = fp_stage_enter(task->ctx, FP_STAGE_FORWARD);
	int64_t next = job->pruned->index + 1;
	fp_status status;
	if (fp_layer_is_fitted(task)) { /* the dense stream has passed it before the fit */
		FP_TRY(fp_streams_copy(task->streams, FP_PRUNED, FP_LAYER_INPUT));
		FP_TRY(fp_streams_forward(task->streams, FP_PRUNED, job->pruned));
	} else if (job->corrected) {
		FP_TRY(fp_pass_end(job));
	} else {
		fp_streams_forget(task->streams, FP_DENSE);
		FP_TRY(fp_streams_forward(task->streams, FP_PRUNED, job->pruned));
	}
	if (task->ahead && fp_backend_uploads_async(task->be)) {
		fp_layer_free(job->dense);
		fp_layer_free(job->pruned);
		job->dense = job->pruned = NULL;
		FP_TRY(fp_layer_load(task->ahead, task->model, next));
	}
cleanup:
	fp_stage_enter(task->ctx, stage);
	return status;
}

/* In a new basis, what is not pruned has new bytes too. */
static fp_status give_unpruned(const fp_layer_job *job)
{
	const fp_layer_output *to = &job->task->output;
	fp_status status = FP_OK;
	for (int i = 0; i < fp_model_operators(job->task->model); i++)
		if (!fp_layer_task_has(job->task, job->pruned->index, i))
			FP_TRY(fp_layer_give_operator(job->pruned, i, to->bias_done, to->data));
	FP_TRY(fp_layer_give_vectors(job->pruned, to->bias_done, to->data));
cleanup:
	return status;
}

fp_status fp_prune_layer(const fp_layer_task *task, int64_t index)
{
	fp_layer_job job = {.task = task, .feed = fp_feed_of(task->settings)};
	fp_streams *streams = task->streams;
	fp_status status;
	job.corrected = fp_feed_is_corrected(job.feed);
	FP_TRY(FP_NEW(task->ctx, &job.results, fp_model_operators(task->model)));
	FP_TRY(FP_NEW(task->ctx, &job.grids, fp_model_operators(task->model)));
	FP_TRY(fp_kept_inputs_new(&job.kept_inputs, task));
	FP_TRY(take(&job.dense, task, index));
	FP_TRY(fp_layer_copy(&job.pruned, job.dense));
	if (fp_model_basis(task->model))
		FP_TRY(fp_layer_round_vectors(job.pruned));
	FP_TRY(prepare_streams(&job));
	FP_TRY(fp_solves_divide(&job));
	if (streams && fp_row_importance_wanted(task->settings, &task->pattern, task->selection, task->be))
		FP_TRY(fp_row_importance_new(&job.importance, job.dense, streams));
	for (int group = 0; job.corrected && group < FP_GROUP_COUNT; group++)
		if (fp_model_has_group(task->model, group))
			FP_TRY(prune_corrected_group(&job, group));
	if (!job.corrected)
		FP_TRY(prune_uncorrected(&job));
	if (fp_layer_is_fitted(task)) {
		if (job.corrected)
			FP_TRY(fp_pass_end(&job));
		FP_TRY(fp_fit_pruned_layer(&job));
	}
	if (fp_model_basis(task->model) && task->output.bias_done)
		FP_TRY(give_unpruned(&job));
	if (has_to_move(&job))
		FP_TRY(leave_layer(&job));
cleanup:
	fp_row_importance_free(task->be, &job.importance);
	fp_kept_inputs_free(&job.kept_inputs, task);
	for (int i = 0; job.grids && i < fp_model_operators(task->model); i++)
		fp_grid_free(task->be, &job.grids[i]);
	fp_free(job.grids);
	fp_free(job.results);
	fp_free(job.solver);
	fp_layer_free(job.dense);
	fp_layer_free(job.pruned);
	return status;
}

static fp_status pass_stream(const fp_layer_task *task, int64_t index, int stream, const fp_overlay *overlay)
{
	fp_layer *layer = NULL;
	fp_status status;
	fp_model_set_overlay(task->model, overlay);
	status = load(&layer, task, index);
	fp_model_set_overlay(task->model, NULL);
	if (status == FP_OK)
		status = fp_streams_forward(task->streams, stream, layer);
	fp_layer_free(layer);
	return status;
}

fp_status fp_pass_layer(const fp_layer_task *task, int64_t index, const fp_overlay *pruned)
{
	fp_feed feed = fp_feed_of(task->settings);
	fp_status status = FP_OK;
	if (feed != FP_FEED_CROSS)
		fp_streams_forget(task->streams, feed == FP_FEED_SEQUENTIAL ? FP_DENSE : FP_PRUNED);
	if (feed != FP_FEED_SEQUENTIAL) /* with which each layer begins with a copy of the pruned stream */
		FP_TRY(pass_stream(task, index, FP_DENSE, NULL));
	if (fp_feed_chains_layers(feed)) /* otherwise each layer begins with a copy of the dense stream */
		FP_TRY(pass_stream(task, index, FP_PRUNED, pruned));
cleanup:
	return status;
}
