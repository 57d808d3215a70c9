/* SPDX-License-Identifier: Apache-2.0 */
#include "statistics/statistics.h"

#include <string.h>

static fp_status new_zero(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols)
{
	fp_status status = fp_matrix_new(be, out, rows, cols, FP_F32);
	return status == FP_OK ? be->ops->fill(be, *out, 0.0F) : status;
}

fp_status fp_statistics_new(fp_statistics *out, fp_backend *be, int64_t inputs, bool two_streams,
							int64_t residual_outputs, int64_t batch)
{
	memset(out, 0, sizeof *out);
	out->be = be;
	fp_status status;
	FP_TRY(new_zero(be, &out->A, inputs, inputs));
	if (two_streams) {
		FP_TRY(new_zero(be, &out->cross, inputs, inputs));
		FP_TRY(new_zero(be, &out->difference, inputs, inputs));
		FP_TRY(fp_matrix_new(be, &out->delta, batch, inputs, FP_F32));
	}
	if (residual_outputs > 0) {
		FP_TRY(new_zero(be, &out->residual, residual_outputs, inputs));
		FP_TRY(fp_matrix_new(be, &out->gap, batch, residual_outputs, FP_F32));
		if (two_streams)
			FP_TRY(new_zero(be, &out->repair, residual_outputs, inputs));
	}
cleanup:
	if (status != FP_OK)
		fp_statistics_free(out);
	return status;
}

void fp_statistics_free(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	if (!be)
		return;
	fp_matrix_free(be, &statistics->A);
	fp_matrix_free(be, &statistics->cross);
	fp_matrix_free(be, &statistics->difference);
	fp_matrix_free(be, &statistics->residual);
	fp_matrix_free(be, &statistics->repair);
	fp_matrix_free(be, &statistics->delta);
	fp_matrix_free(be, &statistics->gap);
	memset(statistics, 0, sizeof *statistics);
}

/* out ← a − b, over the first rows of a work space */
static fp_status subtract(fp_backend *be, fp_matrix *out, fp_matrix work, fp_matrix a, fp_matrix b)
{
	*out = fp_matrix_rows(work, 0, a.rows);
	fp_status status = be->ops->copy(be, *out, a);
	return status == FP_OK ? be->ops->axpby(be, -1.0F, b, 1.0F, *out) : status;
}

fp_status fp_statistics_fold(fp_statistics *statistics, fp_matrix X, fp_matrix Xstar)
{
	fp_backend *be = statistics->be;
	fp_status status;
	FP_TRY(be->ops->gram(be, Xstar, 1.0F, statistics->A));
	if (!fp_matrix_is_absent(statistics->cross)) {
		fp_matrix delta;
		FP_TRY(subtract(be, &delta, statistics->delta, X, Xstar));
		FP_TRY(be->ops->gemm(be, 1.0F, delta, FP_TRANSPOSED, Xstar, FP_PLAIN, 1.0F, statistics->cross));
		FP_TRY(be->ops->gram(be, delta, 1.0F, statistics->difference));
	}
	statistics->tokens += Xstar.rows;
cleanup:
	return status;
}

fp_status fp_statistics_fold_residual(fp_statistics *statistics, fp_matrix hidden, fp_matrix hidden_star,
									  fp_matrix Xstar)
{
	fp_backend *be = statistics->be;
	fp_matrix gap;
	double energy;
	fp_status status;
	FP_TRY(subtract(be, &gap, statistics->gap, hidden, hidden_star));
	FP_TRY(be->ops->gemm(be, 1.0F, gap, FP_TRANSPOSED, Xstar, FP_PLAIN, 1.0F, statistics->residual));
	if (!fp_matrix_is_absent(statistics->repair)) {
		fp_matrix delta = fp_matrix_rows(statistics->delta, 0, Xstar.rows); /* left there by fp_statistics_fold() */
		FP_TRY(be->ops->gemm(be, 1.0F, gap, FP_TRANSPOSED, delta, FP_PLAIN, 1.0F, statistics->repair));
	}
	FP_TRY(be->ops->dot(be, gap, gap, &energy));
	statistics->gap_energy += energy;
cleanup:
	return status;
}

fp_status fp_statistics_identity(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	fp_matrix ones = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &ones, 1, statistics->A.rows, FP_F32));
	FP_TRY(be->ops->fill(be, ones, 1.0F));
	FP_TRY(be->ops->add_diagonal(be, statistics->A, ones));
cleanup:
	fp_matrix_free(be, &ones);
	return status;
}

fp_status fp_statistics_finish(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	int finite;
	fp_status status;
	FP_TRY(be->ops->mirror(be, statistics->A));
	if (!fp_matrix_is_absent(statistics->difference))
		FP_TRY(be->ops->mirror(be, statistics->difference));
	FP_TRY(be->ops->finite(be, statistics->A, &finite));
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_NUMERIC,
						 "the inputs of these operators hold NaN or infinity on the calibration text");
cleanup:
	return status;
}
