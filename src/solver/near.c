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
	if (!be->ops->fista_step_near || be->precision != FP_PRECISION_BF16 || settings->restart)
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

/* G ← DA */
static fp_status multiply(fp_near *near)
{
	fp_backend *be = near->problem->gram->be;
	fp_matrix high = fp_matrix_rows(near->D, 0, near->G.rows);
	return be->ops->gemm(be, 1.0F, high, FP_PLAIN, near->A, FP_TRANSPOSED, 0.0F, near->G);
}

fp_status fp_near_error(fp_near *near, double *out)
{
	fp_backend *be = near->problem->gram->be;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ERROR);
	double sum;
	fp_status status;
	FP_TRY(multiply(near));
	FP_TRY(be->ops->near_sum(be, near->D, near->G, near->R, &sum));
	sum += near->problem->constant;
	*out = sum < 0.0 ? 0.0 : sum; /* as fp_problem_error() */
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

/* On a device a number for the host costs a wait: a few steps too many cost less. Nothing depends on the last. */
static bool looks(const fp_settings *settings, int64_t k)
{
	enum { LOOK_EVERY = 10 };
	return k % LOOK_EVERY == LOOK_EVERY - 1 && k + 1 < settings->iterations;
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
						  .D = near->D};
	fp_status status = FP_OK;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return FP_OK;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	if (!literal)
		FP_TRY(fp_near_get(near, work)); /* P = Y to begin with */
	for (int64_t k = 0; k < settings->iterations; k++) {
		double change = INFINITY;
		fp_matrix G = k == 0 ? product : (fp_matrix){0};
		if (fp_matrix_is_absent(G)) {
			FP_TRY(multiply(near));
			G = near->G;
		}
		rule.momentum = (float)fp_fista_momentum(&t);
		/* the literal rule goes without P, but for the step before one that measures the change of it */
		rule.P = !literal || looks(settings, k) || looks(settings, k + 1) ? work : (fp_matrix){0};
		FP_TRY(be->ops->fista_step_near(be, &rule, G, looks(settings, k) ? &change : NULL));
		++*steps;
		if (sqrt(change) < settings->step_tolerance)
			break;
	}
	if (!literal) /* the result is P, not Y */
		FP_TRY(fp_near_set(near, work));
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}
