/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista.c: FISTA for  min ½‖VX* − T‖²_F + λ Σ|V|   (Beck and Teboulle 2009; section 3.2 of the paper)
 *
 *     P₊ = soft(Y − (YA − C)/L, λ/L)        soft(z, θ) = sign(z)·max(|z| − θ, 0)
 *     t₊ = (1 + √(1 + 4t²))/2
 *     Y  = P₊ + (t − 1)/t₊ · (P₊ − P)       the paper prints (P₊ − Y) and returns Y: momentum "literal"
 */
#include "base/clock.h"
#include "solver/problem.h"

#include <math.h>

enum { LOOK_EVERY = 10 };

/* The gradient test of O'Donoghue and Candès: seen from Y, the step from P to P₊ points uphill. */
static fp_status goes_uphill(fp_backend *be, fp_matrix Y, fp_matrix P, fp_matrix Pnew, fp_matrix work, bool *out)
{
	double a;
	double b;
	fp_status status;
	FP_TRY(be->ops->copy(be, work, Y));
	FP_TRY(be->ops->axpby(be, -1.0F, Pnew, 1.0F, work));
	FP_TRY(be->ops->dot(be, work, Pnew, &a));
	FP_TRY(be->ops->dot(be, work, P, &b));
	*out = a - b > 0;
cleanup:
	return status;
}

/* On a device that multiplies bf16 much faster: the gradient as (Y − W)A − R, where only the small difference is
 * rounded. D, A and the product G (all BF16) serve all steps of one λ. G's rounding is of the size of D's: on ten
 * operators of a small model it moved the error of the search's result by less than 0.001%. */
typedef struct near_space {
	bool used;
	fp_matrix D, A, G;
	fp_matrix first; /* borrowed: the first step's product, where it is at hand */
} near_space;

static fp_status near_new(near_space *space, const fp_problem *problem, const fp_settings *settings, fp_matrix Y,
						  fp_matrix work)
{
	fp_backend *be = problem->gram->be;
	fp_matrix A = problem->gram->A;
	fp_status status = FP_OK;
	space->used = be->ops->fista_step_near && be->precision == FP_PRECISION_BF16 && !settings->restart;
	if (!space->used)
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &space->D, Y.rows, Y.cols, FP_BF16));
	FP_TRY(fp_matrix_new(be, &space->A, A.rows, A.cols, FP_BF16));
	FP_TRY(fp_matrix_new(be, &space->G, Y.rows, Y.cols, FP_BF16));
	FP_TRY(be->ops->copy(be, space->A, A));
	if (!fp_matrix_is_absent(space->first)) /* then the first step makes D */
		goto cleanup;
	FP_TRY(be->ops->copy(be, work, Y));
	FP_TRY(be->ops->axpby(be, -1.0F, problem->W, 1.0F, work));
	FP_TRY(be->ops->copy(be, space->D, work));
cleanup:
	return status;
}

/* One step of all rows, by either way. */
static fp_status take_step(const fp_problem *problem, near_space *near, fp_fista_near rule, fp_matrix G, fp_matrix Y,
						   fp_matrix P, double *change)
{
	fp_backend *be = problem->gram->be;
	fp_status status;
	if (near->used) {
		rule.R = problem->R;
		rule.W = problem->W;
		rule.D = near->D;
		fp_matrix product = near->first;
		near->first = (fp_matrix){0};
		if (fp_matrix_is_absent(product)) {
			product = near->G;
			FP_TRY(be->ops->gemm(be, 1.0F, near->D, FP_PLAIN, near->A, FP_TRANSPOSED, 0.0F, product));
		}
		FP_TRY(be->ops->fista_step_near(be, &rule, product, Y, P, change));
	} else {
		FP_TRY(fp_problem_gradient(problem, Y, G));
		FP_TRY(be->ops->fista_step(be, rule.rule, rule.step, rule.threshold, rule.momentum, G, Y, P, change));
	}
cleanup:
	return status;
}

fp_status fp_fista(const fp_problem *problem, const fp_settings *settings, double lambda, double L, fp_matrix P,
				   int64_t *steps)
{
	return fp_fista_from(problem, settings, lambda, L, (fp_matrix){0}, P, steps);
}

fp_status fp_fista_from(const fp_problem *problem, const fp_settings *settings, double lambda, double L,
						fp_matrix product, fp_matrix P, int64_t *steps)
{
	fp_backend *be = problem->gram->be;
	fp_momentum rule = fp_is(settings->momentum, "literal") ? FP_MOMENTUM_LITERAL : FP_MOMENTUM_STANDARD;
	fp_matrix Y = {0};
	fp_matrix G = {0};
	fp_matrix oldY = {0};
	fp_matrix oldP = {0};
	near_space near = {.first = product};
	fp_status status = FP_OK;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return FP_OK;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	fp_use use = fp_backend_use(be, FP_USE_ITERATION);
	FP_TRY(fp_matrix_new(be, &Y, P.rows, P.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &G, P.rows, P.cols, FP_F32));
	if (settings->restart) {
		FP_TRY(fp_matrix_new(be, &oldY, P.rows, P.cols, FP_F32));
		FP_TRY(fp_matrix_new(be, &oldP, P.rows, P.cols, FP_F32));
	}
	FP_TRY(be->ops->copy(be, Y, P));
	FP_TRY(near_new(&near, problem, settings, Y, G));

	double t = 1;
	for (int64_t k = 0; k < settings->iterations; k++) {
		double next = 0.5 * (1.0 + sqrt(1.0 + 4.0 * t * t));
		double change = INFINITY;
		/* on a device the number costs a wait: a few steps too many cost less */
		bool look = !be->asynchronous || k % LOOK_EVERY == LOOK_EVERY - 1;
		bool look_next = (k + 1) % LOOK_EVERY == LOOK_EVERY - 1;
		if (settings->restart) {
			FP_TRY(be->ops->copy(be, oldY, Y));
			FP_TRY(be->ops->copy(be, oldP, P));
		}
		FP_TRY(take_step(problem, &near,
						 (fp_fista_near){.rule = rule,
										 .step = (float)(1.0 / L),
										 .threshold = (float)(lambda / L),
										 .momentum = (float)((t - 1.0) / next),
										 .skip_P = rule == FP_MOMENTUM_LITERAL && !look_next},
						 G, Y, P, look ? &change : NULL));
		++*steps;
		t = next;
		if (settings->restart) {
			bool uphill;
			FP_TRY(goes_uphill(be, oldY, oldP, P, G, &uphill));
			if (uphill) {
				t = 1;
				FP_TRY(be->ops->copy(be, Y, P));
			}
		}
		if (sqrt(change) < settings->step_tolerance)
			break;
	}
	if (rule == FP_MOMENTUM_LITERAL)
		FP_TRY(be->ops->copy(be, P, Y));
cleanup:
	fp_backend_use(be, use);
	fp_stage_enter(be->ctx, stage);
	fp_matrix_free(be, &near.D);
	fp_matrix_free(be, &near.A);
	fp_matrix_free(be, &near.G);
	fp_matrix_free(be, &Y);
	fp_matrix_free(be, &G);
	fp_matrix_free(be, &oldY);
	fp_matrix_free(be, &oldP);
	return status;
}
