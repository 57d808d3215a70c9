/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* XᵀX/p + I/10 of random X: symmetric, eigenvalues from 0.1 to about 6. */
static double *positive_matrix(contract *c, int64_t n)
{
	int64_t p = n + 3;
	double *x = new_doubles(p * n), *a = new_doubles(n * n);
	for (int64_t i = 0; i < p * n; i++)
		x[i] = (double)random_normal(&c->seed);
	for (int64_t i = 0; i < n; i++) {
		for (int64_t j = 0; j <= i; j++) {
			double sum = i == j ? 0.1 : 0;
			for (int64_t t = 0; t < p; t++)
				sum += x[t * n + i] * x[t * n + j] / (double)p;
			a[i * n + j] = a[j * n + i] = (double)(float)sum;
		}
	}
	free(x);
	return a;
}

/* inverse · A must be the identity, within n·ε times the condition number, which is below 100 here. */
static void expect_inverse(const double *inverse, const double *a, int64_t n)
{
	double bound = FLOAT_EPSILON * 100 * (double)(n + 10);
	for (int64_t i = 0; i < n; i++) {
		for (int64_t j = 0; j < n; j++) {
			double sum = 0;
			for (int64_t k = 0; k < n; k++)
				sum += inverse[i * n + k] * a[k * n + j];
			if (fabs(sum - (i == j)) > bound)
				fail_msg("inverse of %lld: entry (%lld, %lld) of the product is %g", (long long)n, (long long)i,
						 (long long)j, sum);
		}
	}
}

static void check_inverse(contract *c, int64_t n)
{
	double *values = positive_matrix(c, n);
	sample A = sample_from(c, n, n, values);
	int64_t refused = -1;
	assert_ok(c->ctx, c->be->linear->inverse(c->be, A.view, &refused));
	assert_int_equal(refused, 0);
	double *inverse = sample_read(c, &A);
	for (int64_t i = 0; i < n; i++) {
		for (int64_t j = 0; j < i; j++)
			assert_true(inverse[i * n + j] == inverse[j * n + i]);
	}
	expect_inverse(inverse, A.value, n);
	free(inverse);
	free(values);
	sample_free(c, &A);
}

static void check_inverse_factor(contract *c, int64_t n)
{
	double *values = positive_matrix(c, n);
	sample A = sample_from(c, n, n, values);
	int64_t refused = -1;
	assert_ok(c->ctx, c->be->linear->inverse_factor(c->be, A.view, &refused));
	assert_int_equal(refused, 0);
	double *u = sample_read(c, &A), *inverse = new_doubles(n * n);
	for (int64_t i = 0; i < n; i++) {
		assert_true(u[i * n + i] > 0);
		for (int64_t j = 0; j < i; j++)
			assert_true(u[i * n + j] == 0 && !signbit(u[i * n + j]));
	}
	for (int64_t k = 0; k < n; k++) {
		for (int64_t i = k; i < n; i++) {
			for (int64_t j = k; j < n; j++)
				inverse[i * n + j] += u[k * n + i] * u[k * n + j];
		}
	}
	expect_inverse(inverse, A.value, n);
	free(u);
	free(inverse);
	free(values);
	sample_free(c, &A);
}

static void test_inverse_factor(void **state)
{
	contract *c = *state;
	static const int64_t sizes[] = {0, 1, 2, 7, 33, 64, 150, 300};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		check_inverse_factor(c, sizes[i]);
		check_inverse(c, sizes[i]);
	}
}

static void test_inverse_factor_refuses(void **state)
{
	contract *c = *state;
	static const int64_t bad[] = {0, 1, 20, 39};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		int64_t n = 40, refused = -1;
		double *values = positive_matrix(c, n);
		values[bad[i] * n + bad[i]] = -1;
		sample A = sample_from(c, n, n, values);
		assert_ok(c->ctx, c->be->linear->inverse_factor(c->be, A.view, &refused));
		assert_int_equal(refused, bad[i] + 1); /* the leading minor that holds the bad entry */
		sample B = sample_from(c, n, n, values);
		refused = -1;
		assert_ok(c->ctx, c->be->linear->inverse(c->be, B.view, &refused));
		assert_int_equal(refused, bad[i] + 1);
		sample_free(c, &B);
		free(values);
		sample_free(c, &A);
	}
	int64_t refused = -1;
	sample zero = sample_filled(c, 5, 5, 0);
	assert_ok(c->ctx, c->be->linear->inverse_factor(c->be, zero.view, &refused));
	assert_int_equal(refused, 1);
	sample_free(c, &zero);
}

/* --- large and ill-conditioned ---------------------------------------------------------------------------------- */

enum { DIRECTIONS = 12 };

/* A unit diagonal plus 1/10, most of it in a few directions, as in the inputs of a layer: the condition
 * number is about 5n. */
static double *strongly_correlated(contract *c, int64_t n)
{
	double *u = new_doubles(n * DIRECTIONS), *a = new_doubles(n * n);
	for (int64_t i = 0; i < n; i++) {
		double length = 0;
		for (int64_t r = 0; r < DIRECTIONS; r++) {
			u[i * DIRECTIONS + r] = (double)random_normal(&c->seed) + (r == 0 ? 3 : 0);
			length += u[i * DIRECTIONS + r] * u[i * DIRECTIONS + r];
		}
		for (int64_t r = 0; r < DIRECTIONS; r++)
			u[i * DIRECTIONS + r] *= sqrt(0.99 / length);
	}
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j <= i; j++) {
			double sum = i == j ? 0.11 : 0;
			for (int64_t r = 0; r < DIRECTIONS; r++)
				sum += u[i * DIRECTIONS + r] * u[j * DIRECTIONS + r];
			a[i * n + j] = a[j * n + i] = (double)(float)sum;
		}
	free(u);
	return a;
}

