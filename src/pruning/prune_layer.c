/* SPDX-License-Identifier: Apache-2.0 */
/* prune_layer.c: the order of work in a layer: statistics, solve, fit, and the streams' way to the next layer. */
#include "pruning/prune_layer.h"

#include "base/clock.h"
#include "base/memory.h"
#include "model/basis.h"
#include "pruning/layer_job.h"
#include "pruning/prune_operator.h"

#include <stdio.h>
#include <string.h>

bool fp_layer_is_fitted(const fp_layer_task *task)
{
	return task->settings->fit_steps > 0 && task->streams;
}

bool fp_layer_task_has(const fp_layer_task *task, int64_t layer, fp_role role)
{
	return !task->selection || fp_selection_has(task->selection, layer, role);
}

fp_pattern fp_layer_task_pattern(const fp_layer_task *task, int64_t layer, fp_role role)
{
	fp_pattern pattern = fp_allocation_pattern(task->allocation, task->pattern, layer, role);
	return task->selection ? fp_selection_pattern(task->selection, pattern, layer, role) : pattern;
}

static bool in_group(const fp_layer_job *job, int role, int group)
{
	return fp_role_group((fp_role)role) == group && !fp_matrix_is_absent(job->dense->weight[role]);
}

/* The same for operators that are pruned. */
static bool is_pruned_in(const fp_layer_job *job, int role, int group)
{
	return in_group(job, role, group) && fp_layer_task_has(job->task, job->dense->index, (fp_role)role);
}

static int group_operators(const fp_layer_job *job, int group)
{
	int count = 0;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		count += is_pruned_in(job, role, group);
	return count;
}

fp_status fp_finish_bias(const fp_layer_job *job, fp_role role)
{
	const fp_layer_task *task = job->task;
	fp_backend *be = task->be;
	fp_matrix bias = job->pruned->bias[role];
	const fp_tensor_info *tensor = fp_model_operator_bias(task->model, job->pruned->index, role);
	char *bytes = NULL;
	fp_status status = FP_OK;
	if (!tensor || !task->output.bias_done)
		return FP_OK;
	FP_TRY(FP_NEW(task->ctx, &bytes, tensor->bytes));
	FP_TRY(be->memory->download(be, bytes, tensor->dtype, bias.cols, bias));
	FP_TRY(task->output.bias_done(task->output.data, tensor, bytes));
cleanup:
	fp_free(bytes);
	return status;
}

/* own: the same statistics if nothing needs them afterwards, else NULL. */
static fp_status solve_group(fp_layer_job *job, int group, const fp_statistics *statistics, fp_statistics *own)
{
	const fp_layer_task *task = job->task;
	fp_gram gram = {0};
	fp_status status = fp_gram_new(&gram, task->be, statistics->A);
	const fp_matrix none = {0};
	int left = group_operators(job, group);
	gram.shared = left > 1;
	for (int role = 0; status == FP_OK && role < FP_ROLE_COUNT; role++) {
		if (!is_pruned_in(job, role, group))
			continue;
		bool rows = fp_layer_task_pattern(task, job->dense->index, (fp_role)role).group == 0;
		fp_operator_result *result = &job->results[role];
		*result = (fp_operator_result){.tensor = fp_model_operator(task->model, job->dense->index, (fp_role)role),
									   .layer = job->dense->index,
									   .role = (fp_role)role};
		if (task->selection && fp_selection_has_rule(task->selection, result->layer, result->role))
			snprintf(result->pattern, sizeof result->pattern, "%s",
					 fp_selection_text(task->selection, result->layer, result->role));
		status = fp_check_interrupt(task->ctx);
		if (status == FP_OK)
			status =
				fp_prune_operator(task, statistics, --left == 0 ? own : NULL, &gram,
								  &(fp_operator){.W = job->dense->weight[role],
												 .V = job->pruned->weight[role],
												 .bias = job->pruned->bias[role],
												 .importance = rows ? job->importance.weight[role] : none,
												 .inverse_importance = rows ? job->importance.inverse[role] : none},
								  result);
		if (status == FP_OK && result->bias_updated && !fp_layer_is_fitted(task))
			status = fp_finish_bias(job, (fp_role)role);
	}
	fp_gram_free(&gram);
	return status;
}

/* What to accumulate for the group. */
static fp_statistics_plan statistics_plan(const fp_layer_job *job, int group)
{
	const fp_layer_task *task = job->task;
	int64_t batch = task->streams ? fp_streams_batch_tokens(task->streams) : 0;
	fp_statistics_plan plan = fp_group_statistics_plan(task->model, task->settings, job->dense->index, group, batch);
	plan.centred = plan.centred && task->streams;
	for (int role = 0; role < FP_ROLE_COUNT && plan.only.rows > 0; role++)
		if (in_group(job, role, group))
			plan.only = job->dense->weight[role];
	return plan;
}

