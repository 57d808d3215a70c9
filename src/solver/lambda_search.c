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
#include "solver/problem.h"

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

/* Two places change their content: the product of what is now the best stays, the other is free. */
static fp_status keep_product(fp_backend *be, fp_matrix V, fp_matrix *product, fp_matrix *kept)
{
	fp_matrix spare = *kept;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(spare))
		status = fp_matrix_new(be, &spare, V.rows, V.cols, FP_F32);
	if (status == FP_OK) {
		*kept = *product;
		*product = spare;
	}
	return status;
}

fp_status fp_lambda_search(const fp_problem *problem, const fp_settings *settings, bool feasible, fp_matrix V,
						   fp_matrix mask, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	fp_matrix candidate = {0};
	fp_matrix work[2] = {{0}, {0}};
	fp_matrix product = {0}; /* (V − W)A of the best, which spares FISTA its first product */
	search_range range;
	fp_use use = settings->tolerance >= COARSE_TOLERANCE ? FP_USE_ACTIVATION : FP_USE_REFINEMENT;
	double L;
	double best = INFINITY;
	double improvement = INFINITY;
	int64_t failures = 0;
	fp_status status;
	FP_TRY(fp_gram_largest(problem->gram, &L));
	FP_TRY(first_lambda(problem, settings, &range));
	FP_TRY(fp_matrix_new(be, &candidate, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &work[0], V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &work[1], V.rows, V.cols, FP_F32));
	if (feasible) {
		double square;
		FP_TRY(fp_problem_error_for(problem, use, V, work, &square));
		best = sqrt(square);
		FP_TRY(keep_product(be, V, &work[1], &product));
	}

	do {
		double before;
		double total;
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(be->ops->copy(be, candidate, V));
		FP_TRY(fp_fista_from(problem, settings, range.lambda, L, product, candidate, &solution->iterations));
		FP_TRY(fp_problem_error_for(problem, use, candidate, work, &before));
		FP_TRY(fp_round(problem, candidate, mask));
		FP_TRY(fp_problem_error_for(problem, use, candidate, work, &total));
		before = sqrt(before);
		total = sqrt(total);
		solution->rounds++;
		if (total < best) {
			improvement = isfinite(best) ? 1 - (total / best) * (total / best) : INFINITY;
			best = total;
			solution->lambda = range.lambda;
			if (settings->reset_patience)
				failures = 0;
			FP_TRY(be->ops->copy(be, V, candidate));
			FP_TRY(keep_product(be, V, &work[1], &product));
		} else {
			failures++;
		}
		next_lambda(&range, total > 0 && (total - before) / total > settings->rounding_share);
	} while (failures < settings->patience && improvement >= settings->tolerance && solution->rounds < MOST_ROUNDS);
	solution->error = best;
	FP_TRY(fp_round(problem, V, mask)); /* the mask of the best, not of the last */
cleanup:
	fp_matrix_free(be, &candidate);
	fp_matrix_free(be, &work[0]);
	fp_matrix_free(be, &work[1]);
	fp_matrix_free(be, &product);
	return status;
}
