/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/prune_layer.h"

#include "base/clock.h"
#include "base/memory.h"
#include "pruning/prune_operator.h"
#include "pruning/row_importance.h"

#include <string.h>

fp_feed fp_feed_of(const fp_settings *settings)
{
	/* magnitude looks at no input: its error is told on the dense model's, which needs one stream only */
	if (fp_is(settings->method, "magnitude") && settings->fit_steps == 0)
		return FP_FEED_NONE;
	if (!fp_is(settings->method, "fista"))
		return FP_FEED_SEQUENTIAL;
	if (fp_is(settings->correction, "none"))
		return FP_FEED_NONE;
	return fp_is(settings->correction, "cross") ? FP_FEED_CROSS : FP_FEED_INTRA;
}

bool fp_feed_needs_both(fp_feed feed)
{
	return feed != FP_FEED_NONE;
}

bool fp_feed_chains_layers(fp_feed feed)
{
	return feed == FP_FEED_SEQUENTIAL || feed == FP_FEED_CROSS;
}

bool fp_group_is_corrected(const fp_settings *settings, int group)
{
	/* before anything of the layer is pruned the two streams of an independent layer are one, the dense model's */
	fp_feed feed = fp_feed_of(settings);
	return feed == FP_FEED_CROSS || (feed == FP_FEED_INTRA && group > 0);
}

bool fp_group_repairs(const fp_settings *settings, int group)
{
	if (group == fp_role_group(FP_DOWN))
		return settings->residual > 0 && fp_group_is_corrected(settings, group);
	return group == fp_role_group(FP_OUTPUT) && settings->residual_output > 0 && fp_feed_of(settings) == FP_FEED_CROSS;
}

/* One layer being pruned. */
typedef struct layer_job {
	const fp_layer_task *task;
	fp_feed feed;
	fp_layer *dense, *pruned;
	bool corrected; /* X* runs through the pruned operators: two streams */
	int dense_past; /* groups that the dense stream has gone past */
	fp_row_importance importance;
	fp_operator_result results[FP_ROLE_COUNT];
} layer_job;

bool fp_layer_is_fitted(const fp_layer_task *task)
{
	return task->settings->fit_steps > 0 && task->streams;
}

/* Which weights a stream runs through. */
static const fp_layer *layer_of(const layer_job *job, int stream)
{
	return stream == FP_PRUNED ? job->pruned : job->dense;
}

/* Moves one batch of a stream past `group`. */
static fp_status advance(const layer_job *job, int stream, int group, int64_t first)
{
	const fp_layer *layer = layer_of(job, stream);
	fp_streams *streams = job->task->streams;
	fp_layer_state state = fp_streams_batch(streams, stream, first);
	fp_matrix input;
	fp_status status = fp_layer_input(layer, group, &state, streams->workspace[stream], &input);
	return status == FP_OK ? fp_layer_advance(layer, group, input, &state, streams->workspace[stream]) : status;
}

/* The inputs of `group` for one batch of both streams, folded into the statistics. The dense stream goes on past the
 * group at once: its inputs are at hand, and nothing that is pruned changes them. Not past the first, whose result,
 * attention's, would have to be kept for all batches. */
static fp_status fold(const layer_job *job, int group, int64_t first, fp_statistics *statistics)
{
	fp_streams *streams = job->task->streams;
	fp_context *ctx = fp_model_backend(job->task->model)->ctx;
	fp_layer_state state[FP_STREAM_COUNT];
	fp_matrix X[FP_STREAM_COUNT];
	fp_status status;
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		state[s] = fp_streams_batch(streams, s, first);
		FP_TRY(fp_layer_input(layer_of(job, s), group, &state[s], streams->workspace[s], &X[s]));
	}
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_STATISTICS);
	status = fp_statistics_fold(statistics, X[FP_DENSE], X[FP_PRUNED]);
	if (status == FP_OK && !fp_matrix_is_absent(statistics->residual))
		status = fp_statistics_fold_residual(statistics, state[FP_DENSE].hidden, state[FP_PRUNED].hidden, X[FP_PRUNED]);
	fp_stage_enter(ctx, stage);
	if (status == FP_OK && group > 0)
		status = fp_layer_advance(job->dense, group, X[FP_DENSE], &state[FP_DENSE], streams->workspace[FP_DENSE]);
