/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scaling.c: the problem in columns of unit norm.
 *
 *     S = diag(A + δI)^-½      A' = S(A + δI)S      W' = WS⁻¹      C' = (C + δW)S      R' = RS      V = V'S
 * λ_max falls from that of the largest outlier channel to a small number, and |V'| is |V|·‖x‖: Wanda's score, inside
 * the convex model. δ pulls towards the dense weights; since C + δW − W(A + δI) = C − WA, R does not change.
 *
 * Where the columns are to stay as they are, S is one number: one over the root of the mean diagonal for the support
 * search, whose ρ needs a scale, and else 1.
 */
#include "base/memory.h"
#include "solver/problem.h"

#include <math.h>

static const double SMALLEST_SHARE =
	1e-8; /* of the mean diagonal: an input that never fires is treated as this small */

/* A' ← S(A + δI)S, given S as a 1 × n matrix and δ likewise */
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
	gram->scaled->unit = kind == FP_SCALING_COLUMNS;
	scaled = (fp_matrix){0}; /* belongs to gram->scaled now */
cleanup:
	fp_free(diagonal);
	fp_free(inverse);
	fp_matrix_free(be, &delta);
	fp_matrix_free(be, &scaled);
	return status;
}
