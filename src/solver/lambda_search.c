/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lambda_search.c: FISTAPruner's outer loop (Algorithm 1 of the paper).
 *
 *     V = FISTA(best, λ);  V' = round(V)
 *     E_total = ‖V'X* − T‖,  E_round = E_total − ‖VX* − T‖
 *     λ goes up when E_round/E_total > ξ (too little sparsity came from ℓ₁), else down
 * until T rounds brought no improvement, an improvement of E_total² was relatively below ε, or the range has no room
 * left. The best rounded solution is kept. ε is compared with the squared error, the objective itself: with the norm,
 * half as strict, ε = 10⁻³ ends the search too early at high sparsity (docs/algorithm.md).
 *
 * "bisection" halves [lambda_low, lambda_high] arithmetically in absolute units, as the paper does. "geometric" halves
 * it on a logarithmic scale in units of max|C| (above which the optimum is V = 0), so that it does not depend on how
 * much text was folded.
 */
#include "solver/near.h"

#include <math.h>

/* By then the range is halved beyond what double tells apart. Where a fit without any error exists (more inputs than
 * tokens) every round improves on the last, and only this ends the search. */
enum { MOST_ROUNDS = 64 };

/* From this tolerance on the search may measure errors with the arithmetic of its steps: roundings of V − W are
 * independent, and what they add to the error, a share of about 10⁻⁵, is the same for all that are compared. */
static const double COARSE_TOLERANCE = 1e-3;

typedef struct search_range {
	bool geometric;
	double low, high, lambda;
} search_range;

static fp_status first_lambda(const fp_problem *problem, const fp_settings *settings, search_range *range)
{
	double unit = 1;
	range->geometric = fp_is(settings->lambda_search, "geometric");
	if (range->geometric) {
		fp_backend *be = problem->gram->be;
		fp_status status = be->ops->max_abs(be, problem->C, &unit);
		if (status != FP_OK)
			return status;
	}
	range->low = settings->lambda_low * unit;
	range->high = settings->lambda_high * unit;
	range->lambda = settings->lambda_start * unit;
	return FP_OK;
}

static void next_lambda(search_range *range, bool up)
{
	if (up)
		range->low = range->lambda;
	else
		range->high = range->lambda;
	range->lambda =
		range->geometric && range->low > 0 ? sqrt(range->low * range->high) : 0.5 * (range->low + range->high);
}

/* What the rounds work with. */
typedef struct search_space {
	const fp_problem *problem;
	const fp_settings *settings;
	fp_near near;
	fp_use use;  /* of the products that errors are told by */
	bool coarse; /* errors come from the near form, too */
	double L;    /* λ_max */
	fp_matrix candidate;
	fp_matrix work[2]; /* absent where coarse */
	fp_matrix product; /* (V − W)A of the best, which spares FISTA its first product */
} search_space;

static fp_status space_new(search_space *space, const fp_problem *problem, const fp_settings *settings)
{
	fp_backend *be = problem->gram->be;
	fp_matrix W = problem->W;
	fp_status status;
	space->problem = problem;
	space->settings = settings;
	space->use = settings->tolerance >= COARSE_TOLERANCE ? FP_USE_ACTIVATION : FP_USE_REFINEMENT;
	FP_TRY(fp_gram_largest(problem->gram, &space->L));
	FP_TRY(fp_near_new(&space->near, problem, settings));
	space->coarse = space->near.used && space->use == FP_USE_ACTIVATION;
	FP_TRY(fp_matrix_new(be, &space->candidate, W.rows, W.cols, FP_F32));
	for (int i = 0; i < 2 && !space->coarse; i++)
		FP_TRY(fp_matrix_new(be, &space->work[i], W.rows, W.cols, FP_F32));
cleanup:
	return status;
}

static void space_free(search_space *space)
{
	fp_backend *be = space->problem->gram->be;
	fp_near_free(&space->near);
	fp_matrix_free(be, &space->candidate);
	fp_matrix_free(be, &space->work[0]);
	fp_matrix_free(be, &space->work[1]);
	fp_matrix_free(be, &space->product);
}

/* *out ← ‖VX* − T‖. (V − W)A is left where keep_product() finds it. */
static fp_status measure(search_space *space, fp_matrix V, double *out)
{
	fp_status status;
	double square;
	if (space->coarse) {
		FP_TRY(fp_near_set(&space->near, V));
		FP_TRY(fp_near_error(&space->near, &square));
	} else {
		FP_TRY(fp_problem_error_for(space->problem, space->use, V, space->work, &square));
	}
	*out = sqrt(square);
cleanup:
	return status;
}

/* Two places change their content: the product of what is now the best stays, the other is free. */
static fp_status keep_product(search_space *space)
{
	fp_matrix *fresh = space->coarse ? &space->near.G : &space->work[1];
	fp_matrix spare = space->product;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(spare))
		status = fp_matrix_new(space->problem->gram->be, &spare, fresh->rows, fresh->cols, fresh->dtype);
	if (status == FP_OK) {
		space->product = *fresh;
		*fresh = spare;
	}
	return status;
}

/* candidate ← FISTA's result from V, *error ← its ‖VX* − T‖ */
static fp_status descend(search_space *space, double lambda, fp_matrix V, int64_t *steps, double *error)
{
	fp_backend *be = space->problem->gram->be;
	fp_near *near = &space->near;
	fp_matrix candidate = space->candidate;
	fp_status status;
	if (!near->used) {
		FP_TRY(be->ops->copy(be, candidate, V));
		FP_TRY(fp_fista(space->problem, space->settings, lambda, space->L, candidate, steps));
		return measure(space, candidate, error);
	}
	FP_TRY(fp_near_set(near, V));
	FP_TRY(fp_near_fista(near, space->settings, lambda, space->L, space->product, candidate, steps));
	FP_TRY(fp_near_get(near, candidate));
	if (!space->coarse)
		return measure(space, candidate, error);
	FP_TRY(fp_near_error(near, error));
	*error = sqrt(*error);
cleanup:
	return status;
}

fp_status fp_lambda_search(const fp_problem *problem, const fp_settings *settings, bool feasible, fp_matrix V,
						   fp_matrix mask, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	search_space space = {.problem = problem};
	search_range range;
	double best = INFINITY;
	double improvement = INFINITY;
	int64_t failures = 0;
	fp_status status;
	FP_TRY(space_new(&space, problem, settings));
	FP_TRY(first_lambda(problem, settings, &range));
	if (feasible) {
		FP_TRY(measure(&space, V, &best));
		FP_TRY(keep_product(&space));
	}

	do {
		double before;
		double total;
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(descend(&space, range.lambda, V, &solution->iterations, &before));
		FP_TRY(fp_round(problem, space.candidate, mask));
		FP_TRY(measure(&space, space.candidate, &total));
		solution->rounds++;
		if (total < best) {
			improvement = isfinite(best) ? 1 - (total / best) * (total / best) : INFINITY;
			best = total;
			solution->lambda = range.lambda;
			if (settings->reset_patience)
				failures = 0;
			FP_TRY(be->ops->copy(be, V, space.candidate));
			FP_TRY(keep_product(&space));
		} else {
			failures++;
		}
		next_lambda(&range, total > 0 && (total - before) / total > settings->rounding_share);
	} while (failures < settings->patience && improvement >= settings->tolerance && solution->rounds < MOST_ROUNDS);
	solution->error = best;
	FP_TRY(fp_round(problem, V, mask)); /* the mask of the best, not of the last */
cleanup:
	space_free(&space);
	return status;
}
