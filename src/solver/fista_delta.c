/* SPDX-License-Identifier: Apache-2.0 */
#include "solver/fista_delta.h"
#include "solver/fista_batch.h"

#include "base/clock.h"

#include <math.h>

bool fp_delta_serves(const fp_backend *be, const fp_settings *settings)
{
	return fp_backend_can(be, FP_CAN_STEP_DELTA) && be->precision == FP_PRECISION_BF16 && !settings->restart;
}

fp_status fp_delta_new(fp_delta *out, const fp_problem *problem, const fp_settings *settings)
{
	fp_backend *be = problem->gram->be;
	fp_matrix W = problem->W;
	fp_status status = FP_OK;
	*out =
		(fp_delta){.problem = problem, .W = fp_matrix_is_absent(problem->held) ? W : problem->held, .negligible = -1};
	if (!fp_delta_serves(be, settings) || problem->rows_weighted) /* its sums know no rows */
		return FP_OK;
	FP_TRY(fp_gram_narrow(problem->gram, &out->A));
	FP_TRY(fp_matrix_new(be, &out->D, 2 * W.rows, W.cols, FP_BF16));
	FP_TRY(fp_matrix_new(be, &out->rounded, 2 * W.rows, W.cols, FP_BF16));
	FP_TRY(fp_matrix_new(be, &out->G, W.rows, W.cols, FP_BF16));
	if (!fp_matrix_is_absent(problem->R)) {
		FP_TRY(fp_matrix_new(be, &out->R, W.rows, W.cols, FP_BF16));
		FP_TRY(be->memory->copy(be, out->R, problem->R));
	}
	out->used = true;
cleanup:
	if (status != FP_OK)
		fp_delta_free(out);
	return status;
}

void fp_delta_free(fp_delta *delta)
{
	if (!delta->problem)
		return;
	fp_backend *be = delta->problem->gram->be;
	fp_matrix_free(be, &delta->D);
	fp_matrix_free(be, &delta->rounded);
	fp_matrix_free(be, &delta->best);
	fp_matrix_free(be, &delta->R);
	fp_matrix_free(be, &delta->E);
	fp_matrix_free(be, &delta->G);
	*delta = (fp_delta){0};
}

fp_status fp_delta_set(fp_delta *delta, fp_matrix V)
{
	fp_backend *be = delta->problem->gram->be;
	return be->delta->split(be, V, delta->W, delta->rounded);
}

fp_status fp_delta_get(const fp_delta *delta, fp_matrix V)
{
	fp_backend *be = delta->problem->gram->be;
	return be->delta->join(be, delta->W, delta->best, V);
}

/* delta->rounded as m × n floats: two 16-bit halves are as large as a float. */
static fp_matrix work_of(const fp_delta *delta)
{
	fp_matrix work = delta->rounded;
	work.rows /= 2;
	work.dtype = FP_F32;
	return work;
}

/* Swaps two matrices; b is allocated if it is absent. */
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

fp_status fp_delta_keep(fp_delta *delta, fp_matrix *product)
{
	fp_backend *be = delta->problem->gram->be;
	fp_status status = exchange(be, &delta->rounded, &delta->best);
	return status == FP_OK ? exchange(be, &delta->G, product) : status;
}

bool fp_delta_rounds_apart(const fp_delta *delta)
{
	const fp_pattern *pattern = &delta->problem->pattern;
	return pattern->group > 0 && pattern->group <= FP_DELTA_GROUP;
}

fp_status fp_delta_round(fp_delta *delta, fp_matrix mask)
{
	fp_backend *be = delta->problem->gram->be;
	fp_matrix work = work_of(delta);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ROUNDING);
	fp_status status;
	if (fp_delta_rounds_apart(delta)) {
		status = be->delta->round(be, &delta->problem->pattern, delta->W, delta->D, delta->rounded);
	} else {
		FP_TRY(be->delta->join(be, delta->W, delta->D, work));
		FP_TRY(fp_round(delta->problem, work, mask));
		FP_TRY(be->delta->split(be, work, delta->W, delta->D));
		FP_TRY(exchange(be, &delta->D, &delta->rounded));
	}
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

fp_status fp_delta_multiply(fp_delta *delta, fp_matrix D)
{
	fp_backend *be = delta->problem->gram->be;
	fp_matrix high = fp_matrix_rows(D, 0, delta->G.rows);
	return be->linear->gemm(be, 1.0F, high, FP_PLAIN, delta->A, FP_TRANSPOSED, 0.0F, delta->G);
}

fp_status fp_delta_error(fp_delta *delta, fp_matrix D, double *out)
{
	fp_backend *be = delta->problem->gram->be;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ERROR);
	double sum;
	fp_status status;
	FP_TRY(fp_delta_multiply(delta, D));
	FP_TRY(be->delta->sum(be, D, delta->G, delta->R, &sum));
	sum += delta->problem->constant;
	*out = sum < 0.0 ? 0.0 : sum; /* as fp_problem_error() */
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

/* True if step k measures the change. Reading it back makes the host wait for the device, which costs more than a few
 * extra steps. The last step needs no check. */
static bool checks_change(const fp_delta *delta, const fp_settings *settings, int64_t k)
{
	enum { CHECK_EVERY = 10 };
	return !delta->skip_checks && k % CHECK_EVERY == CHECK_EVERY - 1 && k + 1 < settings->iterations;
}

