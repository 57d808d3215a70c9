/* SPDX-License-Identifier: Apache-2.0 */
/* Batched FISTA steps against the same steps one by one. */
#include "solver_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The result of the settings' steps without shrinkage from `start`, in float. */
static double *run_steps(solver_fixture *f, const double *start)
{
	int64_t steps = 0;
	double L;
	fixture_put(f, f->V, start);
	assert_ok(f->ctx, fp_gram_largest(&f->gram, &L));
	assert_ok(f->ctx, fp_fista(&f->problem, f->settings, 0.0, L, NULL, f->V, f->V, &steps));
	return fixture_doubles(f, f->V);
}

/* A matrix of BF16 as doubles. */
static double *wide_doubles(solver_fixture *f, fp_matrix narrow)
{
	fp_matrix wide;
	assert_int_equal(narrow.dtype, FP_BF16);
	assert_ok(f->ctx, fp_matrix_new(f->be, &wide, narrow.rows, narrow.cols, FP_F32));
	assert_ok(f->ctx, f->be->memory->copy(f->be, wide, narrow));
	double *out = fixture_doubles(f, wide);
	fp_matrix_free(f->be, &wide);
	return out;
}

/* sign·XM is near `want` (rows × n), compared with `size`. M has 8 bits. */
static void check_product(const char *what, double sign, const double *X, const double *M, const double *want,
						  int64_t rows, int64_t n, double size)
{
	double off = 0;
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < n; j++) {
			double got = 0;
			for (int64_t k = 0; k < n; k++)
				got += sign * X[i * n + k] * M[k * n + j];
			off += (got - want[i * n + j]) * (got - want[i * n + j]);
		}
	if (!(sqrt(off) <= ldexp(size, -8)))
		fail_msg("%s for %lld inputs: off by %g of %g", what, (long long)n, sqrt(off), size);
}

static double norm_of(const double *x, int64_t count)
{
	double sum = 0;
	for (int64_t i = 0; i < count; i++)
		sum += x[i] * x[i];
	return sqrt(sum);
}

/* The steps from W give RQ. The difference of two results is the difference of their starts times I − S: everything else
 * that the steps add does not depend on the start. */
static void check(int64_t m, int64_t n, int64_t count, uint64_t seed)
{
	solver_fixture f;
	fp_matrix S, Q, again;
	char setting[64];
	make_fixture(&f, m, n, 3 * n, 0.3, seed, "50%");
	fixture_set(&f, "momentum=literal");
	fixture_set(&f, "step_tolerance=0");
	snprintf(setting, sizeof setting, "iterations=%lld", (long long)count);
	fixture_set(&f, setting);
	double *start = calloc((size_t)(m * n), sizeof *start), *apart = calloc((size_t)(m * n), sizeof *apart),
		   *moved = calloc((size_t)(m * n), sizeof *moved);
	for (int64_t k = 0; k < m * n; k++)
		start[k] = k % 3 == 0 ? 0 : f.W[k];
	double *here = run_steps(&f, start), *dense = run_steps(&f, f.W), *R = fixture_doubles(&f, f.problem.R);
	assert_ok(f.ctx, fp_gram_batched_steps(&f.gram, count, FP_BF16, &S, NULL));
	double *s = wide_doubles(&f, S);
	for (int64_t k = 0; k < m * n; k++) {
		apart[k] = start[k] - f.W[k];
		moved[k] = here[k] - dense[k] - apart[k];
	}
	check_product("S", -1, apart, s, moved, m, n, norm_of(apart, m * n));
	assert_ok(f.ctx, fp_gram_batched_steps(&f.gram, count, FP_BF16, &again, NULL)); /* the one that was kept */
	assert_ptr_equal(again.buffer, S.buffer);
	assert_ok(f.ctx, fp_gram_batched_steps(&f.gram, count, FP_BF16, &S, &Q));
	double *q = wide_doubles(&f, Q);
	for (int64_t k = 0; k < m * n; k++)
		moved[k] = dense[k] - f.W[k];
	check_product("Q", 1, R, q, moved, m, n, norm_of(moved, m * n));
	double *all[] = {start, apart, moved, here, dense, R, s, q};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]);
	free_fixture(&f);
}

static void equal_single_steps(void **unused)
{
	(void)unused;
	static const int64_t counts[] = {1, 2, 3, 4, 7, 19, 40};
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
		for (uint64_t seed = 1; seed < 3; seed++) {
			check(6, 24, counts[i], seed);
			check(3, 65, counts[i], seed);
			check(2, 1, counts[i], seed);
		}
}

/* V ← the result of three rounds, each from the last one's, with λ and a batch or without. */
static double *run_rounds(solver_fixture *f, double lambda, fp_batch *batch, int64_t *steps)
{
	fp_matrix next;
	double L;
	*steps = 0;
	fixture_put(f, f->V, f->W);
	assert_ok(f->ctx, fp_gram_largest(&f->gram, &L));
	assert_ok(f->ctx, fp_matrix_new(f->be, &next, f->V.rows, f->V.cols, FP_F32));
	for (int round = 0; round < 3; round++) {
		assert_ok(f->ctx, fp_round(&f->problem, f->V, f->mask));
		assert_ok(f->ctx, fp_fista(&f->problem, f->settings, lambda, L, batch, f->V, next, steps));
		assert_ok(f->ctx, f->be->memory->copy(f->be, f->V, next));
	}
	fp_matrix_free(f->be, &next);
	return fixture_doubles(f, f->V);
}

