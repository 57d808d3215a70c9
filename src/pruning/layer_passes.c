/* SPDX-License-Identifier: Apache-2.0 */
/* layer_passes.c: passes over all batches of the streams, which accumulate the statistics of a layer's groups. */
#include "base/clock.h"
#include "pruning/layer_job.h"

/* The weights that a stream passes through. */
static const fp_layer *layer_of(const fp_layer_job *job, int stream)
{
	return stream == FP_PRUNED ? job->pruned : job->dense;
}

/* Moves one batch of a stream past `group`. */
static fp_status advance(const fp_layer_job *job, int stream, int group, int64_t first)
{
	const fp_layer *layer = layer_of(job, stream);
	fp_streams *streams = job->task->streams;
	fp_layer_state state = fp_streams_batch(streams, stream, first);
	fp_matrix input;
	if (!fp_group_advances(group))
		return FP_OK;
	fp_status status = fp_layer_input(layer, group, &state, streams->workspace[stream], &input);
	return status == FP_OK ? fp_layer_advance(layer, group, input, &state, streams->workspace[stream]) : status;
}

/* Accumulates the inputs of `group` for one batch of both streams. The dense stream then moves past the group in the same
 * pass, since pruning does not change its inputs; except past attention, whose outputs would have to be kept for all
 * batches. */
static fp_status fold(const fp_layer_job *job, int group, int64_t first, fp_group_statistics *statistics)
{
	fp_streams *streams = job->task->streams;
	fp_context *ctx = job->task->ctx;
	fp_layer_state state[FP_STREAM_COUNT];
	fp_group_rows rows[FP_STREAM_COUNT];
	const fp_routing *routing = NULL;
	fp_status status;
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		state[s] = fp_streams_batch(streams, s, first);
		state[s].routing = routing;
		rows[s] = (fp_group_rows){layer_of(job, s), streams->workspace[s], &state[s], {0}};
		FP_TRY(fp_layer_input(rows[s].layer, group, &state[s], streams->workspace[s], &rows[s].X));
		if (group >= fp_role_group(FP_UP)) /* the pruned stream follows the dense one (group_statistics.h) */
			routing = fp_layer_expert_rows(rows[s].layer, streams->workspace[s]).routing;
	}
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_STATISTICS);
	status = fp_group_statistics_fold(statistics, &rows[FP_DENSE], &rows[FP_PRUNED]);
	fp_stage_enter(ctx, stage);
	if (status == FP_OK && group >= FP_GROUP_OUTPUT && statistics->ends)
		status = fp_layer_advance(job->dense, group, rows[FP_DENSE].X, &state[FP_DENSE], streams->workspace[FP_DENSE]);
cleanup:
	return status;
}

/* What a pass does with each batch of windows. statistics: one, or one for each group. */
typedef fp_status (*batch_step)(const fp_layer_job *job, int group, int64_t first, fp_group_statistics *statistics);

/* The group after which attention's outputs are added to the residual stream. */
static int output_group(const fp_layer_job *job)
{
	return fp_model_get_config(job->task->model)->parallel ? FP_GROUP_DOWN : FP_GROUP_OUTPUT;
}

/* True if a pass over the inputs of `group` changes the hidden states of a stream: the dense stream moves past the group,
 * the pruned one past the group before it. Only the output and down groups write to the residual stream. */
static bool changes(const fp_layer_job *job, int group, int stream, const fp_group_statistics *folded)
{
	const int output = output_group(job), down = FP_GROUP_DOWN;
	if (!job->corrected) {
		const fp_group_statistics *last = &folded[down];
		if (!last->ends)
			return last->starts;                                           /* for the passes that follow */
		return job->feed == FP_FEED_NONE || fp_layer_is_fitted(job->task); /* the fit's target */
	}
	if (stream == FP_PRUNED)
		return (group == output + 1 && (!folded || folded->starts)) || group == down + 1;
	return folded && folded->ends && (group == output || group == down);
}

