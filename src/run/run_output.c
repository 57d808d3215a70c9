/* SPDX-License-Identifier: Apache-2.0 */
#include "run/run_output.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Records a tensor that has new bytes, for the journal. */
static fp_status note_replaced(fp_run_output *run, const fp_tensor_info *tensor)
{
	fp_context *ctx = run->task->ctx;
	fp_status status = FP_GROW(ctx, &run->replaced, &run->replaced_capacity, run->replaced_count + 1);
	if (status == FP_OK)
		run->replaced[run->replaced_count++] = tensor;
	return status;
}

static fp_status space_for_operator(void *data, int64_t bytes, char **out)
{
	fp_run_output *run = data;
	return fp_write_behind_space(run->behind, bytes, out);
}

/* Replaces a stored tensor by the bytes in the space of the background writer. groups: of each
 * row, with the numbers of its grid; 0: it is not quantised. */
static fp_status put_tensor(fp_run_output *run, const fp_tensor_info *tensor, const void *bytes,
							fp_grid_numbers numbers, int64_t groups)
{
	fp_status status = FP_OK;
	if (run->task->overlay)
		FP_TRY(fp_overlay_replace(run->task->overlay, tensor, bytes));
	if (groups > 0)
		FP_TRY(fp_write_behind_quantise(run->behind, tensor, numbers, tensor->shape[0] * groups));
	else
		FP_TRY(fp_write_behind_put(run->behind, tensor));
	FP_TRY(note_replaced(run, tensor));
cleanup:
	return status;
}

static fp_status operator_done(void *data, const fp_operator_result *done, const void *bytes)
{
	fp_run_output *run = data;
	fp_prune_result *result = run->result;
	fp_context *ctx = run->task->ctx;
	fp_status status;
	const fp_grid_numbers numbers = {done->scales, done->zero_points};
	if (done->tensor->whole && done->groups > 0)
		FP_TRY(fp_tensor_joiner_quantise(run->joiner, done->tensor, bytes, numbers, done->groups));
	else if (done->tensor->whole)
		FP_TRY(fp_tensor_joiner_put(run->joiner, done->tensor, bytes));
	else /* hands over the space that holds the bytes */
		FP_TRY(put_tensor(run, done->tensor, bytes, numbers, done->groups));
	FP_TRY(FP_GROW(ctx, &result->operators, &result->capacity, result->count + 1));
	result->operators[result->count] = *done;
	result->operators[result->count].scales = result->operators[result->count].zero_points = NULL;
	result->count++;
	fp_prune_result_count(result, done);
	char expert[32] = "";
	if (fp_operator_expert(done->number) >= 0)
		snprintf(expert, sizeof expert, "expert %lld ", (long long)fp_operator_expert(done->number));
	fp_log(ctx, FP_LOG_DEBUG, "layer %lld %s%s: sparsity %.4f, error %.4f, %.1f s", (long long)done->layer, expert,
		   fp_role_name(done->number), (double)done->zeros / (double)done->tensor->elements,
		   done->squared_output > 0 ? sqrt(done->squared_error / done->squared_output) : 0.0, done->seconds);
	if (run->task->listener)
		run->task->listener(run->task->listener_data, done);
cleanup:
	return status;
}

/* The same for bytes elsewhere. */
static fp_status copy_tensor(void *data, const fp_tensor_info *tensor, const void *bytes, fp_grid_numbers numbers,
							 int64_t groups)
{
	fp_run_output *run = data;
	char *space;
	fp_status status;
	FP_TRY(fp_write_behind_space(run->behind, tensor->bytes, &space));
	memcpy(space, bytes, (size_t)tensor->bytes);
	FP_TRY(put_tensor(run, tensor, bytes, numbers, groups));
cleanup:
	return status;
}

static fp_status bias_done(void *data, const fp_tensor_info *tensor, const void *bytes)
{
	fp_run_output *run = data;
	return tensor->whole ? fp_tensor_joiner_put(run->joiner, tensor, bytes)
						 : copy_tensor(run, tensor, bytes, (fp_grid_numbers){0}, 0);
}

static fp_status fit_done(void *data, const fp_fit_result *fit)
{
	fp_run_output *run = data;
	fp_prune_result *result = run->result;
	fp_context *ctx = run->task->ctx;
	fp_status status = FP_GROW(ctx, &result->fits, &result->fit_capacity, result->fit_count + 1);
	if (status != FP_OK)
		return status;
	result->fits[result->fit_count++] = *fit;
	fp_log(ctx, FP_LOG_DEBUG, "layer %lld: fit: loss %.5f to %.5f on held-out windows, %s, %.1f s",
		   (long long)fit->layer, fit->loss_before, fit->loss_after, fit->steps > 0 ? "kept" : "dropped", fit->seconds);
	return FP_OK;
}

fp_status fp_run_output_new(fp_run_output *out, const fp_prune_task *task, fp_prune_result *result)
{
	fp_status status;
	*out = (fp_run_output){.task = task, .result = result};
	FP_TRY(fp_write_behind_new(&out->behind, task->be, task->writer));
	FP_TRY(fp_tensor_joiner_new(&out->joiner, task->ctx, fp_model_checkpoint(task->model)));
cleanup:
	return status;
}

void fp_run_output_free(fp_run_output *output)
{
	fp_write_behind_free(output->behind);
	fp_tensor_joiner_free(output->joiner);
	fp_free(output->replaced);
	*output = (fp_run_output){0};
}

fp_layer_output fp_run_output_callbacks(fp_run_output *output)
{
	return (fp_layer_output){.space = space_for_operator,
							 .operator_done = operator_done,
							 .bias_done = bias_done,
							 .fit_done = fit_done,
							 .data = output};
}

void fp_run_output_begin_layer(fp_run_output *output)
{
	output->replaced_count = 0;
}

fp_status fp_run_output_end_layer(fp_run_output *output)
{
	return fp_tensor_joiner_flush(output->joiner, copy_tensor, output);
}
