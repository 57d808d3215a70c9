/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista.c: FISTA (Beck and Teboulle 2009; section 3.2 of the paper) for
 *
 *     min ½‖VX* − T‖²_F + λ Σ|V|
 *
 * in steps
 *
 *     P₊ = soft(Y − (YA − C)/L, λ/L)      with soft(z, θ) = sign(z)·max(|z| − θ, 0)
 *     t₊ = (1 + √(1 + 4t²))/2
 *     Y  = P₊ + (t − 1)/t₊ · (P₊ − P)
 *
 * The paper prints P₊ − Y in the last line and returns Y: momentum "literal".
 */
#include "base/clock.h"
#include "solver/steps.h"

#include <math.h>

enum { CHECK_EVERY = 10 };

/* The gradient restart test of O'Donoghue and Candès: *out ← ⟨Y − P₊, P₊ − P⟩ > 0. */
static fp_status goes_uphill(fp_backend *be, fp_matrix Y, fp_matrix P, fp_matrix Pnew, fp_matrix work, bool *out)
{
	double a;
	double b;
	fp_status status;
	FP_TRY(be->memory->copy(be, work, Y));
	FP_TRY(be->linear->axpby(be, -1.0F, Pnew, 1.0F, work));
	FP_TRY(be->linear->dot(be, work, Pnew, &a));
	FP_TRY(be->linear->dot(be, work, P, &b));
	*out = a - b > 0;
cleanup:
	return status;
}

double fp_fista_momentum(double *t)
{
	double next = 0.5 * (1.0 + sqrt(1.0 + 4.0 * *t * *t)), momentum = (*t - 1.0) / next;
	*t = next;
	return momentum;
}

fp_status fp_fista(const fp_problem *problem, const fp_settings *settings, double lambda, double L, fp_matrix P,
				   int64_t *steps)
{
	fp_backend *be = problem->gram->be;
	fp_momentum rule = fp_is(settings->momentum, "literal") ? FP_MOMENTUM_LITERAL : FP_MOMENTUM_STANDARD;
	fp_matrix Y = {0};
	fp_matrix G = {0};
	fp_matrix oldY = {0};
	fp_matrix oldP = {0};
	fp_status status = FP_OK;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return FP_OK;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	FP_PRODUCTS_FOR(be, FP_USE_ITERATION);
	FP_TRY(fp_matrix_new(be, &Y, P.rows, P.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &G, P.rows, P.cols, FP_F32));
	if (settings->restart) {
		FP_TRY(fp_matrix_new(be, &oldY, P.rows, P.cols, FP_F32));
		FP_TRY(fp_matrix_new(be, &oldP, P.rows, P.cols, FP_F32));
	}
	FP_TRY(be->memory->copy(be, Y, P));

	double t = 1;
	for (int64_t k = 0; k < settings->iterations; k++) {
		double change = INFINITY;
		/* reading the change back makes the host wait for the device, which costs more than a few extra steps */
		bool check = !be->asynchronous || k % CHECK_EVERY == CHECK_EVERY - 1;
		if (settings->restart) {
			FP_TRY(be->memory->copy(be, oldY, Y));
			FP_TRY(be->memory->copy(be, oldP, P));
		}
		FP_TRY(fp_problem_gradient(problem, Y, G));
		FP_TRY(be->pruning->fista_step(be, rule, (float)(1.0 / L), (float)(lambda / L), (float)fp_fista_momentum(&t), G,
									   Y, P, check ? &change : NULL));
		++*steps;
		if (settings->restart) {
			bool uphill;
			FP_TRY(goes_uphill(be, oldY, oldP, P, G, &uphill));
			if (uphill) {
				t = 1;
				FP_TRY(be->memory->copy(be, Y, P));
			}
		}
		if (sqrt(change) < settings->step_tolerance)
			break;
	}
	if (rule == FP_MOMENTUM_LITERAL)
		FP_TRY(be->memory->copy(be, P, Y));
cleanup:
	fp_stage_enter(be->ctx, stage);
	fp_matrix_free(be, &Y);
	fp_matrix_free(be, &G);
	fp_matrix_free(be, &oldY);
	fp_matrix_free(be, &oldP);
	return status;
}
