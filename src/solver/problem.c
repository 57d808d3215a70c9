/* SPDX-License-Identifier: Apache-2.0 */
#include "solver/problem.h"

#include "base/clock.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

fp_status fp_gram_new(fp_gram *out, fp_backend *be, fp_matrix A)
{
	memset(out, 0, sizeof *out);
	out->be = be;
	out->A = A;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &out->diagonal, 1, A.rows, FP_F32));
	FP_TRY(be->linear->diagonal(be, A, out->diagonal));
	FP_TRY(fp_mean(be, out->diagonal, &out->mean_diagonal));
	if (!isfinite(out->mean_diagonal))
		status = fp_fail(be->ctx, FP_ERROR_NUMERIC, "the Gram matrix holds NaN or infinity");
cleanup:
	if (status != FP_OK)
		fp_gram_free(out);
	return status;
}

void fp_gram_free(fp_gram *gram)
{
	if (!gram->be)
		return;
	fp_matrix_free(gram->be, &gram->diagonal);
	fp_matrix_free(gram->be, &gram->narrow);
	fp_matrix_free(gram->be, &gram->half);
	fp_matrix_free(gram->be, &gram->batched);
	fp_matrix_free(gram->be, &gram->batched_Q);
	fp_matrix_free(gram->be, &gram->factor);
	fp_matrix_free(gram->be, &gram->scale);
	fp_matrix_free(gram->be, &gram->inverse_scale);
	fp_gram_free_inverses(gram);
	if (gram->scaled) {
		fp_matrix_free(gram->be, &gram->scaled->A);
		fp_gram_free(gram->scaled);
		fp_free(gram->scaled);
	}
	memset(gram, 0, sizeof *gram);
}

/* *held ← A in a type of 16 bits, unless it is there. */
static fp_status hold_as(const fp_gram *gram, fp_dtype type, fp_matrix *held)
{
	fp_backend *be = gram->be;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(*held)) {
		FP_TRY(fp_matrix_new(be, held, gram->A.rows, gram->A.cols, type));
		FP_TRY(be->memory->copy(be, *held, gram->A));
	}
cleanup:
	return status;
}

fp_status fp_gram_narrow(fp_gram *gram, fp_matrix *out)
{
	fp_status status = hold_as(gram, FP_BF16, &gram->narrow);
	*out = gram->narrow;
	return status;
}

fp_status fp_gram_half(fp_gram *gram, fp_matrix *out)
{
	fp_status status = hold_as(gram, FP_F16, &gram->half);
	*out = gram->half;
	return status;
}

fp_status fp_problem_gradient(const fp_problem *problem, fp_matrix V, fp_matrix G)
{
	fp_backend *be = problem->gram->be;
	fp_status status = be->memory->copy(be, G, problem->C);
	return status == FP_OK ? be->linear->gemm(be, 1.0F, V, FP_PLAIN, problem->gram->A, FP_TRANSPOSED, -1.0F, G)
						   : status;
}

fp_status fp_problem_difference(const fp_problem *problem, fp_matrix V, fp_matrix D)
{
	fp_backend *be = problem->gram->be;
	if (fp_backend_can(be, FP_CAN_DIFFERENTIATE)) /* in one pass */
		return be->gradients->difference(be, 1.0F, V, problem->W, D, NULL);
	fp_status status = be->memory->copy(be, D, V);
	return status == FP_OK ? be->linear->axpby(be, -1.0F, problem->W, 1.0F, D) : status;
}

fp_status fp_problem_gradient_at(const fp_problem *problem, fp_matrix D, fp_matrix G)
{
	fp_backend *be = problem->gram->be;
	bool has_R = !fp_matrix_is_absent(problem->R);
	fp_status status = has_R ? be->memory->copy(be, G, problem->R) : FP_OK;
	return status == FP_OK
			   ? be->linear->gemm(be, 1.0F, D, FP_PLAIN, problem->gram->A, FP_TRANSPOSED, has_R ? -1.0F : 0.0F, G)
			   : status;
}

/* *out ← Σ X∘Y, without the weights of rows that are scaled by their importance */
static fp_status unweighted_dot(const fp_problem *problem, fp_matrix X, fp_matrix Y, double *out)
{
	fp_backend *be = problem->gram->be;
	fp_matrix inverse = problem->inverse_importance, rows = {0};
	fp_status status;
	if (!problem->rows_weighted)
		return be->linear->dot(be, X, Y, out);
	FP_TRY(fp_matrix_new(be, &rows, 1, X.rows, FP_F32));
	FP_TRY(be->linear->row_dot(be, X, Y, rows));
	FP_TRY(be->linear->scale_columns(be, inverse, rows, rows));
	FP_TRY(be->linear->dot(be, rows, inverse, out));
cleanup:
	fp_matrix_free(be, &rows);
	return status;
}

fp_status fp_problem_error(const fp_problem *problem, fp_matrix V, fp_matrix work[2], double *out)
{
	return fp_problem_error_for(problem, FP_USE_REFINEMENT, V, work, out);
}

fp_status fp_problem_error_for(const fp_problem *problem, fp_use use, fp_matrix V, fp_matrix work[2], double *out)
{
	fp_stage stage = fp_stage_enter(problem->gram->be->ctx, FP_STAGE_ERROR);
	fp_status status = fp_problem_difference(problem, V, work[0]);
	if (status == FP_OK)
		status = fp_problem_error_at(problem, use, work[0], work[1], out);
	fp_stage_enter(problem->gram->be->ctx, stage);
	return status;
}

fp_status fp_problem_error_at(const fp_problem *problem, fp_use use, fp_matrix D, fp_matrix DA, double *out)
{
	fp_backend *be = problem->gram->be;
	double quadratic;
	double linear = 0;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ERROR);
	FP_PRODUCTS_FOR(be, use);
	fp_status status;
	FP_TRY(be->linear->gemm(be, 1.0F, D, FP_PLAIN, problem->gram->A, FP_TRANSPOSED, 0.0F, DA));
	FP_TRY(unweighted_dot(problem, D, DA, &quadratic));
	if (!fp_matrix_is_absent(problem->R))
		FP_TRY(unweighted_dot(problem, D, problem->R, &linear));
	double square = quadratic - 2.0 * linear + problem->constant;
	*out = square < 0.0 ? 0.0 : square; /* not fmax(), which would turn NaN into a perfect fit */
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

fp_status fp_round(const fp_problem *problem, fp_matrix V, fp_matrix mask)
{
	fp_backend *be = problem->gram->be;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_ROUNDING);
	fp_status status = fp_pattern_prunes(&problem->pattern) ? be->pruning->mask_smallest(be, V, &problem->pattern, mask)
															: be->pruning->mask_nonzero(be, problem->W, mask);
	if (status == FP_OK)
		status = be->pruning->apply_mask(be, mask, V);
	fp_stage_enter(be->ctx, stage);
	return status;
}
