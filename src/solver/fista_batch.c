/* SPDX-License-Identifier: Apache-2.0 */
#include "solver/fista_batch.h"

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

void fp_batch_free(fp_batch *batch)
{
	if (batch->be)
		fp_matrix_free(batch->be, &batch->E);
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
	if (!batch->be) {
		FP_TRY(be->linear->dot(be, W, W, &squares));
		batch->negligible = fp_negligible_shrinkage(squares, fp_matrix_size(W));
		batch->be = be;
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
	return !fp_matrix_is_absent(batch->E);
}

fp_status fp_batch_record(fp_batch *batch, fp_matrix Y)
{
	fp_status status = FP_OK;
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
	FP_TRY(be->memory->copy(be, work, V));
	FP_TRY(be->linear->axpby(be, -1.0F, problem->W, 1.0F, work));
	FP_TRY(be->linear->gemm(be, sign, work, FP_PLAIN, batch->S, FP_TRANSPOSED, 1.0F, out));
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
	FP_TRY(be->linear->axpby(be, -1.0F, start, 1.0F, batch->E));
	FP_TRY(add_steps(batch, problem, 1.0F, start, work, batch->E));
cleanup:
	return status;
}

fp_status fp_batch_take(const fp_batch *batch, const fp_problem *problem, fp_matrix work, fp_matrix Y)
{
	fp_status status;
	FP_TRY(add_steps(batch, problem, -1.0F, Y, work, Y));
	FP_TRY(batch->be->linear->axpby(batch->be, 1.0F, batch->E, 1.0F, Y));
cleanup:
	return status;
}
