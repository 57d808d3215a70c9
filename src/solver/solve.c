/* SPDX-License-Identifier: Apache-2.0 */
/* solve.c: which steps a method takes for one operator, in which order. */
#include "base/memory.h"
#include "solver/problem.h"

#include <math.h>

/* V and mask ← the support search's solution, unless that in V (when it has the pattern: `feasible`) was better. */
static fp_status search(const fp_problem *problem, const fp_settings *settings, bool feasible, fp_matrix V,
						fp_matrix mask, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	fp_matrix work[2] = {{0}, {0}};
	fp_matrix before = {0};
	fp_matrix before_mask = {0};
	double error_before = INFINITY;
	double error;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &work[0], V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &work[1], V.rows, V.cols, FP_F32));
	if (feasible) {
		FP_TRY(fp_matrix_new(be, &before, V.rows, V.cols, FP_F32));
		FP_TRY(fp_matrix_new(be, &before_mask, V.rows, V.cols, FP_U8));
		FP_TRY(be->memory->copy(be, before, V));
		FP_TRY(be->memory->copy(be, before_mask, mask));
		FP_TRY(fp_refit(problem, settings->refit_steps, before_mask, before));
		FP_TRY(fp_problem_error(problem, before, work, &error_before));
	}
	FP_TRY(fp_support_admm(problem, settings, V, mask, &solution->search_steps));
	FP_TRY(fp_refit(problem, settings->refit_steps, mask, V));
	if (feasible) {
		FP_TRY(fp_problem_error(problem, V, work, &error));
		if (error_before < error) {
			FP_TRY(be->memory->copy(be, V, before));
			FP_TRY(be->memory->copy(be, mask, before_mask));
		}
	}
cleanup:
	fp_matrix_free(be, &work[0]);
	fp_matrix_free(be, &work[1]);
	fp_matrix_free(be, &before);
	fp_matrix_free(be, &before_mask);
	return status;
}

static bool searches(const fp_settings *settings)
{
	return !fp_is(settings->support_search, "none") && settings->search_steps > 0;
}

/* The convex solve, the support search and the refit, as far as the settings ask for them. */
static fp_status solve_steps(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
							 fp_solution *solution)
{
	bool feasible = !fp_is(settings->warm_start, "dense");
	bool convex = settings->iterations > 0;
	fp_status status = FP_OK;
	if (convex)
		FP_TRY(fp_lambda_search(problem, settings, feasible, V, mask, solution));
	if (searches(settings))
		return search(problem, settings, convex || feasible, V, mask, solution);
	if (!convex && !feasible)
		FP_TRY(fp_round(problem, V, mask));
	FP_TRY(fp_refit(problem, settings->refit_steps, mask, V));
cleanup:
	return status;
}

static fp_status rival_steps(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
							 fp_solution *solution)
{
	(void)settings;
	return fp_rival_admm(problem, V, mask, &solution->search_steps);
}

typedef fp_status (*solve_function)(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
									fp_solution *solution);

/* X ← each row times its entry of s (1 × rows) */
static fp_status scale_rows(fp_backend *be, fp_matrix s, fp_matrix X)
{
	fp_matrix none = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &none, 1, s.cols, FP_F32));
	FP_TRY(be->memory->fill(be, none, 0.0F));
	FP_TRY(be->linear->row_axpby(be, none, X, s, X));
cleanup:
	fp_matrix_free(be, &none);
	return status;
}

/* A problem whose rows are scaled by their importance. A least-squares problem falls into its rows, and each has the
 * same solution as before; only what a count of zeros over all of them takes from which does change. The constant is
 * not known row by row: it stays, and comparisons of errors do not need it. */
static fp_status weigh_rows(const fp_problem *problem, fp_matrix W, fp_matrix C, fp_matrix R, fp_matrix V)
{
	fp_backend *be = problem->gram->be;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(problem->importance))
		return FP_OK;
	FP_TRY(scale_rows(be, problem->importance, W));
	FP_TRY(scale_rows(be, problem->importance, C));
	FP_TRY(scale_rows(be, problem->importance, V));
	if (!fp_matrix_is_absent(R))
		FP_TRY(scale_rows(be, problem->importance, R));
cleanup:
	return status;
}

