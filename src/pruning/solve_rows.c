/* SPDX-License-Identifier: Apache-2.0 */
/*
 * solve_rows.c: ranks solve rows of the same operator at the same time. Rank 0 has the statistics, makes the target and
 * measures the result; others get the Gram matrix and the target of their rows, and give the rows of the result back.
 *
 * Each has a slice of rows (row_slices.h), so that products give the same bits as those of the whole operator.
 */
#include "base/clock.h"
#include "pruning/layer_job.h"
#include "pruning/prune_operator.h"
#include "sharing/row_slices.h"
#include "solver/inverse_cache.h"

bool fp_is_solved_by_rows(const fp_layer_job *job, int number)
{
	const fp_layer_task *task = job->task;
	const fp_method *method = fp_method_of(task->settings);
	fp_pattern pattern = fp_layer_task_pattern(task, job->dense->index, number);
	fp_matrix W = job->dense->weight[number];
	/* Grids are chosen by the rank that solves an operator, and take longer than that. */
	bool alone = !task->streams || fp_operator_expert(number) >= 0 || fp_grid_format_named(task->settings->quantize);
	return !alone && fp_rows_may_be_multiplied(&task->streams->share, task->be, W.rows, W.cols) &&
		   method->solves_rows && method->solves_rows(task->settings, &pattern);
}

typedef struct row_team {
	fp_solve_team team;
	const fp_share *share;
	fp_backend *be;
} row_team;

static fp_status sum(void *data, int64_t *value)
{
	fp_comm *comm = ((const row_team *)data)->share->comm;
	fp_stage stage = fp_stage_enter(comm->ctx, FP_STAGE_RANKS);
	fp_status status = comm->ops->sum(comm, value);
	fp_stage_enter(comm->ctx, stage);
	return status;
}

static fp_status give(void *data, int from, fp_matrix m, int64_t *number)
{
	const row_team *own = data;
	fp_status status;
	FP_TRY(fp_share_bytes(own->share, FP_BROADCASTS, from, number, sizeof *number));
	FP_TRY(fp_share_matrix(own->share, own->be, FP_BROADCASTS, from, m));
cleanup:
	return status;
}

/* The rows of a matrix that a member of the team solves. */
static fp_matrix rows_of(const row_team *team, int member, fp_matrix m)
{
	return fp_matrix_is_absent(m) ? m : fp_row_slice(team->share, team->be, member, m);
}

static fp_problem problem_of(const fp_problem *problem, int member)
{
	fp_problem own = *problem;
	fp_matrix *all[] = {&own.W, &own.C, &own.R, &own.held};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		*all[i] = rows_of(problem->gram->team->data, member, *all[i]);
	return own;
}

fp_status fp_solve_together(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_solution *solution)
{
	const fp_solve_team *team = problem->gram->team;
	if (!team)
		return fp_solve(problem, settings, V, solution);
	const row_team *own = team->data;
	fp_problem part = problem_of(problem, 0);
	int has_R = !fp_matrix_is_absent(problem->R);
	fp_status status;
	FP_TRY(fp_share_bytes(own->share, FP_BROADCASTS, 0, &has_R, sizeof has_R));
	for (int member = 1; member < team->members; member++) {
		fp_problem other = problem_of(problem, member);
		FP_TRY(fp_share_matrix(own->share, own->be, FP_SENDS, member, other.C));
		FP_TRY(fp_share_matrix(own->share, own->be, FP_SENDS, member, other.R));
	}
	FP_TRY(fp_solve(&part, settings, rows_of(own, 0, V), solution));
	for (int member = 1; member < team->members; member++)
		FP_TRY(fp_share_matrix(own->share, own->be, FP_RECEIVES, member, rows_of(own, member, V)));
cleanup:
	return status;
}

