/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista_batched_steps.c: many FISTA steps in one product, where λ is too small to be felt.
 *
 * Without shrinkage the paper's step is linear: with D = Y − W and the gradient DA − R,
 *     D₊ = D(I − cA) + cR      c = (1 + (t − 1)/t₊)/L
 * and the c's are the same in every round of a search. So k of them are D(I − S) + E, where
 *     I − S = Π (I − cᵢA)
 * belongs to the Gram matrix, and E, what k steps make of D = 0, to the operator. S is multiplied up from pairs of
 * factors, I − (I − aA)(I − bA) = (a + b)A − abA², and always as the distance from I: what it does to directions of
 * small eigenvalues is small, and would drown in a rounding of I.
 */
#include "solver/steps.h"

/* C ← α ST + β C for symmetric S and T that commute, so that C is symmetric too: only what is right of the diagonal is
 * multiplied, in panels of rows. */
static fp_status multiply_symmetric(fp_backend *be, float alpha, fp_matrix S, fp_matrix T, float beta, fp_matrix C)
{
	enum { WIDE = 8192 }; /* from here on eight panels are still large */
	int64_t n = C.rows, panels = n > WIDE ? 8 : 4, panel = ((n + panels - 1) / panels + 15) / 16 * 16;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < n; i += panel) {
		int64_t rows = n - i < panel ? n - i : panel;
		fp_matrix part = fp_matrix_cols(fp_matrix_rows(C, i, rows), i, n - i);
		FP_TRY(be->linear->gemm(be, alpha, fp_matrix_rows(S, i, rows), FP_PLAIN, fp_matrix_rows(T, i, n - i),
								FP_TRANSPOSED, beta, part));
	}
	FP_TRY(be->linear->mirror(be, C));
cleanup:
	return status;
}

/* C ← I − (I − S)(I − T) */
static fp_status combine(fp_backend *be, fp_matrix S, fp_matrix T, fp_matrix C)
{
	fp_status status;
	FP_TRY(be->memory->copy(be, C, S));
	FP_TRY(be->linear->axpby(be, 1.0F, T, 1.0F, C));
	FP_TRY(multiply_symmetric(be, -1.0F, S, T, 1.0F, C));
cleanup:
	return status;
}

/* space: four n × n matrices; *out ← the one of them that holds S */
static fp_status multiply_up(const fp_gram *gram, int64_t steps, fp_matrix space[4], fp_matrix *out)
{
	fp_backend *be = gram->be;
	fp_matrix square = space[0], S = space[1], T = space[2], other = space[3];
	double t = 1;
	fp_status status;
	FP_TRY(multiply_symmetric(be, 1.0F, gram->A, gram->A, 0.0F, square));
	for (int64_t k = 0; k < steps; k += 2) {
		double a = (1 + fp_fista_momentum(&t)) / gram->largest;
		double b = k + 1 < steps ? (1 + fp_fista_momentum(&t)) / gram->largest : 0;
		fp_matrix pair = k == 0 ? S : T;
		FP_TRY(be->memory->copy(be, pair, gram->A));
		FP_TRY(be->linear->axpby(be, (float)(-a * b), square, (float)(a + b), pair));
		if (k == 0)
			continue;
		FP_TRY(combine(be, S, T, other));
		fp_matrix last = S;
		S = other;
		other = last;
	}
	*out = S;
cleanup:
	return status;
}

fp_status fp_gram_batched_steps(fp_gram *gram, int64_t steps, fp_matrix *out)
{
	fp_backend *be = gram->be;
	int64_t n = gram->A.rows;
	fp_matrix space[4] = {{0}, {0}, {0}, {0}};
	fp_matrix S;
	double L;
	FP_PRODUCTS_FOR(be, FP_USE_ITERATION); /* of 11 bits: S itself is rounded to 8 */
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(gram->batched) || gram->batched_count != steps) {
		FP_TRY(fp_gram_largest(gram, &L));
		if (L <= 0 || steps < 1)
			FP_TRY(fp_fail(be->ctx, FP_ERROR_INTERNAL, "there are no steps to be made in one"));
		for (int i = 0; i < 4; i++)
			FP_TRY(fp_matrix_new(be, &space[i], n, n, FP_F32));
		FP_TRY(multiply_up(gram, steps, space, &S));
		fp_matrix_free(be, &gram->batched);
		FP_TRY(fp_matrix_new(be, &gram->batched, n, n, FP_BF16));
		FP_TRY(be->memory->copy(be, gram->batched, S));
		gram->batched_count = steps;
	}
	*out = gram->batched;
cleanup:
	for (int i = 0; i < 4; i++)
		fp_matrix_free(be, &space[i]);
	return status;
}