/* The same in columns of unit norm, and in rows by their importance: scale, solve, scale back. */
static fp_status solve_scaled(const fp_problem *problem, const fp_settings *settings, fp_scaling kind,
							  solve_function solve, fp_matrix V, fp_matrix mask, fp_solution *solution)
{
	fp_gram *gram = problem->gram;
	fp_backend *be = gram->be;
	fp_matrix W = {0};
	fp_matrix C = {0};
	fp_matrix R = {0};
	fp_status status;
	FP_TRY(fp_gram_scaled(gram, settings->ridge, kind));
	FP_TRY(fp_matrix_new(be, &W, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &C, V.rows, V.cols, FP_F32));
	FP_TRY(be->memory->copy(be, C, problem->C));
	FP_TRY(be->linear->axpby(be, (float)(settings->ridge * gram->mean_diagonal), problem->W, 1.0F, C));
	FP_TRY(be->linear->scale_columns(be, gram->inverse_scale, C, C));
	FP_TRY(be->linear->scale_columns(be, gram->scale, problem->W, W));
	if (!fp_matrix_is_absent(problem->R)) {
		FP_TRY(fp_matrix_new(be, &R, V.rows, V.cols, FP_F32));
		FP_TRY(be->linear->scale_columns(be, gram->inverse_scale, problem->R, R));
	}
	FP_TRY(be->linear->scale_columns(be, gram->scale, V, V));
	FP_TRY(weigh_rows(problem, W, C, R, V));
	fp_problem scaled = *problem;
	scaled.gram = gram->scaled;
	scaled.W = W;
	scaled.C = C;
	scaled.R = R;
	scaled.held = (fp_matrix){0};
	FP_TRY(solve(&scaled, settings, V, mask, solution));
	FP_TRY(be->linear->scale_columns(be, gram->inverse_scale, V, V));
	if (!fp_matrix_is_absent(problem->importance))
		FP_TRY(scale_rows(be, problem->inverse_importance, V));
	FP_TRY(be->pruning->apply_mask(be, mask, V));
cleanup:
	fp_matrix_free(be, &W);
	fp_matrix_free(be, &C);
	fp_matrix_free(be, &R);
	return status;
}

/* The error of the result, which must be finite. */
static fp_status measure(const fp_problem *problem, fp_matrix V, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	fp_matrix work[2] = {{0}, {0}};
	double square;
	int finite = 1;
	fp_status status;
	if (problem->unmeasured) {
		FP_TRY(be->linear->finite(be, V, &finite));
	} else {
		FP_TRY(fp_matrix_new(be, &work[0], V.rows, V.cols, FP_F32));
		FP_TRY(fp_matrix_new(be, &work[1], V.rows, V.cols, FP_F32));
		FP_TRY(fp_problem_error(problem, V, work, &square));
		solution->error = sqrt(square);
		finite = isfinite(square);
	}
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_NUMERIC, "the solver's result is not finite");
cleanup:
	fp_matrix_free(be, &work[0]);
	fp_matrix_free(be, &work[1]);
	return status;
}

fp_status fp_solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	fp_matrix mask = {0};
	fp_status status;
	*solution = (fp_solution){0};
	FP_TRY(fp_matrix_new(be, &mask, V.rows, V.cols, FP_U8));
	if (fp_is(settings->method, "fista")) {
		FP_TRY(fp_warm_start(problem, settings->warm_start, settings, V, mask));
		fp_scaling kind = settings->scaling    ? FP_SCALING_COLUMNS
						  : searches(settings) ? FP_SCALING_MEAN
											   : FP_SCALING_NONE;
		if (kind != FP_SCALING_NONE || settings->ridge > 0 || !fp_matrix_is_absent(problem->importance))
			FP_TRY(solve_scaled(problem, settings, kind, solve_steps, V, mask, solution));
		else
			FP_TRY(solve_steps(problem, settings, V, mask, solution));
	} else if (fp_is(settings->method, "admm")) {
		FP_TRY(be->memory->copy(be, V, problem->W));
		FP_TRY(solve_scaled(problem, settings, FP_SCALING_COLUMNS, rival_steps, V, mask, solution));
	} else {
		FP_TRY(fp_warm_start(problem, settings->method, settings, V, mask));
	}
	solution->damping = fp_matrix_is_absent(problem->gram->factor) ? 0 : problem->gram->factor_damping;
	FP_TRY(measure(problem, V, solution));
cleanup:
	fp_matrix_free(be, &mask);
	return status;
}