/* One step by `rule`, from rule->from if that is present, else from rule->D. */
static fp_status plain_step(fp_delta *delta, fp_delta_step *rule, double momentum, fp_matrix G, double *change,
							double *bound)
{
	fp_backend *be = delta->problem->gram->be;
	rule->momentum = (float)momentum;
	fp_status status = be->delta->step(be, rule, G, change, bound);
	rule->from = (fp_matrix){0};
	return status;
}

/* S, and E = RQ, of `count` steps */
static fp_status make_batch(fp_delta *delta, int64_t count)
{
	fp_gram *gram = delta->problem->gram;
	fp_matrix R = delta->R, Q;
	bool drifts = !fp_matrix_is_absent(R);
	fp_status status;
	FP_TRY(fp_gram_batched_steps(gram, count, FP_BF16, &delta->batched, drifts ? &Q : NULL));
	if (drifts) {
		FP_TRY(fp_matrix_new(gram->be, &delta->E, R.rows, R.cols, FP_BF16));
		FP_TRY(gram->be->linear->gemm(gram->be, 1.0F, R, FP_PLAIN, Q, FP_TRANSPOSED, 0.0F, delta->E));
	}
cleanup:
	return status;
}

/*
 * *out ← true if all steps but the last can be taken in one product (fista_batched_steps.c): their shrinkage is
 * negligible. If memory is short, a Gram matrix much larger than the operator is not batched. If true, delta->batched and
 * delta->E are set.
 */
static fp_status can_batch(fp_delta *delta, const fp_settings *settings, double lambda, double L, bool *out)
{
	enum { FEWEST = 4 };
	fp_gram *gram = delta->problem->gram;
	fp_backend *be = gram->be;
	fp_matrix W = delta->problem->W;
	int64_t count = settings->iterations - 1;
	fp_status status = FP_OK;
	*out = false;
	if (!fp_is(settings->momentum, "literal") || count < FEWEST)
		return FP_OK;
	if (gram->batched_count != count && be->frugal && W.cols > 2 * W.rows)
		return FP_OK;
	if (delta->negligible < 0) {
		double squares;
		FP_TRY(be->linear->dot(be, W, W, &squares));
		delta->negligible = fp_negligible_shrinkage(squares, fp_matrix_size(W));
	}
	if (!(lambda / L * (double)count <= delta->negligible))
		return FP_OK;
	if (fp_matrix_is_absent(delta->batched))
		FP_TRY(make_batch(delta, count));
	*out = true;
cleanup:
	return status;
}

/* D ← best(I − S) + E: the first `count` steps; *t advances by as many. */
static fp_status take_batched_steps(fp_delta *delta, const fp_delta_step *rule, int64_t count, double *t)
{
	fp_backend *be = delta->problem->gram->be;
	fp_matrix high = fp_matrix_rows(delta->best, 0, delta->G.rows);
	fp_delta_step at_once = *rule;
	at_once.step = 1;
	at_once.threshold = at_once.momentum = 0;
	at_once.R = delta->E;
	fp_status status;
	for (int64_t k = 0; k < count; k++)
		(void)fp_fista_momentum(t);
	FP_TRY(be->linear->gemm(be, 1.0F, high, FP_PLAIN, delta->batched, FP_TRANSPOSED, 0.0F, delta->G));
	FP_TRY(be->delta->step(be, &at_once, delta->G, NULL, NULL));
cleanup:
	return status;
}

fp_status fp_delta_fista(fp_delta *delta, const fp_settings *settings, double lambda, double L, fp_matrix product,
						 double *least, int64_t *steps)
{
	fp_backend *be = delta->problem->gram->be;
	fp_matrix work = work_of(delta);
	bool literal = fp_is(settings->momentum, "literal");
	bool batches;
	int64_t k = 0;
	double t = 1;
	fp_delta_step rule = {.rule = literal ? FP_MOMENTUM_LITERAL : FP_MOMENTUM_STANDARD,
						  .step = (float)(1.0 / L),
						  .threshold = (float)(lambda / L),
						  .W = delta->W,
						  .R = delta->R,
						  .D = delta->D,
						  .from = delta->best};
	fp_status status = FP_OK;
	*least = -INFINITY;
	if (L <= 0) /* all inputs are zero: nothing to fit */
		return be->memory->copy(be, delta->D, delta->best);
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FISTA);
	FP_TRY(can_batch(delta, settings, lambda, L, &batches));
	if (batches) {
		k = settings->iterations - 1;
		FP_TRY(take_batched_steps(delta, &rule, k, &t));
		*steps += k;
		rule.from = (fp_matrix){0};
	}
	if (!literal) /* P = Y at the start */
		FP_TRY(be->delta->join(be, delta->W, delta->best, work));
	for (; k < settings->iterations; k++) {
		double change = INFINITY;
		double bound = -INFINITY;
		fp_matrix G = delta->G;
		if (k == 0)
			G = product;
		else
			FP_TRY(fp_delta_multiply(delta, delta->D));
		/* the literal rule needs P only to measure its change: in the checked step and in the one before */
		bool check = checks_change(delta, settings, k), last = literal && k + 1 == settings->iterations;
		rule.P = !literal || check || checks_change(delta, settings, k + 1) ? work : (fp_matrix){0};
		FP_TRY(plain_step(delta, &rule, fp_fista_momentum(&t), G, check ? &change : NULL, last ? &bound : NULL));
		++*steps;
		*least = bound + delta->problem->constant;
		if (isfinite(change))
			delta->skip_checks = fp_stays_far(change, settings);
		if (sqrt(change) < settings->step_tolerance)
			break;
	}
	if (!literal) /* the result is P, not Y */
		FP_TRY(be->delta->split(be, work, delta->W, delta->D));
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}