cleanup:
	return status;
}

/* What is done with each batch of windows; `statistics`: the caller's, one or one for each group. */
typedef fp_status (*batch_step)(const layer_job *job, int group, int64_t first, fp_statistics *statistics);

/* Whether a pass over the inputs of `group` moves the hidden states of a stream on: the dense stream goes past the
 * group in it, the pruned one past the group before. */
static bool changes(const layer_job *job, int group, int stream, bool folds)
{
	const int output = fp_role_group(FP_OUTPUT), down = fp_role_group(FP_DOWN);
	if (!job->corrected)
		return job->feed == FP_FEED_NONE || fp_layer_is_fitted(job->task); /* a fit's target */
	if (stream == FP_PRUNED)
		return group == output + 1 || group == down + 1;
	return folds && (group == output || group == down);
}

/* With correction both streams are walked over, else the dense one. */
static fp_status each_batch(const layer_job *job, batch_step step, int group, fp_statistics *statistics)
{
	fp_streams *streams = job->task->streams;
	fp_backend *be = fp_model_backend(job->task->model);
	fp_context *ctx = be->ctx;
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_FORWARD);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	int count = job->corrected ? FP_STREAM_COUNT : 1;
	bool stores[FP_STREAM_COUNT];
	fp_status status;
	FP_TRY(fp_streams_begin_pass(streams));
	for (int s = 0; s < count; s++)
		stores[s] = changes(job, group, s, statistics != NULL);
	for (int s = 0; s < count; s++)
		if (stores[s])
			fp_streams_begin_store(streams, s);
	for (int64_t first = 0; first < streams->windows; first += streams->batch) {
		FP_TRY(fp_check_interrupt(ctx));
		for (int s = 0; s < count; s++)
			FP_TRY(fp_streams_fetch(streams, s, first));
		FP_TRY(step(job, group, first, statistics));
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

/* The pruned stream's attention outputs, the input of `group`, are made again where they are not kept between passes.
 */
static fp_status renew_context(const layer_job *job, int group, int64_t first)
{
	if (group != fp_role_group(FP_OUTPUT) || job->task->streams->residence == FP_RESIDENT)
		return FP_OK;
	return advance(job, FP_PRUNED, group - 1, first);
}

/* Takes both streams past the group before (none for the first) and folds the inputs of `group` (none past the last).
 * Behind the layer the pruned stream is wanted only where the next layer reads it. */
static fp_status sweep(const layer_job *job, int group, int64_t first, fp_statistics *statistics)
{
	bool pruned = group < FP_GROUP_COUNT || (job->feed == FP_FEED_CROSS && !fp_layer_is_fitted(job->task));
	fp_status status = FP_OK;
	if (job->dense_past < group)
		FP_TRY(advance(job, FP_DENSE, group - 1, first));
	if (group > 0 && pruned) {
		FP_TRY(renew_context(job, group - 1, first));
		FP_TRY(advance(job, FP_PRUNED, group - 1, first));
	}
	if (statistics)
		FP_TRY(fold(job, group, first, statistics));
cleanup:
	return status;
}

/* Without correction nothing depends on what is pruned: one pass folds the inputs of all groups and takes the dense
 * stream behind the layer. */
static fp_status collect(const layer_job *job, int group, int64_t first, fp_statistics *statistics)
{
	fp_streams *streams = job->task->streams;
	fp_context *ctx = fp_model_backend(job->task->model)->ctx;
	fp_layer_state state = fp_streams_batch(streams, FP_DENSE, first);
	fp_status status = FP_OK;
	for (; group < FP_GROUP_COUNT; group++) {
		fp_matrix X;
		FP_TRY(fp_layer_input(job->dense, group, &state, streams->workspace[FP_DENSE], &X));
		fp_stage stage = fp_stage_enter(ctx, FP_STAGE_STATISTICS);
		status = fp_statistics_fold(&statistics[group], X, X);
		fp_stage_enter(ctx, stage);
		if (status == FP_OK)
			status = fp_layer_advance(job->dense, group, X, &state, streams->workspace[FP_DENSE]);
		if (status != FP_OK)
			goto cleanup;
	}
cleanup:
	return status;
}

/* How many operators the group has; *first, unless NULL, ← the first one's weights. */
static int group_operators(const layer_job *job, int group, fp_matrix *first)
{
	int count = 0;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = job->dense->weight[role];
		if (fp_role_group((fp_role)role) == group && !fp_matrix_is_absent(weight) && count++ == 0 && first)
			*first = weight;
	}
	return count;
}

