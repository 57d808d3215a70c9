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

fp_status fp_batch_finish(fp_batch *batch, const fp_problem *problem, const fp_settings *settings, double change)
{
	fp_backend *be = batch->be;
	fp_matrix R = problem->R, Q;
	bool drifts = !fp_matrix_is_absent(R);
	fp_status status;
	if (!fp_stays_far(change, settings)) {
		batch->converges = true;
		return FP_OK;
	}
	FP_TRY(fp_gram_batched_steps(problem->gram, settings->iterations - 1, FP_F32, &batch->S, drifts ? &Q : NULL));
	if (drifts) {
		FP_TRY(fp_matrix_new(be, &batch->E, R.rows, R.cols, FP_F32));
		FP_TRY(be->linear->gemm(be, 1.0F, R, FP_PLAIN, Q, FP_TRANSPOSED, 0.0F, batch->E));
	}
cleanup:
	return status;
}

fp_status fp_batch_take(const fp_batch *batch, const fp_problem *problem, fp_matrix work, fp_matrix Y)
{
	fp_backend *be = batch->be;
	fp_status status;
	FP_TRY(fp_problem_difference(problem, Y, work));
	FP_TRY(be->linear->gemm(be, -1.0F, work, FP_PLAIN, batch->S, FP_TRANSPOSED, 1.0F, Y));
	if (!fp_matrix_is_absent(batch->E))
		FP_TRY(be->linear->axpby(be, 1.0F, batch->E, 1.0F, Y));
cleanup:
	return status;
}
