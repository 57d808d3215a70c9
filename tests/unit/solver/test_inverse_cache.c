/* SPDX-License-Identifier: Apache-2.0 */
/* The cached inverses: correct at every level, however they are computed, and kept if operators share them. */
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>

enum { LEVELS = 12 };

/* The largest entry of X(A + ρI) − I. */
static double residual(solver_fixture *f, fp_gram *gram, int64_t level, fp_matrix X)
{
	fp_matrix product, own;
	assert_ok(f->ctx, fp_matrix_new(f->be, &product, f->n, f->n, FP_F32));
	assert_ok(f->ctx, f->be->memory->copy(f->be, product, X));
	assert_ok(f->ctx, fp_matrix_widen(f->be, X, &own, &X));
	assert_ok(f->ctx, f->be->linear->gemm(f->be, 1, X, FP_PLAIN, gram->A, FP_PLAIN, (float)fp_penalty(level), product));
	double *all = fixture_doubles(f, product), worst = 0;
	for (int64_t i = 0; i < f->n * f->n; i++)
		worst = fmax(worst, fabs(all[i] - (i % (f->n + 1) == 0)));
	free(all);
	fp_matrix_free(f->be, &product);
	fp_matrix_free(f->be, &own);
	return worst;
}

static fp_linear_operations floats; /* of the CPU, whose products and combinations take floats only */

/* C ← α A op(B) + β C for A and B that may be F16 */
static fp_status widening_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							   float beta, fp_matrix C)
{
	fp_matrix a = {0}, b = {0};
	fp_status status;
	FP_TRY(fp_matrix_widen(be, A, &a, &A));
	FP_TRY(fp_matrix_widen(be, B, &b, &B));
	FP_TRY(floats.gemm(be, alpha, A, ta, B, tb, beta, C));
cleanup:
	fp_matrix_free(be, &a);
	fp_matrix_free(be, &b);
	return status;
}

/* Z ← α X + β Y for Z that may be F16 */
static fp_status narrowing_combine(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y, fp_matrix Z)
{
	fp_matrix wide = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &wide, Z.rows, Z.cols, FP_F32));
	FP_TRY(floats.combine(be, alpha, X, beta, Y, wide));
	FP_TRY(be->memory->copy(be, Z, wide));
cleanup:
	fp_matrix_free(be, &wide);
	return status;
}

/* Visits all levels twice, as two operators do. products: each inverse is computed from the level below, as on a device;
 * halves: of a device whose products take 16-bit operands. */
static void check(bool shared, bool products, bool halves, double bound)
{
	solver_fixture f;
	fp_linear_operations narrow;
	make_fixture(&f, 4, 60, 400, 0, 7, "50%");
	f.gram.shared = shared;
	assert_ok(f.ctx, fp_gram_scaled(&f.gram, 0.02, FP_SCALING_COLUMNS));
	fp_gram *gram = f.gram.scaled;
	assert_true(gram->shared == shared);
	f.be->asynchronous = products;
	if (halves) {
		f.be->capabilities |= FP_CAN_MULTIPLY_NARROW;
		f.be->precision = FP_PRECISION_BF16;
		floats = narrow = *f.be->linear;
		narrow.gemm = widening_gemm;
		narrow.combine = narrowing_combine;
		f.be->linear = &narrow;
	}
	fp_buffer *first[LEVELS];
	for (int pass = 0; pass < 2; pass++)
		for (int64_t k = 0; k < LEVELS; k++) {
			fp_matrix X;
			int64_t level = k;
			assert_ok(f.ctx, fp_gram_inverse(gram, &level, &X));
			assert_int_equal(level, k);
			assert_int_equal(X.dtype, halves ? FP_F16 : FP_F32);
			double off = residual(&f, gram, k, X);
			if (!(off < bound))
				fail_msg("level %d: off by %g", (int)k, off);
			if (pass == 0)
				first[k] = X.buffer;
			else if (shared)
				assert_ptr_equal(X.buffer, first[k]); /* not computed again */
		}
	f.be->asynchronous = false;
	free_fixture(&f);
}