/* The operators' biases take the means upon themselves: asked for, and every operator of the group has one. */
static bool updates_biases(const layer_job *job, int group)
{
	if (!job->task->settings->bias_update || !job->task->streams)
		return false;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (fp_role_group((fp_role)role) == group && !fp_matrix_is_absent(job->dense->weight[role]) &&
			fp_matrix_is_absent(job->dense->bias[role]))
			return false;
	return true;
}

/* A changed bias, which is already rounded to the checkpoint's type, on its way out. */
static fp_status finish_bias(const layer_job *job, fp_role role)
{
	const fp_layer_task *task = job->task;
	fp_backend *be = fp_model_backend(task->model);
	fp_matrix bias = job->pruned->bias[role];
	const fp_tensor_info *tensor = fp_model_operator_bias(task->model, job->pruned->index, role);
	char *bytes = NULL;
	fp_status status = FP_OK;
	if (!tensor || !task->bias_done)
		return FP_OK;
	FP_TRY(FP_NEW(be->ctx, &bytes, tensor->bytes));
	FP_TRY(be->memory->download(be, bytes, tensor->dtype, bias.cols, bias));
	FP_TRY(task->bias_done(task->done_data, tensor, bytes));
cleanup:
	fp_free(bytes);
	return status;
}

/* own: the same statistics where nobody wants them after this group, else NULL. */
static fp_status solve_group(layer_job *job, int group, const fp_statistics *statistics, fp_statistics *own)
{
	const fp_layer_task *task = job->task;
	fp_backend *be = fp_model_backend(task->model);
	fp_gram gram = {0};
	fp_status status = fp_gram_new(&gram, be, statistics->A);
	int left = group_operators(job, group, NULL);
	gram.shared = left > 1;
	for (int role = 0; status == FP_OK && role < FP_ROLE_COUNT; role++) {
		if (fp_role_group((fp_role)role) != group || fp_matrix_is_absent(job->dense->weight[role]))
			continue;
		fp_operator_result *result = &job->results[role];
		*result = (fp_operator_result){.tensor = fp_model_operator(task->model, job->dense->index, (fp_role)role),
									   .layer = job->dense->index,
									   .role = (fp_role)role};
		status = fp_check_interrupt(be->ctx);
		if (status == FP_OK)
			status = fp_prune_operator(task, statistics, --left == 0 ? own : NULL, &gram,
									   &(fp_operator){.W = job->dense->weight[role],
													  .V = job->pruned->weight[role],
													  .bias = job->pruned->bias[role],
													  .importance = job->importance.weight[role],
													  .inverse_importance = job->importance.inverse[role]},
									   result);
		if (status == FP_OK && result->bias_updated && !fp_layer_is_fitted(task))
			status = finish_bias(job, (fp_role)role);
	}
	fp_gram_free(&gram);
	return status;
}