/* With correction: a group's inputs depend on the pruned groups before it. */
static fp_status prune_corrected_group(fp_layer_job *job, int group)
{
	const fp_layer_task *task = job->task;
	fp_statistics statistics = {0};
	fp_statistics_plan plan = statistics_plan(job, group);
	bool dense = !plan.two_streams && !plan.centred;
	const fp_statistics *kept = dense ? fp_dense_statistics_find(task->kept, job->dense->index, group) : NULL;
	fp_status status;
	if (kept)
		return solve_group(job, group, kept, NULL);
	FP_TRY(fp_statistics_new(&statistics, task->be, &plan));
	FP_TRY(fp_pass_group(job, group, &statistics));
	FP_TRY(fp_statistics_finish(&statistics));
	FP_TRY(solve_group(job, group, &statistics, &statistics));
	if (dense)
		fp_dense_statistics_keep(task->kept, job->dense->index, group, &statistics);
cleanup:
	fp_statistics_free(&statistics);
	return status;
}

/* statistics[group] ← from one pass over the text, or A = I without text; for all groups */
static fp_status measure_uncorrected(fp_layer_job *job, fp_statistics statistics[FP_GROUP_COUNT])
{
	fp_status status = FP_OK;
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		fp_statistics_plan plan = statistics_plan(job, group);
		FP_TRY(fp_statistics_new(&statistics[group], job->task->be, &plan));
	}
	if (job->task->streams)
		FP_TRY(fp_pass_uncorrected(job, statistics));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		if (job->task->streams)
			FP_TRY(fp_statistics_finish(&statistics[group]));
		else
			FP_TRY(fp_statistics_identity(&statistics[group]));
	}
cleanup:
	return status;
}

static fp_status prune_uncorrected(fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	int64_t index = job->dense->index;
	fp_statistics own[FP_GROUP_COUNT] = {{0}};
	/* the first layer's inputs are always the dense model's; centred statistics are not kept */
	bool dense = (job->feed == FP_FEED_NONE || index == 0) && !task->settings->bias_update;
	bool kept = dense && fp_dense_statistics_cover(task->kept, index, index + 1);
	fp_status status = FP_OK;
	if (!kept)
		FP_TRY(measure_uncorrected(job, own));
	else if (task->streams && (job->feed == FP_FEED_NONE || fp_layer_is_fitted(task)))
		FP_TRY(fp_streams_forward(task->streams, FP_DENSE, job->dense));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		FP_TRY(solve_group(job, group, kept ? fp_dense_statistics_find(task->kept, index, group) : &own[group], NULL));
		if (!kept && dense && task->streams)
			fp_dense_statistics_keep(task->kept, index, group, &own[group]);
	}
cleanup:
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		fp_statistics_free(&own[group]);
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
static int pruned_stream(const fp_streams *streams)
{
	return streams->count == 1 ? FP_DENSE : FP_PRUNED;
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
		FP_TRY(fp_streams_copy(streams, FP_LAYER_INPUT, pruned_stream(streams)));
cleanup:
	return status;
}

/* Moves the streams past a layer that is not fitted, and uploads the next layer's weights at the same time. Both are in
 * one stage, since a change of stage waits for the device. */
static fp_status leave_layer(fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	fp_stage stage = fp_stage_enter(task->ctx, FP_STAGE_FORWARD);
	int64_t next = job->pruned->index + 1;
	fp_status status;
	if (job->corrected) {
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
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (!fp_layer_task_has(job->task, job->pruned->index, (fp_role)role))
			FP_TRY(fp_layer_give_operator(job->pruned, (fp_role)role, to->bias_done, to->data));
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
	FP_TRY(take(&job.dense, task, index));
	FP_TRY(fp_layer_copy(&job.pruned, job.dense));
	if (fp_model_basis(task->model))
		FP_TRY(fp_layer_round_vectors(job.pruned));
	FP_TRY(prepare_streams(&job));
	if (streams && fp_row_importance_wanted(task->settings, &task->pattern, task->selection, task->be))
		FP_TRY(fp_row_importance_new(&job.importance, job.dense, streams));
	for (int group = 0; job.corrected && group < FP_GROUP_COUNT; group++)
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
	if (fp_layer_is_fitted(task))
		goto cleanup;
	if (streams && !task->last && (job.corrected || job.feed == FP_FEED_SEQUENTIAL))
		FP_TRY(leave_layer(&job));
cleanup:
	fp_row_importance_free(task->be, &job.importance);
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
