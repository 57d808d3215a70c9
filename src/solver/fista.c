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

/* Work space, each m × n; the last two only with restarts. */
typedef struct fista_space {
	fp_matrix Y, G, oldY, oldP;
} fista_space;

static fp_status space_new(fista_space *space, fp_backend *be, const fp_settings *settings, fp_matrix P)
{
	fp_status status;
	FP_TRY(fp_matrix_new(be, &space->Y, P.rows, P.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->G, P.rows, P.cols, FP_F32));
	if (settings->restart) {
		FP_TRY(fp_matrix_new(be, &space->oldY, P.rows, P.cols, FP_F32));
		FP_TRY(fp_matrix_new(be, &space->oldP, P.rows, P.cols, FP_F32));
	}
cleanup:
	return status;
}

static void space_free(fista_space *space, fp_backend *be)
{
	fp_matrix_free(be, &space->Y);
	fp_matrix_free(be, &space->G);
	fp_matrix_free(be, &space->oldY);
	fp_matrix_free(be, &space->oldP);
}

double fp_fista_momentum(double *t)
{
	double next = 0.5 * (1.0 + sqrt(1.0 + 4.0 * *t * *t)), momentum = (*t - 1.0) / next;
	*t = next;
	return momentum;
}

/* The steps from number `first` on, from Y, which P is equal to. */
static fp_status take_steps(const fp_problem *problem, const fp_settings *settings, double lambda, double L,
							int64_t first, fp_batch *record, fista_space *space, fp_matrix P, double *change,
							int64_t *steps)
{
	fp_backend *be = problem->gram->be;
	fp_momentum rule = fp_is(settings->momentum, "literal") ? FP_MOMENTUM_LITERAL : FP_MOMENTUM_STANDARD;
	fp_matrix Y = space->Y, G = space->G;
	double t = 1;
	fp_status status = FP_OK;
	for (int64_t k = 0; k < first; k++)
		(void)fp_fista_momentum(&t);
	for (int64_t k = first; k < settings->iterations; k++) {
		/* reading the change back makes the host wait for the device, which costs more than a few extra steps */
		bool check = !be->asynchronous || k % CHECK_EVERY == CHECK_EVERY - 1;
		*change = INFINITY;
		if (settings->restart) {
			FP_TRY(be->memory->copy(be, space->oldY, Y));
			FP_TRY(be->memory->copy(be, space->oldP, P));
		}
		if (record && k + 1 == settings->iterations)
			FP_TRY(fp_batch_record(record, Y));
		FP_TRY(fp_problem_gradient(problem, Y, G));
		FP_TRY(be->pruning->fista_step(be, rule, (float)(1.0 / L), (float)(lambda / L), (float)fp_fista_momentum(&t), G,
									   Y, P, check ? change : NULL));
		++*steps;
		if (settings->restart) {
			bool uphill;
			FP_TRY(goes_uphill(be, space->oldY, space->oldP, P, G, &uphill));
			if (uphill) {
				t = 1;
				FP_TRY(be->memory->copy(be, Y, P));
			}
		}
		if (sqrt(*change) < settings->step_tolerance)
			break;
	}
	if (rule == FP_MOMENTUM_LITERAL)
		FP_TRY(be->memory->copy(be, P, Y));
cleanup:
	return status;
}

fp_status fp_fista(const fp_problem *problem, const fp_settings *settings, double lambda, double L, fp_batch *batch,
				   fp_matrix start, fp_matrix P, int64_t *steps)
{
	fp_backend *be = problem->gram->be;
	fista_space space = {0};
	bool batches = false;
	double change = INFINITY;
	int64_t first = 0;
	fp_status status;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return be->memory->copy(be, P, start);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	FP_PRODUCTS_FOR(be, FP_USE_ITERATION);
	FP_TRY(space_new(&space, be, settings, P));
	FP_TRY(be->memory->copy(be, space.Y, start));
	if (batch)
		FP_TRY(fp_batch_allows(batch, problem, settings, lambda, L, &batches));
	bool records = batches && !fp_batch_is_ready(batch);
	if (batches && !records) {
		FP_TRY(fp_batch_take(batch, problem, space.G, space.Y));
		first = settings->iterations - 1;
		*steps += first;
	}
	FP_TRY(be->memory->copy(be, P, space.Y));
	FP_TRY(take_steps(problem, settings, lambda, L, first, records ? batch : NULL, &space, P, &change, steps));
	if (records)
		FP_TRY(fp_batch_finish(batch, problem, settings, start, change, space.G));
cleanup:
	fp_stage_enter(be->ctx, stage);
	space_free(&space, be);
	return status;
}