static void inverts_at_every_penalty(void **unused)
{
	(void)unused;
	check(false, false, false, 1e-5);
	check(true, false, false, 1e-5);
}

static void raises_the_penalty_by_products(void **unused)
{
	(void)unused;
	check(false, true, false, 5e-4); /* twelve levels of 2e-5, and float rounding */
	check(true, true, false, 5e-4);
}

static void keeps_halves_for_products(void **unused)
{
	(void)unused;
	check(false, true, true, 1e-2); /* 11 bits of entries up to 10, times entries of A */
	check(true, true, true, 1e-2);
}

/* So many inputs that the symmetric product of raise_penalty() is computed in several strips. */
static void multiplies_in_strips(void **unused)
{
	(void)unused;
	solver_fixture f;
	make_fixture(&f, 2, 3000, 60, 0, 7, "50%");
	assert_ok(f.ctx, fp_gram_scaled(&f.gram, 0.02, FP_SCALING_COLUMNS));
	f.be->asynchronous = true;
	fp_matrix X;
	for (int64_t level = 0; level < 2; level++)
		assert_ok(f.ctx, fp_gram_inverse(f.gram.scaled, &level, &X));
	double off = residual(&f, f.gram.scaled, 1, X);
	if (!(off < 5e-4))
		fail_msg("off by %g", off);
	f.be->asynchronous = false;
	free_fixture(&f);
}

/* Fewer tokens than inputs and no ridge, scaled so that ρ is lost in float rounding: the level must go up. */
static void skips_levels_where_cholesky_fails(void **unused)
{
	(void)unused;
	solver_fixture f;
	make_fixture(&f, 2, 40, 5, 0, 3, "50%");
	fp_matrix X, scaled = {0};
	int64_t level = 0;
	assert_ok(f.ctx, fp_matrix_new(f.be, &scaled, f.n, f.n, FP_F32));
	assert_ok(f.ctx, f.be->memory->copy(f.be, scaled, f.dA));
	assert_ok(f.ctx, f.be->linear->axpby(f.be, 0, scaled, 1e8F, scaled));
	fp_gram gram;
	assert_ok(f.ctx, fp_gram_new(&gram, f.be, scaled));
	assert_ok(f.ctx, fp_gram_inverse(&gram, &level, &X));
	assert_true(level > 0 && level < FP_PENALTY_LEVELS);
	int64_t again = 0;
	fp_matrix Y;
	assert_ok(f.ctx, fp_gram_inverse(&gram, &again, &Y));
	assert_int_equal(again, level);
	fp_gram_free(&gram);
	fp_matrix_free(f.be, &scaled);
	free_fixture(&f);
}

/* Masks depend on the inverses, so another number of threads must give exactly the same ones. */
static void threads_change_nothing(void **unused)
{
	(void)unused;
	enum { INPUTS = 500 };
	double *inverse[2];
	for (int i = 0; i < 2; i++) {
		solver_fixture f;
		make_fixture(&f, 4, INPUTS, 2000, 0, 7, "50%");
		f.be->threads = i + 1;
		assert_ok(f.ctx, fp_gram_scaled(&f.gram, 0.02, FP_SCALING_COLUMNS));
		fp_matrix X;
		int64_t level = 0;
		assert_ok(f.ctx, fp_gram_inverse(f.gram.scaled, &level, &X));
		inverse[i] = fixture_doubles(&f, X);
		free_fixture(&f);
	}
	assert_memory_equal(inverse[0], inverse[1], INPUTS * INPUTS * sizeof **inverse);
	free(inverse[0]);
	free(inverse[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(inverts_at_every_penalty),          cmocka_unit_test(raises_the_penalty_by_products),
		cmocka_unit_test(keeps_halves_for_products),         cmocka_unit_test(multiplies_in_strips),
		cmocka_unit_test(skips_levels_where_cholesky_fails), cmocka_unit_test(threads_change_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