/* What is folded of the group's inputs. */
static fp_statistics_plan statistics_plan(const layer_job *job, int group)
{
	const fp_layer_task *task = job->task;
	fp_matrix first = {0};
	bool alone = group_operators(job, group, &first) == 1;
	return (fp_statistics_plan){
		.inputs = first.cols,
		.batch = task->streams ? fp_streams_batch_tokens(task->streams) : 0,
		.two_streams = fp_group_is_corrected(task->settings, group),
		.centred = updates_biases(job, group),
		.residual_outputs = fp_group_repairs(task->settings, group) ? fp_model_get_config(task->model)->hidden : 0,
		.only = alone ? first : (fp_matrix){0}};
}

/* With correction: a group's inputs depend on what became of the groups before it. */
static fp_status prune_corrected_group(layer_job *job, int group)
{
	const fp_layer_task *task = job->task;
	fp_statistics statistics = {0};
	fp_statistics_plan plan = statistics_plan(job, group);
	bool dense = !plan.two_streams && !plan.centred;
	const fp_statistics *kept = dense ? fp_dense_statistics_find(task->kept, job->dense->index, group) : NULL;
	fp_status status;
	if (kept)
		return solve_group(job, group, kept, NULL);
	FP_TRY(fp_statistics_new(&statistics, fp_model_backend(task->model), &plan));
	FP_TRY(each_batch(job, sweep, group, &statistics));
	job->dense_past = group > 0 ? group + 1 : 0;
	FP_TRY(fp_statistics_finish(&statistics));
	FP_TRY(solve_group(job, group, &statistics, &statistics));
	if (dense)
		fp_dense_statistics_keep(task->kept, job->dense->index, group, &statistics);
cleanup:
	fp_statistics_free(&statistics);
	return status;
}

/* Without correction. */
static fp_status prune_uncorrected(layer_job *job)
{
	const fp_layer_task *task = job->task;
	fp_backend *be = fp_model_backend(task->model);
	int64_t index = job->dense->index;
	fp_statistics own[FP_GROUP_COUNT] = {{0}};
	/* the first layer's inputs are the dense model's in any case; but centred statistics are not kept */
	bool dense = (job->feed == FP_FEED_NONE || index == 0) && !task->settings->bias_update;
	bool kept = dense && fp_dense_statistics_cover(task->kept, index, index + 1);
	fp_status status = FP_OK;
	for (int group = 0; !kept && group < FP_GROUP_COUNT; group++) {
		fp_statistics_plan plan = statistics_plan(job, group);
		FP_TRY(fp_statistics_new(&own[group], be, &plan));
	}
	if (!kept && task->streams) {
		FP_TRY(each_batch(job, collect, 0, own));
		for (int group = 0; group < FP_GROUP_COUNT; group++)
			FP_TRY(fp_statistics_finish(&own[group]));
	} else if (!kept)
		for (int group = 0; group < FP_GROUP_COUNT; group++)
			FP_TRY(fp_statistics_identity(&own[group]));
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
	fp_context *ctx = fp_model_backend(task->model)->ctx;
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_LOAD);
	fp_status status = fp_layer_load(out, task->model, index);
	fp_stage_enter(ctx, stage);
	return status;
}

/* *out ← the layer that was loaded ahead, where it is this one, or from the checkpoint. */
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

/* The stream that the pruned model's hidden states are in, before the layer is pruned. */
static int pruned_stream(const fp_streams *streams)
{
	return streams->count == 1 ? FP_DENSE : FP_PRUNED;
}

/* PRUNED ← mix·DENSE + (1 − mix)·PRUNED */
static fp_status mix_streams(fp_streams *streams, float mix)
{
	fp_backend *be = fp_model_backend(streams->model);
	fp_status status;
	FP_TRY(fp_streams_begin_pass(streams));
	fp_streams_begin_store(streams, FP_PRUNED);
	for (int64_t first = 0; first < streams->windows; first += streams->batch) {
		fp_matrix dense = fp_streams_batch(streams, FP_DENSE, first).hidden;
		FP_TRY(fp_streams_fetch(streams, FP_DENSE, first));
		FP_TRY(fp_streams_fetch(streams, FP_PRUNED, first));
		FP_TRY(be->linear->axpby(be, mix, dense, 1 - mix, fp_streams_batch(streams, FP_PRUNED, first).hidden));
		FP_TRY(fp_streams_store(streams, FP_PRUNED, first));
	}
	fp_streams_stored(streams, FP_PRUNED);
cleanup:
	fp_streams_end_pass(streams);
	return status;
}

