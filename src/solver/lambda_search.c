/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lambda_search.c: FISTAPruner's outer loop (Algorithm 1 of the paper).
 *
 *     V = FISTA(best, λ);  V' = round(V)
 *     E_total = ‖V'X* − T‖,  E_round = E_total − ‖VX* − T‖
 *     λ goes up when E_round/E_total > ξ (too little sparsity came from ℓ₁), else down
 * It ends after T rounds without an improvement, or when an improvement (E_best − E_total)/E_best is below ε. The best
 * rounded solution is kept.
 *
 * "bisection" halves [lambda_low, lambda_high] arithmetically in absolute units, as the paper does. "geometric" halves
 * it on a logarithmic scale in units of max|C| (above which the optimum is V = 0), so that it does not depend on how
 * much text was folded.
 */
#include "solver/fista_delta.h"

#include <math.h>

/* After so many halvings the range is below double precision. If an exact fit exists (more inputs than tokens), every
 * round improves on the last and only this limit ends the search. */
enum { MOST_ROUNDS = 64 };

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
		fp_status status = be->linear->max_abs(be, problem->C, &unit);
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

/* State of the rounds. */
typedef struct search_space {
	const fp_problem *problem;
	const fp_settings *settings;
	fp_delta delta;
	fp_batch batch;      /* unused with the difference form */
	double L;            /* λ_max */
	fp_matrix candidate; /* absent with the difference form (fista_delta.h), as is `work` */
	fp_matrix work[2];
	fp_matrix product; /* of the difference form: (V − W)A of the best, which saves FISTA its first product */
} search_space;

static fp_status space_new(search_space *space, const fp_problem *problem, const fp_settings *settings)
{
	fp_backend *be = problem->gram->be;
	fp_matrix W = problem->W;
	fp_status status;
	space->problem = problem;
	space->settings = settings;
	FP_TRY(fp_gram_largest(problem->gram, &space->L));
	FP_TRY(fp_delta_new(&space->delta, problem, settings));
	if (!space->delta.used) {
		FP_TRY(fp_matrix_new(be, &space->candidate, W.rows, W.cols, FP_F32));
		for (int i = 0; i < 2; i++)
			FP_TRY(fp_matrix_new(be, &space->work[i], W.rows, W.cols, FP_F32));
	}
cleanup:
	return status;
}

static void space_free(search_space *space)
{
	fp_backend *be = space->problem->gram->be;
	fp_delta_free(&space->delta);
	fp_batch_free(&space->batch);
	fp_matrix_free(be, &space->candidate);
	fp_matrix_free(be, &space->work[0]);
	fp_matrix_free(be, &space->work[1]);
	fp_matrix_free(be, &space->product);
}

/* *out ← ‖VX* − T‖². Low precision is enough: the roundings of V − W are independent and add about the same to all
 * errors that are compared, a share of about 10⁻⁵ in bf16. */
static fp_status measure(search_space *space, fp_matrix V, double *out)
{
	return fp_problem_error_for(space->problem, FP_USE_ACTIVATION, V, space->work, out);
}

/* λ goes up if the squared error before rounding is below this share, (1 − ξ)², of that after rounding. A lower bound of
 * the former decides if it is not below a little more than that: the margin is for its rounding error. */
static double deciding_share(const fp_settings *settings, double margin)
{
	return (1 - settings->rounding_share) * (1 - settings->rounding_share) * (1 + margin);
}

/* *error ← ‖VX* − T‖ of the start; infinite if the start does not have the pattern */
static fp_status begin(search_space *space, bool feasible, fp_matrix V, double *error)
{
	fp_delta *delta = &space->delta;
	double square = INFINITY;
	fp_status status = FP_OK;
	if (delta->used) {
		FP_TRY(fp_delta_set(delta, V));
		FP_TRY(fp_delta_error(delta, delta->rounded, &square)); /* an infeasible start needs the product only */
		FP_TRY(fp_delta_keep(delta, &space->product));
	} else if (feasible) {
		FP_TRY(measure(space, V, &square));
	}
	*error = feasible ? sqrt(square) : INFINITY;
cleanup:
	return status;
}

/*
 * try_lambda() in the difference form. The rule for λ only asks whether *before is below a share of *total. FISTA's last
 * step gives a lower bound of *before; if the bound is not below the share, it decides, and the product that the exact
 * error would take is saved. `best` (a squared error) serves to guess whether the bound will decide.
 */
static fp_status try_delta(search_space *space, double lambda, double best, fp_matrix mask, int64_t *steps,
						   double *before, double *total)
{
	const fp_settings *settings = space->settings;
	fp_delta *delta = &space->delta;
	double share = deciding_share(settings, 1e-9);
	double least;
	fp_status status;
	FP_TRY(fp_delta_fista(delta, settings, lambda, space->L, space->product, &least, steps));
	bool measured = !fp_delta_rounds_apart(delta) || !(least >= share * best);
	if (measured)
		FP_TRY(fp_delta_error(delta, delta->D, before));
	FP_TRY(fp_delta_round(delta, mask));
	FP_TRY(fp_delta_error(delta, delta->rounded, total));
	if (!measured && least >= share * *total) {
		*before = least;
	} else if (!measured) {
		FP_TRY(fp_delta_error(delta, delta->D, before));
		FP_TRY(fp_delta_multiply(delta, delta->rounded)); /* fp_delta_keep() keeps it too */
	}
cleanup:
	return status;
}

