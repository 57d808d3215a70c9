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
	FP_TRY(fp_matrix_new(be, &out->rounded, 2 * W.rows, W.cols, FP_BF16));
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
	fp_matrix_free(be, &near->rounded);
	fp_matrix_free(be, &near->best);
	fp_matrix_free(be, &near->own);
	fp_matrix_free(be, &near->R);
	fp_matrix_free(be, &near->G);
	*near = (fp_near){0};
}

fp_status fp_near_set(fp_near *near, fp_matrix V)
{
	fp_backend *be = near->problem->gram->be;
	return be->ops->halve(be, V, near->W, near->rounded);
}

fp_status fp_near_get(const fp_near *near, fp_matrix V)
{
	fp_backend *be = near->problem->gram->be;
	return be->ops->rejoin(be, near->W, near->best, V);
}

/* The room of two halves is that of a float. */
static fp_matrix work_of(const fp_near *near)
{
	fp_matrix work = near->rounded;
	work.rows /= 2;
	work.dtype = FP_F32;
	return work;
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
	fp_status status = exchange(be, &near->rounded, &near->best);
	return status == FP_OK ? exchange(be, &near->G, product) : status;
}

bool fp_near_rounds_apart(const fp_near *near)
{
	const fp_pattern *pattern = &near->problem->pattern;
	return pattern->group > 0 && pattern->group <= FP_NEAR_GROUP;
}

fp_status fp_near_round(fp_near *near, fp_matrix mask)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix work = work_of(near);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ROUNDING);
	fp_status status;
	if (fp_near_rounds_apart(near)) {
		status = be->ops->near_round(be, &near->problem->pattern, near->W, near->D, near->rounded);
	} else {
		FP_TRY(be->ops->rejoin(be, near->W, near->D, work));
		FP_TRY(fp_round(near->problem, work, mask));
		FP_TRY(be->ops->halve(be, work, near->W, near->D));
		FP_TRY(exchange(be, &near->D, &near->rounded));
	}
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

fp_status fp_near_multiply(fp_near *near, fp_matrix D)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix high = fp_matrix_rows(D, 0, near->G.rows);
	return be->ops->gemm(be, 1.0F, high, FP_PLAIN, near->A, FP_TRANSPOSED, 0.0F, near->G);
}

fp_status fp_near_error(fp_near *near, fp_matrix D, double *out)
{
	fp_backend *be = near->problem->gram->be;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ERROR);
	double sum;
	fp_status status;
	FP_TRY(fp_near_multiply(near, D));
	FP_TRY(be->ops->near_sum(be, D, near->G, near->R, &sum));
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
						double *least, int64_t *steps)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix work = work_of(near);
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
	*least = -INFINITY;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return be->ops->copy(be, near->D, near->best);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	if (!literal) /* P = Y to begin with */
		FP_TRY(be->ops->rejoin(be, near->W, near->best, work));
	for (int64_t k = 0; k < settings->iterations; k++) {
		double change = INFINITY;
		double bound = -INFINITY;
		fp_matrix G = near->G;
		if (k == 0)
			G = product;
		else
			FP_TRY(fp_near_multiply(near, near->D));
		rule.momentum = (float)fp_fista_momentum(&t);
		/* the literal rule goes without P, but for the step before one that measures the change of it */
		bool look = looks(near, settings, k), last = literal && k + 1 == settings->iterations;
		rule.P = !literal || look || looks(near, settings, k + 1) ? work : (fp_matrix){0};
		FP_TRY(be->ops->fista_step_near(be, &rule, G, look ? &change : NULL, last ? &bound : NULL));
		++*steps;
		rule.from = (fp_matrix){0};
		*least = bound + near->problem->constant;
		if (isfinite(change))
			near->far = sqrt(change) > FAR * settings->step_tolerance;
		if (sqrt(change) < settings->step_tolerance)
			break;
	}
	if (!literal) /* the result is P, not Y */
		FP_TRY(be->ops->halve(be, work, near->W, near->D));
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}
