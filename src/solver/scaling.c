/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scaling.c: the problem in columns of unit norm.
 *
 *     S  = diag(A + δI)^-½
 *     A' = S(A + δI)S
 *     W' = WS⁻¹
 *     C' = (C + δW)S
 *     R' = RS
 *     V  = V'S
 *
 * λ_max falls from that of the largest outlier channel to a small number, and |V'| = |V|·‖x‖ is Wanda's score within
 * the convex problem. δ pulls towards the dense weights. R needs no such term, since C + δW − W(A + δI) = C − WA.
 *
 * Without column scaling S is one number: one over the root of the mean diagonal for the support search, whose penalty ρ
 * needs a scale, otherwise 1.
 */
#include "base/memory.h"
#include "solver/steps.h"

#include <math.h>

static const double SMALLEST_SHARE = 1e-8; /* of the mean diagonal; for an input that is always zero */

/* A' ← S(A + δI)S; S and δ are 1 × n */
static fp_status scale_gram(fp_backend *be, fp_matrix A, fp_matrix delta, fp_matrix S, fp_matrix out)
{
	int64_t n = A.rows;
	fp_matrix half = {0};
	fp_matrix zero = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &half, n, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &zero, 1, n, FP_F32));
	FP_TRY(be->memory->fill(be, zero, 0.0F));
	FP_TRY(be->memory->copy(be, half, A));
	FP_TRY(be->linear->add_diagonal(be, half, delta));
	FP_TRY(be->linear->scale_columns(be, S, half, half));
	FP_TRY(be->memory->fill(be, out, 0.0F));
	FP_TRY(be->linear->row_axpby(be, S, half, zero, out));
cleanup:
	fp_matrix_free(be, &half);
	fp_matrix_free(be, &zero);
	return status;
}

fp_status fp_gram_scaled(fp_gram *gram, double ridge, fp_scaling kind)
{
	fp_backend *be = gram->be;
	int64_t n = gram->A.rows;
	float *diagonal = NULL;
	float *inverse = NULL;
	fp_matrix delta = {0};
	fp_matrix scaled = {0};
	fp_status status = FP_OK;
	if (gram->scaled)
		return FP_OK;
	FP_TRY(FP_NEW(be->ctx, &diagonal, n));
	FP_TRY(FP_NEW(be->ctx, &inverse, n));
	FP_TRY(fp_matrix_new(be, &delta, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &gram->scale, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &gram->inverse_scale, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &scaled, n, n, FP_F32));

	FP_TRY(be->memory->download(be, diagonal, FP_F32, n, gram->diagonal));
	double added = ridge * gram->mean_diagonal;
	double smallest = gram->mean_diagonal > 0 ? SMALLEST_SHARE * gram->mean_diagonal : 1.0;
	for (int64_t i = 0; i < n; i++) {
		double square = kind == FP_SCALING_COLUMNS ? diagonal[i] : gram->mean_diagonal;
		double root = kind == FP_SCALING_NONE ? 1.0 : sqrt(fmax(square + added, smallest));
		diagonal[i] = (float)root;
		inverse[i] = (float)(1.0 / root);
	}
	FP_TRY(be->memory->upload(be, gram->scale, diagonal, FP_F32, n));
	FP_TRY(be->memory->upload(be, gram->inverse_scale, inverse, FP_F32, n));
	FP_TRY(be->memory->fill(be, delta, (float)added));
	FP_TRY(scale_gram(be, gram->A, delta, gram->inverse_scale, scaled));
	FP_TRY(FP_NEW(be->ctx, &gram->scaled, 1));
	FP_TRY(fp_gram_new(gram->scaled, be, scaled));
	gram->scaled->shared = gram->shared;
	gram->scaled->team = gram->team;
	gram->scaled->unit = kind == FP_SCALING_COLUMNS;
	scaled = (fp_matrix){0}; /* gram->scaled owns it now */
cleanup:
	fp_free(diagonal);
	fp_free(inverse);
	fp_matrix_free(be, &delta);
	fp_matrix_free(be, &scaled);
	return status;
}