/* try_lambda() in the plain form, by the same bound. */
static fp_status try_plain(search_space *space, double lambda, double best, fp_matrix V, fp_matrix mask, int64_t *steps,
						   double *before, double *total)
{
	const fp_problem *problem = space->problem;
	fp_batch *batch = &space->batch;
	fp_matrix candidate = space->candidate;
	double share = deciding_share(space->settings, 1e-3);
	fp_status status;
	FP_TRY(fp_fista(problem, space->settings, lambda, space->L, batch, V, candidate, steps));
	bool measured = !(batch->least >= share * best);
	*before = batch->least;
	if (measured)
		FP_TRY(measure(space, candidate, before));
	FP_TRY(fp_round(problem, candidate, mask));
	FP_TRY(measure(space, candidate, total));
	if (!measured && !(batch->least >= share * *total))
		FP_TRY(fp_problem_error_at(problem, FP_USE_ACTIVATION, batch->space.D, space->work[1], before));
cleanup:
	return status;
}

/* The candidate ← FISTA's result from V for λ, rounded. *before and *total ← ‖VX* − T‖ before and after rounding;
 * *before only as exactly as the rule for λ needs it. */
static fp_status try_lambda(search_space *space, double lambda, double best, fp_matrix V, fp_matrix mask,
							int64_t *steps, double *before, double *total)
{
	fp_status status;
	if (space->delta.used)
		FP_TRY(try_delta(space, lambda, best * best, mask, steps, before, total));
	else
		FP_TRY(try_plain(space, lambda, best * best, V, mask, steps, before, total));
	*before = sqrt(*before);
	*total = sqrt(*total);
cleanup:
	return status;
}

/* Keeps the candidate as the best so far. */
static fp_status keep(search_space *space, fp_matrix V)
{
	fp_backend *be = space->problem->gram->be;
	return space->delta.used ? fp_delta_keep(&space->delta, &space->product)
							 : be->memory->copy(be, V, space->candidate);
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
	FP_TRY(begin(&space, feasible, V, &best));

	do {
		double before;
		double total;
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(try_lambda(&space, range.lambda, best, V, mask, &solution->iterations, &before, &total));
		solution->rounds++;
		if (total < best) {
			improvement = isfinite(best) ? (best - total) / best : INFINITY;
			best = total;
			solution->lambda = range.lambda;
			if (settings->reset_patience)
				failures = 0;
			FP_TRY(keep(&space, V));
		} else {
			failures++;
		}
		next_lambda(&range, total > 0 && (total - before) / total > settings->rounding_share);
	} while (failures < settings->patience && improvement >= settings->tolerance && solution->rounds < MOST_ROUNDS);
	solution->error = best;
	if (space.delta.used)
		FP_TRY(fp_delta_get(&space.delta, V));
	FP_TRY(fp_round(problem, V, mask)); /* the mask of the best, not of the last round */
cleanup:
	space_free(&space);
	return status;
}

fp_solve_memory fp_lambda_search_memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	double square = (double)(size->inputs * size->inputs), mn = (double)size->entries;
	double steps = (settings->restart ? 7 : 5) * mn, making = 4 + size->has_R; /* S and Q */
	if (!fp_delta_serves(be, settings)) {
		bool bounds = fp_is(settings->momentum, "literal") && !settings->restart;
		steps += bounds || fp_fista_rounds(be) ? mn : 0;
		bool batches = fp_batch_serves(be, settings, size); /* S and Q, what they are made in, and E after that */
		double batch = batches ? fmax(making * square, size->has_R ? mn : 0) : 0;
		return (fp_solve_memory){.kept = batches ? (1 + size->has_R) * square : 0,
								 .peak = steps + batch + fp_product_floats(be, FP_USE_ITERATION, size)};
	}
	/* A in BF16; with batched steps S and Q too */
	bool batched =
		fp_is(settings->momentum, "literal") && (!size->frugal || size->inputs * size->inputs <= 2 * size->entries);
	return (fp_solve_memory){.kept = (batched ? 1 + 0.5 * size->has_R : 0.5) * square,
							 .peak = steps + (batched ? making * square : 0)};
}

/* Rounds, as seen: 8 on small models and 15 at 7B with the paper's ε of 1e-3, 56 with 1e-6. */
static double usual_rounds(const fp_settings *settings)
{
	double digits = -log10(fmax(settings->tolerance, 1e-12));
	return settings->iterations > 0 ? 12 + 15 * fmax(digits - 3, 0) : 0;
}

/* Whether, judging by the settings, most rounds take their steps in one product. */
static bool usually_batches(const fp_settings *settings)
{
	const double negligible_below = 2e-5; /* the paper starts at λ = 1e-5, which is negligible */
	return fp_is(settings->momentum, "literal") && settings->iterations > 4 && !settings->restart &&
		   fp_is(settings->lambda_search, "bisection") && settings->lambda_start < negligible_below;
}

fp_solve_products fp_lambda_search_products(const fp_backend *be, const fp_settings *settings)
{
	double rounds = usual_rounds(settings), steps = (double)settings->iterations;
	if (!usually_batches(settings))
		return (fp_solve_products){.operators = rounds * (steps + 2)};
	/* a round: the batched steps, the last step and the error after rounding. Once: E, the steps one by one unless they are
	 * batched at once, and for the Gram matrix half a product of S and one of Q for each pair of steps */
	bool at_once = fp_delta_serves(be, settings);
	return (fp_solve_products){.operators = rounds * 3 + 1 + (at_once ? 0 : steps), .gram = steps / 2};
}
