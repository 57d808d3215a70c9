/* SPDX-License-Identifier: Apache-2.0 */
/* fit_pruned_layer.c: runs the layer fit on the streams and outputs its result. */
#include "base/memory.h"
#include "base/numbers.h"
#include "pruning/layer_job.h"
#include "pruning/prune_operator.h"

/* PRUNED ← mix·DENSE + (1 − mix)·PRUNED */
static fp_status mix_streams(const fp_layer_task *task, float mix)
{
	fp_streams *streams = task->streams;
	fp_backend *be = task->be;
	fp_status status;
	FP_TRY(fp_streams_begin_pass(streams));
	fp_streams_begin_store(streams, FP_PRUNED);
	for (int64_t first = 0; first < streams->windows; first = fp_streams_next(streams, first)) {
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

/* *target ← the stream with the output that the fitted layer should give. Both streams are at the end of the layer. The
 * target is the dense stream, unless the feed is FP_FEED_CROSS: then it is a mixture of the dense model's output and the
 * dense layer's output for the pruned model's input, which overwrites the pruned stream. */
static fp_status fit_target(const fp_layer_job *job, int *target)
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
	FP_TRY(mix_streams(job->task, mix));
cleanup:
	return status;
}

typedef struct fit_reader {
	const fp_layer_task *task;
	int target;
	int64_t layer;
	fp_matrix gradients; /* of the layer, from window `first` on; absent if hidden states are on disk, and gradients are
							read as needed */
	int64_t first;
} fit_reader;

static fp_status read_window(void *data, int64_t window, fp_matrix input, fp_matrix target)
{
	const fit_reader *reader = data;
	fp_streams *streams = reader->task->streams;
	fp_status status = fp_streams_read(streams, FP_LAYER_INPUT, window, input);
	return status == FP_OK ? fp_streams_read(streams, reader->target, window, target) : status;
}

static fp_status read_fisher(void *data, fp_matrix out)
{
	const fit_reader *reader = data;
	return fp_fisher_read(reader->task->fisher, reader->layer, out);
}

static fp_status read_gradients(void *data, int64_t window, fp_matrix out)
{
	const fit_reader *reader = data;
	fp_backend *be = reader->task->be;
	if (fp_matrix_is_absent(reader->gradients))
		return fp_fisher_read_gradients(reader->task->fisher, reader->layer, window, 1, out);
	return be->memory->copy(be, out, fp_matrix_rows(reader->gradients, (window - reader->first) * out.rows, out.rows));
}

static fp_status open_fisher(fit_reader *reader, fp_fit_task *fit)
{
	const fp_layer_task *task = reader->task;
	fp_streams *streams = task->streams;
	int64_t windows = fp_fisher_gradient_windows(task->fisher), own;
	fp_status status = FP_OK;
	fit->read_fisher = read_fisher;
	fit->fisher_tokens = fp_fisher_tokens(task->fisher);
	if (windows == 0)
		return FP_OK;
	fit->read_gradients = read_gradients;
	fit->gradient_windows = windows;
	if (streams->residence == FP_ON_DISK)
		return FP_OK;
	reader->first = streams->first;
	own = fp_larger(fp_smaller(windows - streams->first, streams->windows), 0);
	if (own == 0)
		return FP_OK;
	FP_TRY(fp_matrix_new(task->be, &reader->gradients, own * streams->length, fp_model_get_config(task->model)->hidden,
						 FP_F32));
	FP_TRY(fp_fisher_read_gradients(task->fisher, reader->layer, reader->first, own, reader->gradients));
cleanup:
	return status;
}

/* All ranks have computed the same fit, and continue with that of rank 0 in any case. */
static fp_status exchange(const fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	const fp_share *share = &task->streams->share;
	fp_status status = FP_OK;
	for (int i = 0; i < fp_model_operators(task->model); i++) {
		FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, 0, job->pruned->weight[i]));
		FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, 0, job->pruned->bias[i]));
	}
cleanup:
	return status;
}

static bool is_pruned(const fp_layer_job *job, int number)
{
	return !fp_matrix_is_absent(job->pruned->weight[number]) &&
		   fp_layer_task_has(job->task, job->pruned->index, number);
}

/* With --quantize: each operator by the rank that has solved it, and so has its inputs' statistics. */
static fp_status quantise(fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	fp_status status = FP_OK;
	for (int i = 0; i < fp_model_operators(task->model); i++) {
		fp_matrix V = job->pruned->weight[i];
		if (!is_pruned(job, i))
			continue;
		if (fp_is_solved_here(job, i))
			FP_TRY(fp_quantise_fitted(task, &job->kept_inputs, &job->results[i], V, &job->grids[i]));
		if (job->solver && fp_grid_format_named(task->settings->quantize)) {
			FP_TRY(fp_grid_exchange(job, i));
			FP_TRY(fp_share_matrix(&task->streams->share, task->be, FP_BROADCASTS, job->solver[i], V));
		}
	}
cleanup:
	return status;
}

/* Passes the operators, biases and the fit's result to the task's output. */
static fp_status finish(fp_layer_job *job, const fp_fit_result *result)
{
	const fp_layer_task *task = job->task;
	fp_status status = FP_OK;
	for (int i = 0; task->output.operator_done && i < fp_model_operators(task->model); i++) {
		if (!is_pruned(job, i))
			continue;
		FP_TRY(fp_finish_operator(task, job->pruned->weight[i], &job->grids[i], &job->results[i]));
		if (result->steps > 0 || job->results[i].bias_updated)
			FP_TRY(fp_finish_bias(job, i));
	}
	if (task->output.fit_done)
		FP_TRY(task->output.fit_done(task->output.data, result));
cleanup:
	return status;
}

fp_status fp_fit_pruned_layer(fp_layer_job *job)
{
	const fp_layer_task *task = job->task;
	fp_streams *streams = task->streams;
	fit_reader reader = {.task = task, .layer = job->pruned->index};
	fp_fit_result result;
	bool *frozen = NULL;
	fp_status status;
	fp_fit_task fit = {.be = task->be,
					   .ctx = task->ctx,
					   .settings = task->settings,
					   .layer = job->pruned,
					   .read = read_window,
					   .read_data = &reader,
					   .share = &streams->share,
					   .windows = streams->share.windows,
					   .length = streams->length,
					   .batch = streams->batch};
	FP_TRY(FP_NEW(task->ctx, &frozen, fp_model_operators(task->model)));
	for (int i = 0; i < fp_model_operators(task->model); i++)
		frozen[i] = !fp_layer_task_has(task, job->pruned->index, i);
	fit.frozen = frozen;
	FP_TRY(fit_target(job, &reader.target));
	if (streams->residence != FP_RESIDENT) { /* memory is short, and the dense layer is no longer needed */
		fp_layer_free(job->dense);
		job->dense = NULL;
	}
	if (task->fisher)
		FP_TRY(open_fisher(&reader, &fit));
	FP_TRY(fp_fit_layer(&fit, &result));
	FP_TRY(exchange(job));
	FP_TRY(quantise(job));
	FP_TRY(finish(job, &result));
cleanup:
	fp_matrix_free(task->be, &reader.gradients);
	fp_free(frozen);
	return status;
}