/* With both streams at the layer's end: *target ← the stream that holds what the fitted layer should give for its
 * input. The dense layer's output for that input, which is the dense stream's, unless errors of layers before are to be
 * repaired too: then the mixture of the two is made in the place of the pruned stream. */
static fp_status fit_target(const layer_job *job, int *target)
{
	fp_streams *streams = job->task->streams;
	float mix = (float)job->task->settings->fit_mix;
	fp_status status = FP_OK;
	*target = FP_DENSE;
	if (job->feed != FP_FEED_CROSS || mix == 1.0F)
		return FP_OK;
	*target = FP_PRUNED;
	FP_TRY(fp_streams_copy(streams, FP_PRUNED, FP_LAYER_INPUT));
	FP_TRY(fp_streams_forward(streams, FP_PRUNED, job->dense));
	FP_TRY(mix_streams(streams, mix));
cleanup:
	return status;
}

typedef struct fit_reader {
	fp_streams *streams;
	int target;
	const fp_token_gradients *gradients;
	int64_t layer;
	fp_matrix kept; /* the layer's gradients, where hidden states are kept in memory too */
} fit_reader;

static fp_status read_window(void *data, int64_t window, fp_matrix input, fp_matrix target)
{
	const fit_reader *reader = data;
	fp_status status = fp_streams_read(reader->streams, FP_LAYER_INPUT, window, input);
	return status == FP_OK ? fp_streams_read(reader->streams, reader->target, window, target) : status;
}

static fp_status read_gradients(void *data, int64_t window, fp_matrix out)
{
	const fit_reader *reader = data;
	fp_backend *be = fp_model_backend(reader->streams->model);
	if (fp_matrix_is_absent(reader->kept))
		return fp_token_gradients_read(reader->gradients, reader->layer, window, 1, out);
	return be->memory->copy(be, out, fp_matrix_rows(reader->kept, window * out.rows, out.rows));
}

static fp_status open_gradients(const layer_job *job, fit_reader *reader, fp_fit_task *fit)
{
	const fp_layer_task *task = job->task;
	fp_streams *streams = task->streams;
	int64_t windows = fp_token_gradients_count(task->gradients);
	fp_status status = FP_OK;
	reader->gradients = task->gradients;
	reader->layer = job->pruned->index;
	fit->read_gradients = read_gradients;
	fit->gradient_windows = windows;
	if (streams->residence == FP_PARKED)
		return FP_OK;
	FP_TRY(fp_matrix_new(fp_model_backend(task->model), &reader->kept, windows * streams->length,
						 fp_model_get_config(task->model)->hidden, FP_F32));
	FP_TRY(fp_token_gradients_read(task->gradients, reader->layer, 0, windows, reader->kept));
cleanup:
	return status;
}

/* Fits the pruned layer, finishes its operators, and takes the pruned stream through it. */
static fp_status fit(layer_job *job)
{
	const fp_layer_task *task = job->task;
	fp_streams *streams = task->streams;
	fit_reader reader = {.streams = streams};
	fp_fit_result result;
	fp_status status;
	fp_fit_task fit = {.settings = task->settings,
					   .layer = job->pruned,
					   .read = read_window,
					   .read_data = &reader,
					   .windows = streams->windows,
					   .length = streams->length,
					   .batch = streams->batch};
	FP_TRY(fit_target(job, &reader.target));
	if (streams->residence != FP_RESIDENT) { /* nothing needs it any more */
		fp_layer_free(job->dense);
		job->dense = NULL;
	}
	if (task->gradients)
		FP_TRY(open_gradients(job, &reader, &fit));
	FP_TRY(fp_fit_layer(&fit, &result));
	fp_matrix_free(fp_model_backend(task->model), &reader.kept); /* before the stream needs its work space */
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (fp_matrix_is_absent(job->pruned->weight[role]))
			continue;
		FP_TRY(fp_finish_operator(task, job->pruned->weight[role], &job->results[role]));
		if (result.steps > 0 || job->results[role].bias_updated)
			FP_TRY(finish_bias(job, (fp_role)role));
	}
	if (task->fit_done)
		FP_TRY(task->fit_done(task->done_data, &result));
	if (!task->last && (job->feed == FP_FEED_CROSS || job->feed == FP_FEED_SEQUENTIAL)) {
		FP_TRY(fp_streams_copy(streams, FP_PRUNED, FP_LAYER_INPUT));
		FP_TRY(fp_streams_forward(streams, FP_PRUNED, job->pruned));
	}
