/* SPDX-License-Identifier: Apache-2.0 */
/* solve_groups.c: prunes the operators of a layer's groups, given their statistics. */
#include "base/memory.h"
#include "pruning/layer_job.h"
#include "pruning/prune_operator.h"

#include <math.h>
#include <stdio.h>

static const double FEW_TOKENS_RIDGE = 0.05; /* relative to the mean of the diagonal, at half of FP_ENOUGH_TOKENS */

bool fp_layer_defers_output(const fp_layer_task *task)
{
	return fp_layer_is_fitted(task) || fp_layer_ranks(task) > 1;
}

bool fp_is_pruned_in(const fp_layer_job *job, int number, int group, int64_t expert)
{
	return fp_role_group(number) == group && fp_operator_expert(number) == expert &&
		   !fp_matrix_is_absent(job->dense->weight[number]) && fp_layer_task_has(job->task, job->dense->index, number);
}

bool fp_is_solved_here(const fp_layer_job *job, int number)
{
	return !job->solver || job->solver[number] == fp_share_rank(&job->task->streams->share);
}

/* By this rank, and no other. */
static bool is_solved_alone(const fp_layer_job *job, int number, int group, int64_t expert)
{
	return fp_is_pruned_in(job, number, group, expert) && fp_is_solved_here(job, number) &&
		   !fp_is_solved_by_rows(job, number);
}

static int group_operators(const fp_layer_job *job, int group, int64_t expert)
{
	int count = 0;
	for (int i = 0; i < fp_model_operators(job->task->model); i++)
		count += is_solved_alone(job, i, group, expert);
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

fp_status fp_solve_operator(fp_layer_job *job, int number, const fp_statistics *statistics, fp_statistics *last,
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
											.inverse_importance = weighs ? job->importance.inverse[number] : none,
											.grid = &job->grids[number]},
							 result));
	if (result->bias_updated && !fp_layer_defers_output(task))
		FP_TRY(fp_finish_bias(job, number));
	if (!fp_layer_defers_output(task))
		fp_grid_free(task->be, &job->grids[number]);
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
		if (is_solved_alone(job, i, group, expert))
			status = fp_solve_operator(job, i, statistics, --left == 0 ? own : NULL, &gram);
	fp_gram_free(&gram);
	return status;
}

/* Experts that few tokens reach get a stronger ridge, because p tokens determine A of n inputs badly unless p is several
 * times n. One that no token reaches is pruned by the sizes of its weights. */
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
		if (!statistics->be) /* another rank solves it */
			continue;
		FP_TRY(strengthen(job, statistics));
		FP_TRY(solve_group(job, group, e, statistics, statistics));
		fp_statistics_free(statistics);
	}
cleanup:
	return status;
}

fp_status fp_solve_set(fp_layer_job *job, int group, fp_group_statistics *set, fp_statistics *own)
{
	bool here = set->own.be;
	fp_status status = FP_OK;
	if (set->starts)
		FP_TRY(fp_solve_rows(job, group, here ? &set->own : NULL, group_operators(job, group, -1) == 0 ? own : NULL));
	if (here)
		FP_TRY(solve_group(job, group, -1, &set->own, own));
	FP_TRY(solve_experts(job, group, set));
cleanup:
	return status;
}

fp_status fp_solve_kept(fp_layer_job *job, int group, const fp_statistics *statistics)
{
	return solve_group(job, group, -1, statistics, NULL);
}
