/* SPDX-License-Identifier: Apache-2.0 */
#include "solver/steps.h"

#include <math.h>

bool fp_stays_far(double change, const fp_settings *settings)
{
	const double times = 1e3; /* the tolerance */
	return sqrt(change) > times * settings->step_tolerance;
}

bool fp_batch_serves(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	enum { FEWEST = 4, WIDEST = 8, WIDEST_IF_FRUGAL = 2 }; /* inputs for each output: S takes n³, a step mn² */
	return fp_is(settings->momentum, "literal") && !settings->restart && settings->iterations > FEWEST &&
		   size->inputs * size->inputs <= (size->frugal || be->frugal ? WIDEST_IF_FRUGAL : WIDEST) * size->entries;
}

bool fp_fista_rounds(const fp_backend *be)
{
	return be->precision == FP_PRECISION_BF16 && fp_backend_can(be, FP_CAN_ROUND);
}

void fp_batch_free(fp_batch *batch)
{
	fp_fista_space *space = &batch->space;
	fp_matrix *all[] = {&batch->E, &space->Y, &space->G, &space->oldY, &space->oldP, &space->D};
	for (size_t i = 0; batch->be && i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(batch->be, all[i]);
	*batch = (fp_batch){0};
}

fp_status fp_batch_allows(fp_batch *batch, const fp_problem *problem, const fp_settings *settings, double lambda,
						  double L, bool *out)
{
	fp_backend *be = problem->gram->be;
	fp_matrix W = problem->W;
	fp_solve_size size = {.inputs = W.cols, .entries = fp_matrix_size(W)};
	double squares;
	fp_status status = FP_OK;
	*out = false;
	if (batch->converges || !fp_batch_serves(be, settings, &size))
		return FP_OK;
	if (batch->negligible <= 0) {
		FP_TRY(be->linear->dot(be, W, W, &squares));
		batch->negligible = fp_negligible_shrinkage(squares, fp_matrix_size(W));
	}
	*out = lambda / L * (double)(settings->iterations - 1) <= batch->negligible;
cleanup:
	return status;
}

double fp_negligible_shrinkage(double squares, int64_t entries)
{
	return 1e-6 * sqrt(squares / (double)(entries > 0 ? entries : 1));
}

bool fp_batch_is_ready(const fp_batch *batch)
{
	return !fp_matrix_is_absent(batch->S);
}

fp_status fp_batch_record(fp_batch *batch, fp_matrix Y)
{
	fp_status status = FP_OK;
	if (fp_fista_rounds(batch->be))
		return FP_OK;
	FP_TRY(fp_matrix_new(batch->be, &batch->E, Y.rows, Y.cols, FP_F32));
	FP_TRY(batch->be->memory->copy(batch->be, batch->E, Y));
cleanup:
	return status;
}

/* out ← out ± (V − W)S; work ← V − W */
static fp_status add_steps(const fp_batch *batch, const fp_problem *problem, float sign, fp_matrix V, fp_matrix work,
						   fp_matrix out)
{
	fp_backend *be = batch->be;
	fp_status status;
	FP_TRY(fp_problem_difference(problem, V, work));
	FP_TRY(be->linear->gemm(be, sign, work, FP_PLAIN, batch->S, FP_TRANSPOSED, 1.0F, out));
cleanup:
	return status;
}

/* E ← the result of `count` steps from D = 0, unless that is 0. */
static fp_status steps_from_dense(fp_batch *batch, const fp_problem *problem, int64_t count)
{
	fp_backend *be = batch->be;
	fp_matrix G = batch->space.G, P = batch->space.D, W = problem->W;
	float step = (float)(1.0 / problem->gram->largest);
	double t = 1;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(problem->R))
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &batch->E, W.rows, W.cols, FP_F32));
	FP_TRY(be->memory->fill(be, batch->E, 0.0F));
	FP_TRY(be->memory->fill(be, P, 0.0F));
	for (int64_t k = 0; k < count; k++) {
		FP_TRY(fp_problem_gradient_at(problem, batch->E, G));
		FP_TRY(be->pruning->fista_step(be, FP_MOMENTUM_LITERAL, step, 0.0F, (float)fp_fista_momentum(&t), G, batch->E,
									   P, NULL));
	}
cleanup:
	return status;
}

fp_status fp_batch_finish(fp_batch *batch, const fp_problem *problem, const fp_settings *settings, fp_matrix start,
						  double change, fp_matrix work)
{
	fp_backend *be = batch->be;
	fp_status status = FP_OK;
	if (!fp_stays_far(change, settings)) {
		batch->converges = true;
		fp_matrix_free(be, &batch->E);
		return FP_OK;
	}
	FP_TRY(fp_gram_batched_steps(problem->gram, settings->iterations - 1, FP_F32, &batch->S));
	if (fp_fista_rounds(be))
		return steps_from_dense(batch, problem, settings->iterations - 1);
	FP_TRY(be->linear->axpby(be, -1.0F, start, 1.0F, batch->E));
	FP_TRY(add_steps(batch, problem, 1.0F, start, work, batch->E));
cleanup:
	return status;
}

fp_status fp_batch_take(const fp_batch *batch, const fp_problem *problem, fp_matrix work, fp_matrix Y)
{
	fp_status status;
	FP_TRY(add_steps(batch, problem, -1.0F, Y, work, Y));
	if (!fp_matrix_is_absent(batch->E))
		FP_TRY(batch->be->linear->axpby(batch->be, 1.0F, batch->E, 1.0F, Y));
cleanup:
	return status;
}