/* The bound by the tangent holds, and space.D is the result less W. */
static void check_bound(solver_fixture *f, fp_batch *batch)
{
	fp_matrix work[2];
	double error;
	for (int i = 0; i < 2; i++)
		assert_ok(f->ctx, fp_matrix_new(f->be, &work[i], f->V.rows, f->V.cols, FP_F32));
	assert_ok(f->ctx, fp_problem_error(&f->problem, f->V, work, &error));
	if (!(batch->least <= error * (1 + 1e-4) && batch->least >= 0.5 * error))
		fail_msg("the bound of the error %g is %g", error, batch->least);
	double *want = fixture_doubles(f, work[0]), *got = fixture_doubles(f, batch->space.D);
	assert_true(distance_of(got, want, f->m * f->n) == 0);
	free(want);
	free(got);
	fp_matrix_free(f->be, &work[0]);
	fp_matrix_free(f->be, &work[1]);
}

/* Rounds in float with batched steps equal rounds with single ones, and are batched only where λ allows. */
static void check_rounds(double lambda, const char *tolerance, bool batched, uint64_t seed)
{
	solver_fixture f;
	fp_batch batch = {0};
	int64_t single, steps;
	make_fixture(&f, 6, 24, 72, 0.3, seed, "50%");
	fixture_set(&f, "momentum=literal");
	fixture_set(&f, "iterations=20");
	fixture_set(&f, tolerance);
	double *want = run_rounds(&f, lambda, NULL, &single), *got = run_rounds(&f, lambda, &batch, &steps);
	assert_int_equal(steps, single);
	assert_true(fp_batch_is_ready(&batch) == batched);
	if (batched)
		check_bound(&f, &batch);
	double off = 0, size = 0;
	for (int64_t k = 0; k < 6 * 24; k++) {
		off += (got[k] - want[k]) * (got[k] - want[k]);
		size += want[k] * want[k];
	}
	if (!(sqrt(off) <= 1e-5 * sqrt(size)))
		fail_msg("lambda %g: off by %g of %g", lambda, sqrt(off), sqrt(size));
	free(want);
	free(got);
	fp_batch_free(&batch);
	free_fixture(&f);
}

static void rounds_equal_rounds_of_single_steps(void **unused)
{
	(void)unused;
	for (uint64_t seed = 1; seed < 4; seed++) {
		check_rounds(0, "step_tolerance=0", true, seed);
		check_rounds(1e-7, "step_tolerance=0", true, seed);
		check_rounds(10, "step_tolerance=0", false, seed);  /* every shrinkage counts */
		check_rounds(0, "step_tolerance=0.1", false, seed); /* rounds end early */
	}
}

/* In bf16 the differences from the dense weights are rounded: the results are near those in float, compared with the
 * difference, with a target of its own (R) and without. */
static void bf16_rounds_differences_only(void **unused)
{
	(void)unused;
	for (int drifts = 0; drifts < 2; drifts++) {
		solver_fixture f;
		int64_t steps;
		make_fixture(&f, 160, 256, 900, drifts ? 0.3 : 0, 5, "50%");
		if (!fp_backend_can(f.be, FP_CAN_ROUND)) {
			free_fixture(&f);
			skip_because("this processor has no instructions for products in BF16");
		}
		if (!drifts)
			f.problem.R = (fp_matrix){0};
		fixture_set(&f, "momentum=literal");
		fixture_set(&f, "iterations=20");
		fixture_set(&f, "step_tolerance=0");
		double *results[3];
		for (int i = 0; i < 3; i++) { /* float; bf16 one by one and batched */
			fp_batch batch = {0};
			f.be->precision = i == 0 ? FP_PRECISION_FP32 : FP_PRECISION_BF16;
			results[i] = run_rounds(&f, 0, i == 2 ? &batch : NULL, &steps);
			if (i == 2)
				check_bound(&f, &batch);
			fp_batch_free(&batch);
		}
		double size = distance_of(results[0], f.W, f.m * f.n);
		for (int i = 1; i < 3; i++) {
			double off = distance_of(results[i], results[0], f.m * f.n);
			print_message("%s: off by %.2e of the difference from W\n", i == 1 ? "single" : "batched", off / size);
			assert_true(off > 0 && off < 0.02 * size);
		}
		for (int i = 0; i < 3; i++)
			free(results[i]);
		free_fixture(&f);
	}
}

/* If all inputs are zero, L = 0 and there is no step length. */
static void zero_inputs_are_an_error(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_matrix S;
	double W[8] = {1, 2, 3, 4, 5, 6, 7, 8}, X[12] = {0};
	make_fixture_from(&f, 2, 4, 3, W, X, X, "50%");
	assert_fails(f.ctx, FP_ERROR_INTERNAL, "no FISTA steps", fp_gram_batched_steps(&f.gram, 19, FP_BF16, &S, NULL));
	free_fixture(&f);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(equal_single_steps),
									   cmocka_unit_test(rounds_equal_rounds_of_single_steps),
									   cmocka_unit_test(zero_inputs_are_an_error)};
	const struct CMUnitTest bf16[] = {cmocka_unit_test(bf16_rounds_differences_only)};
	TEST_PART(bf16);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