/* Runs a pass over both streams with correction, or over the dense stream without. */
static fp_status each_batch(const fp_layer_job *job, batch_step step, int group, fp_group_statistics *statistics)
{
	fp_streams *streams = job->task->streams;
	fp_context *ctx = job->task->ctx;
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_FORWARD);
	FP_PRODUCTS_FOR(job->task->be, FP_USE_ACTIVATION);
	int count = job->corrected ? FP_STREAM_COUNT : 1;
	int sets = !statistics ? 0 : job->corrected ? 1 : FP_GROUP_COUNT;
	bool stores[FP_STREAM_COUNT];
	fp_status status;
	FP_TRY(fp_streams_begin_pass(streams));
	for (int s = 0; s < count; s++)
		stores[s] = changes(job, group, s, statistics);
	for (int s = 0; s < count; s++)
		if (stores[s])
			fp_streams_begin_store(streams, s);
	for (int64_t first = 0; first < streams->windows; first = fp_streams_next(streams, first)) {
		FP_TRY(fp_check_interrupt(ctx));
		for (int s = 0; s < count; s++)
			FP_TRY(fp_streams_fetch(streams, s, first));
		for (int i = 0; i < sets && fp_streams_begins_part(streams, first); i++)
			FP_TRY(fp_group_statistics_begin_part(&statistics[i], fp_streams_part(streams, first)));
		FP_TRY(step(job, group, first, statistics));
		for (int i = 0; i < sets && fp_streams_ends_part(streams, first); i++)
			FP_TRY(fp_group_statistics_end_part(&statistics[i]));
		for (int s = 0; s < count; s++)
			if (stores[s])
				FP_TRY(fp_streams_store(streams, s, first));
	}
	for (int s = 0; s < count; s++)
		if (stores[s])
			fp_streams_stored(streams, s);
cleanup:
	fp_streams_end_pass(streams);
	fp_stage_enter(ctx, stage);
	return status;
}

/* Computes a stream's attention outputs. */
static fp_status pass_attention(const fp_layer_job *job, int stream, int64_t first)
{
	return advance(job, stream, FP_GROUP_KEY_VALUE, first);
}

/* Recomputes the pruned stream's attention outputs, which it adds behind `group`, if they are not kept between passes. */
static fp_status recompute_context(const fp_layer_job *job, int group, int64_t first)
{
	if (group != output_group(job) || job->task->streams->residence == FP_RESIDENT)
		return FP_OK;
	return pass_attention(job, FP_PRUNED, first);
}

/* Recomputes those of the dense stream if it adds them behind another group than the one that reads them. */
static fp_status recompute_dense_context(const fp_layer_job *job, int group, int64_t first)
{
	if (group != output_group(job) || group == FP_GROUP_OUTPUT)
		return FP_OK;
	return pass_attention(job, FP_DENSE, first);
}

/* One batch of fp_pass_group() or, without statistics, of fp_pass_end(). The pruned stream moves past the end of the
 * layer only if the next layer reads it. */
static fp_status pass_batch(const fp_layer_job *job, int group, int64_t first, fp_group_statistics *statistics)
{
	bool pruned = group < FP_GROUP_COUNT || (job->feed == FP_FEED_CROSS && !fp_layer_is_fitted(job->task));
	bool starts = !statistics || statistics->starts;
	fp_status status = FP_OK;
	if (job->dense_past < group && starts)
		FP_TRY(advance(job, FP_DENSE, group - 1, first));
	if (group > 0 && pruned && starts) {
		FP_TRY(recompute_context(job, group - 1, first));
		FP_TRY(advance(job, FP_PRUNED, group - 1, first));
	}
	if (statistics) {
		FP_TRY(recompute_dense_context(job, group, first));
		FP_TRY(fold(job, group, first, statistics));
	}
cleanup:
	return status;
}

fp_status fp_pass_group(fp_layer_job *job, int group, fp_group_statistics *statistics)
{
	fp_status status = each_batch(job, pass_batch, group, statistics);
	job->dense_past = group >= FP_GROUP_OUTPUT ? group + 1 : 0;
	return status;
}

fp_status fp_pass_end(fp_layer_job *job)
{
	return each_batch(job, pass_batch, FP_GROUP_COUNT, NULL);
}

static fp_status fold_all_groups(const fp_layer_job *job, int group, int64_t first, fp_group_statistics *statistics)
{
	fp_streams *streams = job->task->streams;
	fp_context *ctx = job->task->ctx;
	fp_layer_state state = fp_streams_batch(streams, FP_DENSE, first);
	fp_group_rows rows = {job->dense, streams->workspace[FP_DENSE], &state, {0}};
	fp_status status = FP_OK;
	for (; group < FP_GROUP_COUNT; group++) {
		FP_TRY(fp_layer_input(job->dense, group, &state, streams->workspace[FP_DENSE], &rows.X));
		fp_stage stage = fp_stage_enter(ctx, FP_STAGE_STATISTICS);
		status = fp_group_statistics_fold(&statistics[group], &rows, &rows);
		fp_stage_enter(ctx, stage);
		if (status == FP_OK && statistics[group].ends)
			status = fp_layer_advance(job->dense, group, rows.X, &state, streams->workspace[FP_DENSE]);
		if (status != FP_OK)
			goto cleanup;
	}
cleanup:
	return status;
}

fp_status fp_pass_uncorrected(fp_layer_job *job, fp_group_statistics *statistics)
{
	bool starts = statistics[fp_role_group(FP_DOWN)].starts;
	return each_batch(job, fold_all_groups, starts ? 0 : fp_role_group(FP_UP), statistics);
}
