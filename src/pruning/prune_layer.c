/* SPDX-License-Identifier: Apache-2.0 */
/* prune_layer.c: the order of work in a layer: statistics, solve, fit, and the streams' way to the next layer. */
#include "pruning/prune_layer.h"

#include "base/clock.h"
#include "base/memory.h"
#include "model/basis.h"
#include "pruning/layer_job.h"
#include "pruning/prune_operator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double FEW_TOKENS_RIDGE = 0.05; /* relative to the mean of the diagonal, at half of FP_ENOUGH_TOKENS */

bool fp_layer_is_fitted(const fp_layer_task *task)
{
	return task->settings->fit_steps > 0 && task->streams;
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

/* Whether an operator that is pruned belongs to the group and the expert (−1: to none). */
static bool is_pruned_in(const fp_layer_job *job, int number, int group, int64_t expert)
{
	return fp_role_group(number) == group && fp_operator_expert(number) == expert &&
		   !fp_matrix_is_absent(job->dense->weight[number]) && fp_layer_task_has(job->task, job->dense->index, number);
}

static int group_operators(const fp_layer_job *job, int group, int64_t expert)
{
	int count = 0;
	for (int i = 0; i < fp_model_operators(job->task->model); i++)
		count += is_pruned_in(job, i, group, expert);
	return count;
}

fp_status fp_finish_bias(const fp_layer_job *job, int number)
{
	const fp_layer_task *task = job->task;
	fp_backend *be = task->be;
	fp_matrix bias = job->pruned->bias[number];
	const fp_tensor_info *tensor = fp_model_operator_bias(task->model, job->pruned->index, number);
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

/* Prunes one operator. `last`: as in fp_prune_operator(). */
static fp_status solve_operator(fp_layer_job *job, int number, const fp_statistics *statistics, fp_statistics *last,
								fp_gram *gram)
{
	const fp_layer_task *task = job->task;
	const fp_matrix none = {0};
	int64_t index = job->dense->index;
	bool weighs = fp_layer_task_pattern(task, index, number).group == 0 && job->importance.weight;
	fp_operator_result *result = &job->results[number];
	fp_status status;
	*result =
		(fp_operator_result){.tensor = fp_model_operator(task->model, index, number),
							 .layer = index,
							 .number = number,
							 .tokens = fp_operator_expert(number) < 0 || !task->streams ? -1 : statistics->tokens};
	if (task->selection && fp_selection_has_rule(task->selection, index, number))
		snprintf(result->pattern, sizeof result->pattern, "%s", fp_selection_text(task->selection, index, number));
	FP_TRY(fp_check_interrupt(task->ctx));
	FP_TRY(fp_prune_operator(task, statistics, last, gram,
							 &(fp_operator){.W = job->dense->weight[number],
											.V = job->pruned->weight[number],
											.bias = job->pruned->bias[number],
											.importance = weighs ? job->importance.weight[number] : none,
											.inverse_importance = weighs ? job->importance.inverse[number] : none},
							 result));
	if (result->bias_updated && !fp_layer_is_fitted(task))
		FP_TRY(fp_finish_bias(job, number));
	FP_TRY(fp_keep_inputs(&job->kept_inputs, task, number, gram));
cleanup:
	return status;
}

/* Operators of the group and the expert (−1: of none). own: the same statistics if nothing needs them afterwards, else
 * NULL. */
static fp_status solve_group(fp_layer_job *job, int group, int64_t expert, const fp_statistics *statistics,
							 fp_statistics *own)
{
	const fp_layer_task *task = job->task;
	fp_gram gram = {0};
	int left = group_operators(job, group, expert);
	if (left == 0)
		return FP_OK;
	fp_status status = fp_gram_new(&gram, task->be, statistics->A);
	gram.shared = left > 1;
	for (int i = 0; status == FP_OK && i < fp_model_operators(task->model); i++)
		if (is_pruned_in(job, i, group, expert))
			status = solve_operator(job, i, statistics, --left == 0 ? own : NULL, &gram);
	fp_gram_free(&gram);
	return status;
}

/* Experts that few tokens reach get a stronger ridge: A of p tokens knows n inputs badly unless p is several times n. One
 * that no token reaches is pruned by the sizes of its weights. */
static fp_status strengthen(fp_layer_job *job, fp_statistics *statistics)
{
	const double most = 1, enough = FP_ENOUGH_TOKENS * (double)statistics->A.rows, tokens = (double)statistics->tokens;
	if (!job->task->streams || tokens >= enough)
		return FP_OK;
	if (tokens == 0)
		return fp_statistics_identity(statistics);
	return fp_statistics_add_ridge(statistics, fmin(FEW_TOKENS_RIDGE * (enough / tokens - 1), most));
}

static fp_status solve_experts(fp_layer_job *job, int group, fp_group_statistics *set)
{
	fp_status status = FP_OK;
	for (int64_t e = set->first; e < set->end; e++) {
		fp_statistics *statistics = &set->experts[e - set->first];
		FP_TRY(strengthen(job, statistics));
		FP_TRY(solve_group(job, group, e, statistics, statistics));
		fp_statistics_free(statistics);
	}
cleanup:
	return status;
}

static fp_status solve_set(fp_layer_job *job, int group, fp_group_statistics *set, fp_statistics *own)
{
	fp_status status = FP_OK;
	if (set->own.be)
		FP_TRY(solve_group(job, group, -1, &set->own, own));
	FP_TRY(solve_experts(job, group, set));
cleanup:
	return status;
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
		return solve_group(job, group, -1, kept, NULL);
	for (int64_t first = 0; !set.ends; first += step) {
		fp_group_statistics_free(&set);
		FP_TRY(fp_group_statistics_new(&set, task, job->dense, group, first, first + step));
		FP_TRY(fp_pass_group(job, group, &set));
		FP_TRY(fp_group_statistics_finish(&set));
		FP_TRY(solve_set(job, group, &set, &set.own));
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
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		FP_TRY(task->streams ? fp_group_statistics_finish(&sets[group]) : fp_group_statistics_identity(&sets[group]));
cleanup:
	return status;
}

static fp_status prune_uncorrected(fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	int64_t index = job->dense->index;
	fp_group_statistics sets[FP_GROUP_COUNT] = {{.first = 0}};
	/* the first layer's inputs are always the dense model's; centred statistics are not kept */
	bool dense = (job->feed == FP_FEED_NONE || index == 0) && !task->settings->bias_update;
	bool kept = dense && fp_dense_statistics_cover(task->kept, index, index + 1), done = kept;
	fp_status status = FP_OK;
	if (kept && task->streams && (job->feed == FP_FEED_NONE || fp_layer_is_fitted(task)))
		FP_TRY(fp_streams_forward(task->streams, FP_DENSE, job->dense));
	for (int group = 0; kept && group < FP_GROUP_COUNT; group++)
		FP_TRY(solve_group(job, group, -1, fp_dense_statistics_find(task->kept, index, group), NULL));
	for (int64_t first = 0; !done; first += experts_at_once(job)) {
		FP_TRY(measure_uncorrected(job, first, sets));
		for (int group = 0; group < FP_GROUP_COUNT; group++) {
			FP_TRY(solve_set(job, group, &sets[group], NULL));
			if (dense && task->streams && !fp_config_has_experts(fp_model_get_config(task->model), index))
				fp_dense_statistics_keep(task->kept, index, group, &sets[group].own);
		}
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
	FP_TRY(fp_kept_inputs_new(&job.kept_inputs, task));
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
	fp_kept_inputs_free(&job.kept_inputs, task);
	fp_free(job.results);
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
