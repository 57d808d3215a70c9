/* SPDX-License-Identifier: Apache-2.0 */
#include "solver/near.h"

#include "base/clock.h"

#include <math.h>

fp_status fp_near_new(fp_near *out, const fp_problem *problem, const fp_settings *settings)
{
	fp_backend *be = problem->gram->be;
	fp_matrix W = problem->W;
	fp_status status = FP_OK;
	*out = (fp_near){.problem = problem, .W = fp_matrix_is_absent(problem->held) ? W : problem->held, .unfelt = -1};
	if (!be->ops->fista_step_near || be->precision != FP_PRECISION_BF16 || settings->restart)
		return FP_OK;
	FP_TRY(fp_gram_narrow(problem->gram, &out->A));
	FP_TRY(fp_matrix_new(be, &out->D, 2 * W.rows, W.cols, FP_BF16));
	FP_TRY(fp_matrix_new(be, &out->rounded, 2 * W.rows, W.cols, FP_BF16));
	FP_TRY(fp_matrix_new(be, &out->G, W.rows, W.cols, FP_BF16));
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
	fp_matrix_free(be, &near->R);
	fp_matrix_free(be, &near->E);
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

/* A step as the rule in `rule` has it, from `from` where that is not absent. */
static fp_status plain_step(fp_near *near, fp_fista_near *rule, double momentum, fp_matrix G, double *change,
							double *bound)
{
	fp_backend *be = near->problem->gram->be;
	rule->momentum = (float)momentum;
	fp_status status = be->ops->fista_step_near(be, rule, G, change, bound);
	rule->from = (fp_matrix){0};
	return status;
}

/* E ← what `count` steps make of D = 0; D is overwritten. */
static fp_status make_start(fp_near *near, double L, int64_t count)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix whole = near->D;
	double t = 1;
	fp_fista_near rule = {
		.rule = FP_MOMENTUM_LITERAL, .step = (float)(1.0 / L), .W = near->W, .R = near->R, .D = near->D};
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(near->R))
		return FP_OK;
	whole.rows /= 2;
	whole.dtype = FP_F32; /* two halves are as large as a float, and all bits are zero in both */
	FP_TRY(be->ops->fill(be, whole, 0.0F));
	for (int64_t k = 0; k < count; k++) {
		FP_TRY(fp_near_multiply(near, near->D));
		FP_TRY(plain_step(near, &rule, fp_fista_momentum(&t), near->G, NULL, NULL));
	}
	FP_TRY(fp_matrix_new(be, &near->E, near->W.rows, near->W.cols, FP_BF16));
	FP_TRY(be->ops->copy(be, near->E, fp_matrix_rows(near->D, 0, near->W.rows)));
cleanup:
	return status;
}

/*
 * True when all steps but the last can be made at once (leap.c): shrinkage by θ in each of them moves no weight by a
 * millionth of their root mean square, where the checkpoint's type rounds by a thousandth and more. Where memory is
 * short a Gram matrix that is much larger than the operator is spared it. Then near->leap and near->E are there.
 */
static fp_status can_leap(fp_near *near, const fp_settings *settings, double lambda, double L, bool *out)
{
	enum { FEWEST = 4 };
	fp_gram *gram = near->problem->gram;
	fp_backend *be = gram->be;
	fp_matrix W = near->problem->W;
	int64_t count = settings->iterations - 1;
	fp_status status = FP_OK;
	*out = false;
	if (!fp_is(settings->momentum, "literal") || count < FEWEST)
		return FP_OK;
	if (gram->leap_steps != count && be->frugal && W.cols > 2 * W.rows)
		return FP_OK;
	if (near->unfelt < 0) {
		double squares;
		FP_TRY(be->ops->dot(be, W, W, &squares));
		near->unfelt = 1e-6 * sqrt(squares / (double)(fp_matrix_size(W) > 0 ? fp_matrix_size(W) : 1));
	}
	if (!(lambda / L * (double)count <= near->unfelt))
		return FP_OK;
	if (fp_matrix_is_absent(near->leap)) {
		FP_TRY(fp_gram_leap(gram, count, &near->leap));
		FP_TRY(make_start(near, L, count));
	}
	*out = true;
cleanup:
	return status;
}

/* D ← best(I − S) + E, the first steps of a descent at once; *t moves on. */
static fp_status leap(fp_near *near, const fp_fista_near *rule, int64_t count, double *t)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix high = fp_matrix_rows(near->best, 0, near->G.rows);
	fp_fista_near at_once = *rule;
	at_once.step = 1;
	at_once.threshold = at_once.momentum = 0;
	at_once.R = near->E;
	fp_status status;
	for (int64_t k = 0; k < count; k++)
		(void)fp_fista_momentum(t);
	FP_TRY(be->ops->gemm(be, 1.0F, high, FP_PLAIN, near->leap, FP_TRANSPOSED, 0.0F, near->G));
	FP_TRY(be->ops->fista_step_near(be, &at_once, near->G, NULL, NULL));
cleanup:
	return status;
}

fp_status fp_near_fista(fp_near *near, const fp_settings *settings, double lambda, double L, fp_matrix product,
						double *least, int64_t *steps)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix work = work_of(near);
	bool literal = fp_is(settings->momentum, "literal");
	bool leaps;
	int64_t k = 0;
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
	FP_TRY(can_leap(near, settings, lambda, L, &leaps));
	if (leaps) {
		k = settings->iterations - 1;
		FP_TRY(leap(near, &rule, k, &t));
		*steps += k;
		rule.from = (fp_matrix){0};
	}
	if (!literal) /* P = Y to begin with */
		FP_TRY(be->ops->rejoin(be, near->W, near->best, work));
	for (; k < settings->iterations; k++) {
		double change = INFINITY;
		double bound = -INFINITY;
		fp_matrix G = near->G;
		if (k == 0)
			G = product;
		else
			FP_TRY(fp_near_multiply(near, near->D));
		/* the literal rule goes without P, but for the step before one that measures the change of it */
		bool look = looks(near, settings, k), last = literal && k + 1 == settings->iterations;
		rule.P = !literal || look || looks(near, settings, k + 1) ? work : (fp_matrix){0};
		FP_TRY(plain_step(near, &rule, fp_fista_momentum(&t), G, look ? &change : NULL, last ? &bound : NULL));
		++*steps;
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
