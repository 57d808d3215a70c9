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

/* Allocates what is not there yet. */
static fp_status space_new(fp_fista_space *space, fp_backend *be, const fp_settings *settings, bool differs,
						   fp_matrix P)
{
	fp_matrix *all[] = {&space->Y, &space->G, &space->oldY, &space->oldP, &space->D};
	bool wanted[] = {true, true, settings->restart, settings->restart, differs};
	fp_status status = FP_OK;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (wanted[i] && fp_matrix_is_absent(*all[i]))
			FP_TRY(fp_matrix_new(be, all[i], P.rows, P.cols, FP_F32));
cleanup:
	return status;
}

double fp_fista_momentum(double *t)
{
	double next = 0.5 * (1.0 + sqrt(1.0 + 4.0 * *t * *t)), momentum = (*t - 1.0) / next;
	*t = next;
	return momentum;
}

/* G ← the gradient at Y; if products round, D ← Y − W */
static fp_status gradient_at(const fp_problem *problem, const fp_fista_space *space)
{
	fp_status status;
	if (!fp_fista_rounds(problem->gram->be))
		return fp_problem_gradient(problem, space->Y, space->G);
	FP_TRY(fp_problem_difference(problem, space->Y, space->D));
	FP_TRY(fp_problem_gradient_at(problem, space->D, space->G));
cleanup:
	return status;
}

/*
 * A lower bound of the squared error after a step from D to D₊ (differences from W), by the tangent at D:
 *
 *     ⟨D₊A, D₊⟩ − 2⟨D₊, R⟩ + e₀ ≥ 2⟨D₊, G⟩ − ⟨DA, D⟩ + e₀        with G = DA − R
 *
 * *out ← ⟨DA, D⟩ − e₀ = ⟨D, G⟩ + ⟨D, R⟩ − e₀, the part before the step. D ← Y − W.
 */
static fp_status begin_bound(const fp_problem *problem, const fp_fista_space *space, double *out)
{
	fp_backend *be = problem->gram->be;
	double linear = 0;
	fp_status status = FP_OK;
	if (!fp_fista_rounds(be))
		FP_TRY(fp_problem_difference(problem, space->Y, space->D));
	FP_TRY(be->linear->dot(be, space->D, space->G, out));
	if (!fp_matrix_is_absent(problem->R))
		FP_TRY(be->linear->dot(be, space->D, problem->R, &linear));
	*out += linear - problem->constant;
cleanup:
	return status;
}

/* *least ← the bound, after the step; D ← Y − W. */
static fp_status end_bound(const fp_problem *problem, const fp_fista_space *space, double before, double *least)
{
	fp_backend *be = problem->gram->be;
	double product;
	fp_status status;
	FP_TRY(fp_problem_difference(problem, space->Y, space->D));
	FP_TRY(be->linear->dot(be, space->D, space->G, &product));
	*least = 2 * product - before;
cleanup:
	return status;
}

/* The steps from number `first` on, from Y, which P is equal to. */
static fp_status take_steps(const fp_problem *problem, const fp_settings *settings, double lambda, double L,
							int64_t first, bool bounds, fp_batch *batch, fp_matrix P, double *change, int64_t *steps)
{
	fp_backend *be = problem->gram->be;
	fp_momentum rule = fp_is(settings->momentum, "literal") ? FP_MOMENTUM_LITERAL : FP_MOMENTUM_STANDARD;
	const fp_fista_space *space = &batch->space;
	fp_matrix Y = space->Y, G = space->G;
	double t = 1;
	double before = 0;
	fp_status status = FP_OK;
	for (int64_t k = 0; k < first; k++)
		(void)fp_fista_momentum(&t);
	for (int64_t k = first; k < settings->iterations; k++) {
		/* reading the change back makes the host wait for the device, which costs more than a few extra steps */
		bool check = !be->asynchronous || k % CHECK_EVERY == CHECK_EVERY - 1, last = k + 1 == settings->iterations;
		*change = INFINITY;
		if (settings->restart) {
			FP_TRY(be->memory->copy(be, space->oldY, Y));
			FP_TRY(be->memory->copy(be, space->oldP, P));
		}
		FP_TRY(gradient_at(problem, space));
		if (bounds && last)
			FP_TRY(begin_bound(problem, space, &before));
		FP_TRY(be->pruning->fista_step(be, rule, (float)(1.0 / L), (float)(lambda / L), (float)fp_fista_momentum(&t), G,
									   Y, P, check ? change : NULL));
		++*steps;
		if (bounds && last)
			FP_TRY(end_bound(problem, space, before, &batch->least));
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
cleanup:
	return status;
}

static void swap(fp_matrix *a, fp_matrix *b)
{
	fp_matrix other = *a;
	*a = *b;
	*b = other;
}

fp_status fp_fista(const fp_problem *problem, const fp_settings *settings, double lambda, double L, fp_batch *batch,
				   fp_matrix start, fp_matrix P, int64_t *steps)
{
	fp_backend *be = problem->gram->be;
	fp_batch own = {0}, *used = batch ? batch : &own;
	/* the tangent is that of the literal step's result, Y; rows that are weighted are measured without their weights */
	bool literal = fp_is(settings->momentum, "literal");
	bool bounds = batch && literal && !settings->restart && !problem->rows_weighted;
	bool batches = false, swapped = false;
	double change = INFINITY;
	int64_t first = 0;
	fp_status status;
	used->least = -INFINITY;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return be->memory->copy(be, P, start);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	FP_PRODUCTS_FOR(be, fp_fista_rounds(be) ? FP_USE_ACTIVATION : FP_USE_ITERATION);
	used->be = be;
	FP_TRY(space_new(&used->space, be, settings, bounds || fp_fista_rounds(be), P));
	swapped = literal; /* by the literal rule the result is Y, not P: that one is the caller's matrix */
	if (swapped)
		swap(&used->space.Y, &P);
	if (used->space.Y.buffer != start.buffer)
		FP_TRY(be->memory->copy(be, used->space.Y, start));
	if (batch)
		FP_TRY(fp_batch_allows(batch, problem, settings, lambda, L, &batches));
	bool ready = batch && fp_batch_is_ready(batch);
	if (batches && ready) {
		FP_TRY(fp_batch_take(batch, problem, used->space.G, used->space.Y));
		first = settings->iterations - 1;
		*steps += first;
	}
	/* the literal rule needs P for the change only, which does not matter after the last step */
	if (!literal || settings->restart || first + 1 < settings->iterations)
		FP_TRY(be->memory->copy(be, P, used->space.Y));
	FP_TRY(take_steps(problem, settings, lambda, L, first, bounds, used, P, &change, steps));
	if (batches && !ready)
		FP_TRY(fp_batch_finish(batch, problem, settings, change));
cleanup:
	fp_stage_enter(be->ctx, stage);
	if (swapped)
		swap(&used->space.Y, &P);
	if (!batch)
		fp_batch_free(&own);
	return status;
}
