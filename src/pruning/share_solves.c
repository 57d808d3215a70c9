/* SPDX-License-Identifier: Apache-2.0 */
/* share_solves.c: divides the solves of a layer among the ranks that share its windows. */
#include "base/memory.h"
#include "pruning/layer_job.h"
#include "pruning/prune_operator.h"

#include <string.h>

/* Solved by one rank: one operator or, as they share a Gram matrix, those of an expert in a group. */
typedef struct unit {
	int group;
	int64_t expert; /* −1: none */
	int number;     /* of the only or the first operator */
} unit;

/* Products of an operator m × n with its Gram matrix dominate, and inverting that. */
static double cost_of(fp_matrix W)
{
	return (double)W.rows * (double)W.cols * (double)W.cols + (double)W.cols * (double)W.cols * (double)W.cols;
}

/* Appends the units of a group and their costs; returns how many there are then. */
static int64_t list_units(const fp_layer_job *job, int group, unit *units, double *costs, int64_t count)
{
	for (int i = 0; i < fp_model_operators(job->task->model); i++) {
		int64_t expert = fp_operator_expert(i);
		if (!fp_is_pruned_in(job, i, group, expert) || fp_is_solved_by_rows(job, i)) /* the latter are rank 0's */
			continue;
		if (expert < 0 || count == 0 || units[count - 1].group != group || units[count - 1].expert != expert) {
			units[count] = (unit){group, expert, i};
			costs[count++] = 0;
		}
		costs[count - 1] += cost_of(job->dense->weight[i]);
	}
	return count;
}

static void give_unit(fp_layer_job *job, const unit *given, int rank)
{
	job->solver[given->number] = rank;
	for (int i = 0; given->expert >= 0 && i < fp_model_operators(job->task->model); i++)
		if (fp_is_pruned_in(job, i, given->group, given->expert))
			job->solver[i] = rank;
}

/* Divides the operators of the groups [first, end). */
static fp_status divide_groups(fp_layer_job *job, int first, int end)
{
	fp_context *ctx = job->task->ctx;
	int operators = fp_model_operators(job->task->model), ranks = fp_layer_ranks(job->task);
	unit *units = NULL;
	double *costs = NULL, *busy = NULL;
	int *owner = NULL;
	int64_t count = 0;
	fp_status status;
	FP_TRY(FP_NEW(ctx, &units, operators));
	FP_TRY(FP_NEW(ctx, &costs, operators));
	FP_TRY(FP_NEW(ctx, &owner, operators));
	FP_TRY(FP_NEW(ctx, &busy, ranks));
	for (int group = first; group < end; group++)
		count = list_units(job, group, units, costs, count);
	fp_share_tasks(owner, costs, count, busy, ranks);
	for (int64_t i = 0; i < count; i++)
		give_unit(job, &units[i], owner[i]);
cleanup:
	fp_free(units);
	fp_free(costs);
	fp_free(owner);
	fp_free(busy);
	return status;
}

fp_status fp_solves_divide(fp_layer_job *job)
{
	fp_status status = FP_OK;
	if (fp_layer_ranks(job->task) == 1)
		return FP_OK;
	FP_TRY(FP_NEW(job->task->ctx, &job->solver, fp_model_operators(job->task->model)));
	if (!job->corrected)
		return divide_groups(job, 0, FP_GROUP_COUNT);
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		FP_TRY(divide_groups(job, group, group + 1));
cleanup:
	return status;
}

fp_status fp_solves_share(fp_layer_job *job, int group, fp_group_statistics *set)
{
	const fp_layer_task *task = job->task;
	bool *own = NULL;
	int *experts = NULL;
	fp_status status = FP_OK;
	if (!job->solver)
		return FP_OK;
	FP_TRY(FP_NEW(task->ctx, &own, fp_layer_ranks(task)));
	FP_TRY(FP_NEW(task->ctx, &experts, set->end - set->first + 1));
	for (int i = 0; i < fp_model_operators(task->model); i++) {
		int64_t expert = fp_operator_expert(i);
		if (!fp_is_pruned_in(job, i, group, expert))
			continue;
		if (expert < 0)
			own[job->solver[i]] = true;
		else if (expert >= set->first && expert < set->end)
			experts[expert - set->first] = job->solver[i];
	}
	FP_TRY(fp_group_statistics_give(set, own, experts));
cleanup:
	fp_free(own);
	fp_free(experts);
	return status;
}

fp_status fp_grid_exchange(fp_layer_job *job, int number)
{
	const fp_layer_task *task = job->task;
	const fp_share *share = &task->streams->share;
	fp_grid *grid = &job->grids[number];
	const fp_grid_format *format = fp_grid_format_named(task->settings->quantize);
	const fp_matrix W = job->pruned->weight[number];
	int from = job->solver[number];
	fp_status status = FP_OK;
	if (!format)
		return FP_OK;
	if (!grid->format)
		FP_TRY(fp_grid_new(grid, task->be, format, job->results[number].tensor->dtype, W.rows, W.cols));
	FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, from, grid->scale));
	FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, from, grid->zero));
cleanup:
	return status;
}

/* One operator, from the rank that has solved it. */
static fp_status exchange(fp_layer_job *job, int number)
{
	const fp_layer_task *task = job->task;
	const fp_share *share = &task->streams->share;
	int from = job->solver[number];
	fp_operator_result *result = &job->results[number];
	fp_status status;
	FP_TRY(fp_share_bytes(share, FP_BROADCASTS, from, result, sizeof *result));
	result->tensor = fp_model_operator(task->model, job->pruned->index, number);
	if (!fp_layer_is_fitted(task))
		FP_TRY(fp_grid_exchange(job, number));
	FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, from, job->pruned->weight[number]));
	if (result->bias_updated)
		FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, from, job->pruned->bias[number]));
	if (fp_layer_is_fitted(task) || !task->output.operator_done)
		goto cleanup;
	FP_TRY(fp_finish_operator(task, job->pruned->weight[number], &job->grids[number], result));
	if (result->bias_updated)
		FP_TRY(fp_finish_bias(job, number));
cleanup:
	return status;
}

fp_status fp_solves_exchange(fp_layer_job *job, int group, const fp_group_statistics *set)
{
	fp_status status = FP_OK;
	for (int i = 0; job->solver && i < fp_model_operators(job->task->model); i++) {
		int64_t expert = fp_operator_expert(i);
		bool here = expert < 0 ? set->starts : expert >= set->first && expert < set->end;
		if (here && fp_is_pruned_in(job, i, group, expert))
			FP_TRY(exchange(job, i));
	}
cleanup:
	return status;
}
