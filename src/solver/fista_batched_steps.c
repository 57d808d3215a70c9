/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista_batched_steps.c: k FISTA steps in one product, for a λ below the rounding error of the weights.
 *
 * Without shrinkage the step with momentum "literal" is linear. With D = Y − W and the gradient DA − R:
 *
 *     D₊ = D(I − cA) + cR
 *     c  = (1 + (t − 1)/t₊)/L
 *
 * The k values of c are the same in every round of a λ search, so k steps are
 *
 *     D ← D(I − S) + E
 *     I − S = (I − c₁A) ⋯ (I − cₖA)
 *
 * where S depends on the Gram matrix only, and E is the result of k steps from D = 0. S is the product of pairs of
 * factors,
 *
 *     I − (I − aA)(I − bA) = (a + b)A − abA²
 *
 * S itself is stored rather than I − S: in directions of small eigenvalues S is small, and adding I would round it away.
 */
#include "solver/steps.h"

/* C ← α ST + β C for symmetric S and T that commute, so that C is symmetric too: only the upper triangle is computed, in
 * panels of rows. */
static fp_status multiply_symmetric(fp_backend *be, float alpha, fp_matrix S, fp_matrix T, float beta, fp_matrix C)
{
	enum { WIDE = 8192 }; /* above this size eight panels are still large enough for fast products */
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

fp_status fp_gram_batched_steps(fp_gram *gram, int64_t steps, fp_dtype dtype, fp_matrix *out)
{
	fp_backend *be = gram->be;
	int64_t n = gram->A.rows;
	fp_matrix space[4] = {{0}, {0}, {0}, {0}};
	fp_matrix S;
	double L;
	FP_PRODUCTS_FOR(be, FP_USE_ITERATION); /* 11 bits are enough where S is rounded to 8 */
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(gram->batched) || gram->batched_count != steps || gram->batched.dtype != dtype) {
		FP_TRY(fp_gram_largest(gram, &L));
		if (L <= 0 || steps < 1)
			FP_TRY(fp_fail(be->ctx, FP_ERROR_INTERNAL, "no FISTA steps to batch"));
		for (int i = 0; i < 4; i++)
			FP_TRY(fp_matrix_new(be, &space[i], n, n, FP_F32));
		FP_TRY(multiply_up(gram, steps, space, &S));
		fp_matrix_free(be, &gram->batched);
		FP_TRY(fp_matrix_new(be, &gram->batched, n, n, dtype));
		FP_TRY(be->memory->copy(be, gram->batched, S));
		gram->batched_count = steps;
	}
	*out = gram->batched;
cleanup:
	for (int i = 0; i < 4; i++)
		fp_matrix_free(be, &space[i]);
	return status;
}