/* What the other ranks do while rank 0 prunes an operator. */
static fp_status help(fp_layer_job *job, int number, fp_gram *gram)
{
	const fp_layer_task *task = job->task;
	const fp_share *share = &task->streams->share;
	fp_backend *be = task->be;
	fp_matrix W = rows_of(gram->team->data, gram->team->member, job->dense->weight[number]), wide = {0}, V = {0};
	fp_problem problem = {
		.gram = gram, .pattern = fp_layer_task_pattern(task, job->dense->index, number), .unmeasured = true};
	fp_solution solution;
	int has_R = 0;
	fp_status status;
	if (W.dtype != FP_F32)
		problem.held = W;
	FP_TRY(fp_check_interrupt(task->ctx));
	FP_TRY(fp_matrix_widen(be, W, &wide, &problem.W));
	FP_TRY(fp_matrix_new(be, &problem.C, W.rows, W.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &V, W.rows, W.cols, FP_F32));
	FP_TRY(fp_share_bytes(share, FP_BROADCASTS, 0, &has_R, sizeof has_R));
	if (has_R)
		FP_TRY(fp_matrix_new(be, &problem.R, W.rows, W.cols, FP_F32));
	FP_TRY(fp_share_matrix(share, be, FP_RECEIVES, 0, problem.C));
	FP_TRY(fp_share_matrix(share, be, FP_RECEIVES, 0, problem.R));
	FP_TRY(fp_solve(&problem, task->settings, V, &solution));
	FP_TRY(fp_share_matrix(share, be, FP_SENDS, 0, V));
cleanup:
	fp_matrix_free(be, &wide);
	fp_matrix_free(be, &problem.C);
	fp_matrix_free(be, &problem.R);
	fp_matrix_free(be, &V);
	return status == FP_OK
			   ? status
			   : fp_fail_in(be->ctx, status, "%s", fp_model_operator(task->model, job->dense->index, number)->name);
}

/* A of rank 0 on all ranks, in `own` on the others, and what is known of it. */
static fp_status share_gram(const row_team *team, const fp_statistics *statistics, int64_t inputs, fp_matrix *own,
							fp_gram *gram)
{
	fp_matrix A = statistics ? statistics->A : (fp_matrix){0};
	fp_status status = FP_OK;
	if (!statistics) {
		FP_TRY(fp_matrix_new(team->be, own, inputs, inputs, FP_F32));
		A = *own;
	}
	FP_TRY(fp_share_matrix(team->share, team->be, FP_BROADCASTS, 0, A));
	FP_TRY(fp_gram_new(gram, team->be, A));
	gram->team = &team->team;
cleanup:
	return status;
}

static fp_status agree_to_keep(row_team *team, const fp_gram *gram)
{
	fp_comm *comm = team->share->comm;
	int64_t all;
	bool keeps;
	fp_status status;
	FP_TRY(fp_gram_keeps_inverses(gram, &keeps));
	all = keeps;
	FP_TRY(comm->ops->minimum(comm, &all));
	team->team.keeps = all != 0;
cleanup:
	return status;
}

fp_status fp_solve_rows(fp_layer_job *job, int group, const fp_statistics *statistics, fp_statistics *own)
{
	const fp_layer_task *task = job->task;
	if (fp_layer_ranks(task) == 1) /* without text there are no streams either */
		return FP_OK;
	const fp_share *share = &task->streams->share;
	row_team team = {
		.team = {.member = fp_share_rank(share), .members = fp_share_ranks(share), .sum = sum, .give = give},
		.share = share,
		.be = task->be};
	fp_matrix A = {0};
	fp_gram gram = {0};
	int left = 0, last = -1, me = fp_share_rank(share);
	fp_status status = FP_OK;
	team.team.data = &team;
	for (int i = 0; i < fp_model_operators(task->model); i++)
		if (fp_is_pruned_in(job, i, group, -1) && fp_is_solved_by_rows(job, i)) {
			left++;
			last = i;
		}
	if (left == 0)
		return FP_OK;
	FP_TRY(share_gram(&team, me == 0 ? statistics : NULL, job->dense->weight[last].cols, &A, &gram));
	gram.shared = left > 1;
	FP_TRY(agree_to_keep(&team, &gram));
	for (int i = 0; i <= last; i++) {
		if (!fp_is_pruned_in(job, i, group, -1) || !fp_is_solved_by_rows(job, i))
			continue;
		team.team.rows = job->dense->weight[i].rows;
		FP_TRY(me == 0 ? fp_solve_operator(job, i, statistics, --left == 0 ? own : NULL, &gram) : help(job, i, &gram));
	}
cleanup:
	fp_gram_free(&gram);
	fp_matrix_free(task->be, &A);
	return status;
}