/* out ← a·x */
static void multiply_vector(const double *a, const double *x, int64_t n, double *out)
{
	for (int64_t i = 0; i < n; i++) {
		out[i] = 0;
		for (int64_t k = 0; k < n; k++)
			out[i] += a[i * n + k] * x[k];
	}
}

/* inverse · (A·x) must be x within a multiple of ε times the condition number. The first x has hardly anything of the
 * strongest direction, where the errors are largest, the second one much. Cholesky in float stays below a third of both
 * bounds; products of operands with 16 bits do not meet them. */
static void expect_inverse_of_vectors(contract *c, const double *inverse, const double *a, int64_t n)
{
	static const double multiple[] = {0.25, 6};
	double *x = new_doubles(n), *y = new_doubles(n), *z = new_doubles(n);
	for (int mean = 0; mean < 2; mean++) {
		double off = 0, all = 0, bound = multiple[mean] * FLOAT_EPSILON * 5 * (double)n;
		for (int64_t i = 0; i < n; i++)
			x[i] = (double)random_normal(&c->seed) + mean;
		multiply_vector(a, x, n, y);
		multiply_vector(inverse, y, n, z);
		for (int64_t i = 0; i < n; i++) {
			off += (z[i] - x[i]) * (z[i] - x[i]);
			all += x[i] * x[i];
		}
		print_message("inverse of %lld: off by %.1e of at most %.1e\n", (long long)n, sqrt(off / all), bound);
		if (!(sqrt(off / all) < bound))
			fail_msg("inverse of %lld: off by %g, more than %g", (long long)n, sqrt(off / all), bound);
	}
	free(x);
	free(y);
	free(z);
}

/* Beyond the sizes that a backend may treat apart; not a multiple of anything. */
static void test_inverse_of_large_matrices(void **state)
{
	contract *c = *state;
	int64_t n = 2301, bad = 2000, refused = -1;
	double *values = strongly_correlated(c, n);
	sample A = sample_from(c, n, n, values);
	assert_ok(c->ctx, c->be->linear->inverse(c->be, A.view, &refused));
	assert_int_equal(refused, 0);
	double *inverse = sample_read(c, &A);
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < i; j++)
			assert_true(inverse[i * n + j] == inverse[j * n + i]);
	expect_inverse_of_vectors(c, inverse, values, n);
	free(inverse);
	sample_free(c, &A);
	values[bad * n + bad] = -1;
	sample B = sample_from(c, n, n, values);
	assert_ok(c->ctx, c->be->linear->inverse(c->be, B.view, &refused));
	assert_int_equal(refused, bad + 1);
	sample_free(c, &B);
	free(values);
}

static void check_eigen(contract *c, int64_t n, double *values)
{
	sample A = sample_from(c, n, n, values), w = sample_normal(c, 1, n);
	assert_ok(c->ctx, c->be->linear->eigen(c->be, A.view, w.view));
	double *q = sample_read(c, &A), *e = sample_read(c, &w), size = 0;
	for (int64_t i = 0; i < n; i++) {
		size = fmax(size, fabs(e[i]));
		assert_true(i == 0 || e[i] >= e[i - 1]);
	}
	/* backward stable: errors are a few ε times the largest eigenvalue and grow slowly with n */
	double bound = FLOAT_EPSILON * (20 + 2 * (double)n);
	for (int64_t i = 0; i < n; i++) {
		for (int64_t j = 0; j < n; j++) {
			double product = 0, back = 0;
			for (int64_t k = 0; k < n; k++) {
				product += q[k * n + i] * q[k * n + j];
				back += q[i * n + k] * e[k] * q[j * n + k];
			}
			if (fabs(product - (i == j)) > bound || fabs(back - A.value[i * n + j]) > bound * size)
				fail_msg("eigen of %lld: entry (%lld, %lld): QᵀQ is %g, QΛQᵀ %g and not %g", (long long)n, (long long)i,
						 (long long)j, product, back, A.value[i * n + j]);
		}
	}
	free(q);
	free(e);
	sample_free(c, &A);
	sample_free(c, &w);
}

static void test_eigen(void **state)
{
	contract *c = *state;
	static const int64_t sizes[] = {0, 1, 2, 7, 33, 64, 150, 300};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		double *values = positive_matrix(c, sizes[i]);
		check_eigen(c, sizes[i], values);
		memset(values, 0, (size_t)(sizes[i] * sizes[i]) * sizeof *values);
		for (int64_t k = 0; k < sizes[i]; k++)
			values[k * sizes[i] + k] = k % 2 ? 3 : -1; /* many equal eigenvalues */
		check_eigen(c, sizes[i], values);
		free(values);
	}
}

CONTRACT_TESTS(factor, cmocka_unit_test(test_inverse_factor), cmocka_unit_test(test_inverse_factor_refuses),
			   cmocka_unit_test(test_inverse_of_large_matrices), cmocka_unit_test(test_eigen));