cleanup:
	fp_matrix_free(fp_model_backend(task->model), &reader.kept);
	return status;
}

/* Takes the streams behind a layer that is not fitted, and has the next layer's weights come in while the device is at
 * it: in the same stage, since a change of stages waits for the device. */
static fp_status move_on(layer_job *job)
{
	const fp_layer_task *task = job->task;
	fp_backend *be = fp_model_backend(task->model);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FORWARD);
	int64_t next = job->pruned->index + 1;
	fp_status status;
	if (job->corrected) {
		FP_TRY(each_batch(job, sweep, FP_GROUP_COUNT, NULL));
	} else {
		fp_streams_forget(task->streams, FP_DENSE);
		FP_TRY(fp_streams_forward(task->streams, FP_PRUNED, job->pruned));
	}
	if (task->ahead && fp_backend_uploads_async(be)) {
		fp_layer_free(job->dense);
		fp_layer_free(job->pruned);
		job->dense = job->pruned = NULL;
		FP_TRY(fp_layer_load(task->ahead, task->model, next));
	}
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

fp_status fp_prune_layer(const fp_layer_task *task, int64_t index)
{
	layer_job job = {.task = task, .feed = fp_feed_of(task->settings)};
	fp_streams *streams = task->streams;
	fp_status status;
	job.corrected = job.feed == FP_FEED_INTRA || job.feed == FP_FEED_CROSS;
	FP_TRY(take(&job.dense, task, index));
	FP_TRY(fp_layer_copy(&job.pruned, job.dense));
	if (job.feed == FP_FEED_INTRA)
		FP_TRY(fp_streams_copy(streams, FP_PRUNED, FP_DENSE));
	if (streams && job.feed == FP_FEED_SEQUENTIAL)
		FP_TRY(fp_streams_copy(streams, FP_DENSE, FP_PRUNED));
	if (streams && fp_layer_is_fitted(task))
		FP_TRY(fp_streams_copy(streams, FP_LAYER_INPUT, pruned_stream(streams)));
	if (streams && fp_row_importance_wanted(task->settings, &task->pattern, fp_model_backend(task->model)))
		FP_TRY(fp_row_importance_new(&job.importance, job.dense, streams));
	for (int group = 0; job.corrected && group < FP_GROUP_COUNT; group++)
		FP_TRY(prune_corrected_group(&job, group));
	if (!job.corrected)
		FP_TRY(prune_uncorrected(&job));
	if (fp_layer_is_fitted(task)) {
		if (job.corrected)
			FP_TRY(each_batch(&job, sweep, FP_GROUP_COUNT, NULL));
		FP_TRY(fit(&job));
	} else if (streams && !task->last && (job.corrected || job.feed == FP_FEED_SEQUENTIAL))
		FP_TRY(move_on(&job));
cleanup:
	fp_row_importance_free(fp_model_backend(task->model), &job.importance);
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
	if (feed != FP_FEED_SEQUENTIAL) /* else each layer begins with a copy of the pruned stream */
		FP_TRY(pass_stream(task, index, FP_DENSE, NULL));
	if (fp_feed_chains_layers(feed)) /* else with a copy of the dense one */
		FP_TRY(pass_stream(task, index, FP_PRUNED, pruned));
cleanup:
	return status;
}
