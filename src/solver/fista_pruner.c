/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista_pruner.c: --method fista, which runs the steps that its preset selects.
 *
 *     paper        a warm start, then the λ search around FISTA
 *     fast, best   from the dense weights: the support search, then the refit; no FISTA
 *
 * Each step can also be turned on or off by --set. With a pattern that prunes nothing the support is that of the dense
 * weights, and there is no search for it.
 */
#include "solver/method.h"
#include "solver/steps.h"

#include <math.h>

static bool searches(const fp_settings *settings)
{
	return !fp_is(settings->support_search, "none") && settings->search_steps > 0;
}

/* The start already has the pattern. */
static bool starts_feasible(const fp_settings *settings)
{
	return !fp_is(settings->warm_start, "dense");
}

static fp_scaling scaling_of(const fp_settings *settings)
{
	if (settings->scaling)
		return FP_SCALING_COLUMNS;
	return searches(settings) ? FP_SCALING_MEAN : FP_SCALING_NONE;
}

/* V and mask ← the support search's solution or, if V already has the pattern (`feasible`), a refit of V if that is
 * better. */
static fp_status search(const fp_problem *problem, const fp_settings *settings, bool feasible, fp_matrix V,
						fp_matrix mask, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	fp_problem objective = *problem;
	fp_matrix work[2] = {{0}, {0}};
	fp_matrix before = {0};
	fp_matrix before_mask = {0};
	double error_before = INFINITY;
	double error;
	fp_status status;
	objective.rows_weighted = false; /* compare what is minimised: the error of the rows as they are weighted */
	FP_TRY(fp_matrix_new(be, &work[0], V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &work[1], V.rows, V.cols, FP_F32));
	if (feasible) {
		FP_TRY(fp_matrix_new(be, &before, V.rows, V.cols, FP_F32));
		FP_TRY(fp_matrix_new(be, &before_mask, V.rows, V.cols, FP_U8));
		FP_TRY(be->memory->copy(be, before, V));
		FP_TRY(be->memory->copy(be, before_mask, mask));
		FP_TRY(fp_refit(problem, settings->refit_steps, before_mask, before));
		FP_TRY(fp_problem_error(&objective, before, work, &error_before));
	}
	FP_TRY(fp_support_admm(problem, settings, V, mask, &solution->search_steps));
	FP_TRY(fp_refit(problem, settings->refit_steps, mask, V));
	if (feasible) {
		FP_TRY(fp_problem_error(&objective, V, work, &error));
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

/* The λ search, the support search and the refit, as far as the settings ask for them. */
static fp_status solve_steps(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
							 fp_solution *solution)
{
	bool feasible = starts_feasible(settings);
	bool convex = settings->iterations > 0, prunes = fp_pattern_prunes(&problem->pattern);
	fp_status status = FP_OK;
	if (convex)
		FP_TRY(fp_lambda_search(problem, settings, feasible, V, mask, solution));
	if (searches(settings) && prunes)
		return search(problem, settings, convex || feasible, V, mask, solution);
	if ((!convex && !feasible) || !prunes)
		FP_TRY(fp_round(problem, V, mask));
	FP_TRY(fp_refit(problem, settings->refit_steps, mask, V));
cleanup:
	return status;
}

static fp_status solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
					   fp_solution *solution)
{
	fp_scaling kind = scaling_of(settings);
	bool scaled = kind != FP_SCALING_NONE || settings->ridge > 0 || !fp_matrix_is_absent(problem->importance);
	fp_status status = fp_warm_start(problem, settings->warm_start, settings, V, mask);
	if (status != FP_OK)
		return status;
	return scaled ? fp_solve_scaled(problem, settings, settings->ridge, kind, solve_steps, V, mask, solution)
				  : solve_steps(problem, settings, V, mask, solution);
}

static fp_feed feed(const fp_settings *settings)
{
	if (fp_is(settings->correction, "none"))
		return FP_FEED_NONE;
	return fp_is(settings->correction, "cross") ? FP_FEED_CROSS : FP_FEED_INTRA;
}

/* An unstructured pattern distributes its zeros over all rows, and a solution that is compared with another is compared as
 * a whole. */
static bool solves_rows(const fp_settings *settings, const fp_pattern *pattern)
{
	return pattern->group > 0 && searches(settings) && settings->iterations == 0 && !starts_feasible(settings);
}

/* Adds a step during which its caller holds `before` floats. */
static void add_step(fp_solve_memory *all, fp_solve_memory step, double before)
{
	all->kept += step.kept;
	all->peak = fmax(all->peak, before + step.peak);
}

static fp_solve_memory memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	double mn = (double)size->entries;
	bool scaled = settings->scaling || searches(settings) || settings->ridge > 0;
	bool compares = settings->iterations > 0 || starts_feasible(settings);
	fp_solve_memory all = {0};
	double held = scaled ? fp_scaled_copies(size) : 0;
	if (scaled)
		add_step(&all, fp_scaled_memory(size), 0);
	if (fp_is(settings->warm_start, "sparsegpt"))
		add_step(&all, fp_sparsegpt_memory(be, size), held);
	if (settings->iterations > 0)
		add_step(&all, fp_lambda_search_memory(be, settings, size), held);
	if (searches(settings)) {
		held += (2 + (compares ? 1.25 : 0)) * mn; /* search(): work space, and the solution that it compares with */
		add_step(&all, fp_support_admm_memory(be, size), held);
	}
	if (settings->refit_steps > 0)
		add_step(&all, fp_refit_memory(be, settings, size), held);
	return all;
}

static fp_solve_products products(const fp_backend *be, const fp_settings *settings)
{
	fp_solve_products all = fp_lambda_search_products(be, settings);
	if (searches(settings))
		all.operators += fp_support_admm_products(settings);
	all.operators += (double)settings->refit_steps + 4; /* residuals and errors before and after */
	return all;
}

const fp_method fp_method_fista = {
	.quantiser = FP_QUANTISER_DESCENT,
	.needs_text = true,
	.has_presets = true,
	.feed = feed,
	.solves_rows = solves_rows,
	.solve = solve,
	.memory = memory,
	.products = products,
};
