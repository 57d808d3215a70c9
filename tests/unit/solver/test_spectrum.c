/* SPDX-License-Identifier: Apache-2.0 */
/* The bound of λ_max is above it, and close, whatever the spectrum. */
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The largest eigenvalue by the backend's eigendecomposition. */
static double eigen_largest(solver_fixture *f)
{
	fp_matrix copy;
	fp_matrix values;
	assert_ok(f->ctx, fp_matrix_new(f->be, &copy, f->n, f->n, FP_F32));
	assert_ok(f->ctx, fp_matrix_new(f->be, &values, 1, f->n, FP_F32));
	assert_ok(f->ctx, f->be->memory->copy(f->be, copy, f->dA));
	assert_ok(f->ctx, f->be->linear->eigen(f->be, copy, values));
	double *all = fixture_doubles(f, values);
	double out = all[f->n - 1];
	free(all);
	fp_matrix_free(f->be, &copy);
	fp_matrix_free(f->be, &values);
	return out;
}

static void check(solver_fixture *f, const char *what)
{
	double got;
	double want = eigen_largest(f);
	assert_ok(f->ctx, fp_gram_largest(&f->gram, &got));
	if (!(got >= want * (1 - 1e-6) && got <= want * 1.001)) /* ssyevd itself is off by a few 1e-7 */
		fail_msg("%s: %.9g, but the largest eigenvalue is %.9g", what, got, want);
}

static void bounds_gram_matrices(void **unused)
{
	(void)unused;
	static const int64_t shapes[][2] = {{1, 5}, {2, 9}, {3, 1}, {40, 400}, {40, 12}, {200, 50}, {130, 1}, {257, 300}};
	for (int i = 0; i < 8; i++)
		for (uint64_t seed = 1; seed < 4; seed++) {
			solver_fixture f;
			make_fixture(&f, 1, shapes[i][0], shapes[i][1], 0, seed, "50%");
			check(&f, "random");
			free_fixture(&f);
		}
}

/* A = diag(values) */
static void make_diagonal(solver_fixture *f, int64_t n, const double *values)
{
	double *X = calloc((size_t)(n * n), sizeof *X);
	double *W = calloc((size_t)n, sizeof *W);
	for (int64_t i = 0; i < n; i++)
		X[i * n + i] = sqrt(values[i]);
	make_fixture_from(f, 1, n, n, W, X, X, "50%");
	free(X);
	free(W);
}

static void bounds_odd_spectra(void **unused)
{
	(void)unused;
	enum { N = 150 };
	double values[N];
	for (int kind = 0; kind < 5; kind++) {
		solver_fixture f;
		for (int i = 0; i < N; i++) {
			switch (kind) {
			case 0: /* all the same */
				values[i] = 3.5;
				break;
			case 1: /* one outlier */
				values[i] = i == 77 ? 1e6 : 1.0;
				break;
			case 2: /* clustered at the top */
				values[i] = 1.0 - 1e-3 * i / N;
				break;
			case 3: /* even */
				values[i] = i + 1;
				break;
			default: /* tiny numbers */
				values[i] = 1e-20 * (i + 1);
			}
		}
		make_diagonal(&f, N, values);
		check(&f, "diagonal");
		free_fixture(&f);
	}
}

static void of_zeros_is_zero(void **unused)
{
	(void)unused;
	double zeros[6] = {0};
	solver_fixture f;
	double got = 1;
	make_diagonal(&f, 6, zeros);
	assert_ok(f.ctx, fp_gram_largest(&f.gram, &got));
	assert_true(got == 0);
	free_fixture(&f);
}

static void is_computed_once(void **unused)
{
	(void)unused;
	solver_fixture f;
	double a;
	double b;
	make_fixture(&f, 1, 30, 60, 0, 8, "50%");
	assert_ok(f.ctx, fp_gram_largest(&f.gram, &a));
	int64_t before = f.ctx->allocations;
	assert_ok(f.ctx, fp_gram_largest(&f.gram, &b));
	assert_true(a == b);
	assert_int_equal(before, f.ctx->allocations);
	free_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bounds_gram_matrices),
		cmocka_unit_test(bounds_odd_spectra),
		cmocka_unit_test(of_zeros_is_zero),
		cmocka_unit_test(is_computed_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