/* X ← each row times its entry of s (1 × rows) */
static fp_status scale_rows(fp_backend *be, fp_matrix s, fp_matrix X)
{
	fp_matrix none = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &none, 1, s.cols, FP_F32));
	FP_TRY(be->memory->fill(be, none, 0.0F));
	FP_TRY(be->linear->row_axpby(be, none, X, s, X));
cleanup:
	fp_matrix_free(be, &none);
	return status;
}

/* Scales the rows by their importance. Least squares solves each row by itself, so the solution for a given support is
 * the same as before; what changes is how an unstructured pattern distributes its zeros over the rows. */
static fp_status weigh_rows(const fp_problem *problem, fp_matrix W, fp_matrix C, fp_matrix R, fp_matrix V)
{
	fp_backend *be = problem->gram->be;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(problem->importance))
		return FP_OK;
	FP_TRY(scale_rows(be, problem->importance, W));
	FP_TRY(scale_rows(be, problem->importance, C));
	FP_TRY(scale_rows(be, problem->importance, V));
	if (!fp_matrix_is_absent(R))
		FP_TRY(scale_rows(be, problem->importance, R));
cleanup:
	return status;
}

fp_status fp_solve_scaled(const fp_problem *problem, const fp_settings *settings, double ridge, fp_scaling kind,
						  fp_solve_function solve, fp_matrix V, fp_matrix mask, fp_solution *solution)
{
	fp_gram *gram = problem->gram;
	fp_backend *be = gram->be;
	fp_matrix W = {0};
	fp_matrix C = {0};
	fp_matrix R = {0};
	fp_status status;
	FP_TRY(fp_gram_scaled(gram, ridge, kind));
	FP_TRY(fp_matrix_new(be, &W, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &C, V.rows, V.cols, FP_F32));
	FP_TRY(be->memory->copy(be, C, problem->C));
	FP_TRY(be->linear->axpby(be, (float)(ridge * gram->mean_diagonal), problem->W, 1.0F, C));
	FP_TRY(be->linear->scale_columns(be, gram->inverse_scale, C, C));
	FP_TRY(be->linear->scale_columns(be, gram->scale, problem->W, W));
	if (!fp_matrix_is_absent(problem->R)) {
		FP_TRY(fp_matrix_new(be, &R, V.rows, V.cols, FP_F32));
		FP_TRY(be->linear->scale_columns(be, gram->inverse_scale, problem->R, R));
	}
	FP_TRY(be->linear->scale_columns(be, gram->scale, V, V));
	FP_TRY(weigh_rows(problem, W, C, R, V));
	fp_problem scaled = *problem;
	scaled.gram = gram->scaled;
	scaled.W = W;
	scaled.C = C;
	scaled.R = R;
	scaled.held = (fp_matrix){0};
	scaled.rows_weighted = !fp_matrix_is_absent(problem->importance);
	FP_TRY(solve(&scaled, settings, V, mask, solution));
	FP_TRY(be->linear->scale_columns(be, gram->inverse_scale, V, V));
	if (!fp_matrix_is_absent(problem->importance))
		FP_TRY(scale_rows(be, problem->inverse_importance, V));
	FP_TRY(be->pruning->apply_mask(be, mask, V));
cleanup:
	fp_matrix_free(be, &W);
	fp_matrix_free(be, &C);
	fp_matrix_free(be, &R);
	return status;
}

double fp_scaled_copies(const fp_solve_size *size)
{
	return (2 + size->has_R) * (double)size->entries; /* W', C' and R' */
}

fp_solve_memory fp_scaled_memory(const fp_solve_size *size)
{
	double square = (double)(size->inputs * size->inputs);
	return (fp_solve_memory){.kept = square,
							 .peak = fmax(fp_scaled_copies(size), square)}; /* A'; scale_gram()'s half */
}
