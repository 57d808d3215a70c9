/* SPDX-License-Identifier: Apache-2.0 */
#include "solver/near.h"

#include "base/clock.h"

#include <math.h>

fp_status fp_near_new(fp_near *out, const fp_problem *problem, const fp_settings *settings)
{
	fp_backend *be = problem->gram->be;
	fp_matrix W = problem->W;
	fp_status status = FP_OK;
	*out = (fp_near){.problem = problem, .W = W};
	if (!be->ops->fista_step_near || be->precision != FP_PRECISION_BF16 || settings->restart ||
		!fp_search_is_coarse(settings))
		return FP_OK;
	FP_TRY(fp_gram_narrow(problem->gram, &out->A));
	FP_TRY(fp_matrix_new(be, &out->D, 2 * W.rows, W.cols, FP_BF16));
	FP_TRY(fp_matrix_new(be, &out->G, W.rows, W.cols, FP_BF16));
	if (problem->type != FP_F32) {
		FP_TRY(fp_matrix_new(be, &out->own, W.rows, W.cols, problem->type));
		FP_TRY(be->ops->copy(be, out->own, W));
		out->W = out->own;
	}
	if (!fp_matrix_is_absent(problem->R)) {
		FP_TRY(fp_matrix_new(be, &out->R, W.rows, W.cols, FP_BF16));
		FP_TRY(be->ops->copy(be, out->R, problem->R));
	}
	out->used = true;
cleanup:
	if (status != FP_OK)
		fp_near_free(out);
	return status;
}

void fp_near_free(fp_near *near)
{
	if (!near->problem)
		return;
	fp_backend *be = near->problem->gram->be;
	fp_matrix_free(be, &near->D);
	fp_matrix_free(be, &near->best);
	fp_matrix_free(be, &near->own);
	fp_matrix_free(be, &near->R);
	fp_matrix_free(be, &near->G);
	*near = (fp_near){0};
}

fp_status fp_near_set(fp_near *near, fp_matrix V)
{
	fp_backend *be = near->problem->gram->be;
	return be->ops->halve(be, V, near->W, near->D);
}

fp_status fp_near_get(const fp_near *near, fp_matrix V)
{
	fp_backend *be = near->problem->gram->be;
	return be->ops->rejoin(be, near->W, near->D, V);
}

/* Two matrices change places; the second is made where it is absent. */
static fp_status exchange(fp_backend *be, fp_matrix *a, fp_matrix *b)
{
	fp_matrix other = *b;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(other))
		status = fp_matrix_new(be, &other, a->rows, a->cols, a->dtype);
	if (status == FP_OK) {
		*b = *a;
		*a = other;
	}
	return status;
}

fp_status fp_near_keep(fp_near *near, fp_matrix *product)
{
	fp_backend *be = near->problem->gram->be;
	fp_status status = exchange(be, &near->D, &near->best);
	return status == FP_OK ? exchange(be, &near->G, product) : status;
}

fp_status fp_near_round(fp_near *near, fp_matrix work, fp_matrix mask)
{
	fp_backend *be = near->problem->gram->be;
	const fp_pattern *pattern = &near->problem->pattern;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ROUNDING);
	fp_status status;
	if (pattern->group > 0 && pattern->group <= FP_NEAR_GROUP) {
		status = be->ops->near_round(be, pattern, near->W, near->D);
	} else {
		FP_TRY(fp_near_get(near, work));
		FP_TRY(fp_round(near->problem, work, mask));
		FP_TRY(fp_near_set(near, work));
	}
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

/* G ← DA */
static fp_status multiply(fp_near *near, fp_matrix D)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix high = fp_matrix_rows(D, 0, near->G.rows);
	return be->ops->gemm(be, 1.0F, high, FP_PLAIN, near->A, FP_TRANSPOSED, 0.0F, near->G);
}

fp_status fp_near_error(fp_near *near, double *out)
{
	fp_backend *be = near->problem->gram->be;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ERROR);
	double sum;
	fp_status status;
	FP_TRY(multiply(near, near->D));
	FP_TRY(be->ops->near_sum(be, near->D, near->G, near->R, &sum));
	sum += near->problem->constant;
	*out = sum < 0.0 ? 0.0 : sum; /* as fp_problem_error() */
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

/* A change that is so many times the tolerance does not fall below it in a later round. */
static const double FAR = 1e3;

/* On a device a number for the host costs a wait: a few steps too many cost less. Nothing depends on the last. */
static bool looks(const fp_near *near, const fp_settings *settings, int64_t k)
{
	enum { LOOK_EVERY = 10 };
	return !near->far && k % LOOK_EVERY == LOOK_EVERY - 1 && k + 1 < settings->iterations;
}

fp_status fp_near_fista(fp_near *near, const fp_settings *settings, double lambda, double L, fp_matrix product,
						fp_matrix work, int64_t *steps)
{
	fp_backend *be = near->problem->gram->be;
	bool literal = fp_is(settings->momentum, "literal");
	double t = 1;
	fp_fista_near rule = {.rule = literal ? FP_MOMENTUM_LITERAL : FP_MOMENTUM_STANDARD,
						  .step = (float)(1.0 / L),
						  .threshold = (float)(lambda / L),
						  .W = near->W,
						  .R = near->R,
						  .D = near->D,
						  .from = near->best};
	fp_status status = FP_OK;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return fp_matrix_is_absent(near->best) ? FP_OK : be->ops->copy(be, near->D, near->best);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	if (!literal) /* P = Y to begin with */
		FP_TRY(be->ops->rejoin(be, near->W, fp_matrix_is_absent(near->best) ? near->D : near->best, work));
	for (int64_t k = 0; k < settings->iterations; k++) {
		double change = INFINITY;
		fp_matrix G = k == 0 ? product : (fp_matrix){0};
		if (fp_matrix_is_absent(G)) {
			FP_TRY(multiply(near, fp_matrix_is_absent(rule.from) ? near->D : rule.from));
			G = near->G;
		}
		rule.momentum = (float)fp_fista_momentum(&t);
		/* the literal rule goes without P, but for the step before one that measures the change of it */
		rule.P = !literal || looks(near, settings, k) || looks(near, settings, k + 1) ? work : (fp_matrix){0};
		FP_TRY(be->ops->fista_step_near(be, &rule, G, looks(near, settings, k) ? &change : NULL));
		++*steps;
		rule.from = (fp_matrix){0};
		if (isfinite(change))
			near->far = sqrt(change) > FAR * settings->step_tolerance;
		if (sqrt(change) < settings->step_tolerance)
			break;
	}
	if (!literal) /* the result is P, not Y */
		FP_TRY(fp_near_set(near, work));
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}
