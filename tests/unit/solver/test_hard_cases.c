/* SPDX-License-Identifier: Apache-2.0 */
/* Every method on degenerate problems: a correct answer or a clear error, never a crash and never NaN. */
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const recipes[][6] = {
	{"method=magnitude"},
	{"method=wanda"},
	{"method=sparsegpt"},
	{"method=admm"},
	{"method=fista", "search_steps=30"},
	{"method=fista", "iterations=20", "warm_start=wanda", "support_search=none"},
	{"method=fista", "preset=paper"},
	{"method=fista", "preset=paper", "warm_start=sparsegpt"},
	{"method=fista", "warm_start=dense", "iterations=20", "support_search=none"},
	{"method=fista", "scaling=1", "refit_steps=30", "iterations=20", "support_search=none"},
	{"method=fista", "scaling=1", "refit_steps=30", "support_search=admm", "search_steps=60", "ridge=0.01"},
	{"method=fista", "scaling=0", "refit_steps=30", "support_search=admm", "search_steps=60", "ridge=0"},
	{"method=fista", "refit_steps=30", "support_search=admm", "search_steps=60", "warm_start=sparsegpt",
	 "iterations=0"},
	{"method=fista", "iterations=0", "warm_start=dense", "support_search=admm", "search_steps=0", "refit_steps=5"},
	{"method=alps"},
};
enum { RECIPE_COUNT = sizeof recipes / sizeof recipes[0] };

static fp_status solve(solver_fixture *f, int recipe, fp_solution *solution)
{
	for (int i = 0; i < 6 && recipes[recipe][i]; i++)
		fixture_set(f, recipes[recipe][i]);
	assert_ok(f->ctx, fp_settings_resolve(f->settings, f->ctx, "llama"));
	return fp_solve(&f->problem, f->settings, f->V, solution);
}

typedef void (*spoil_function)(double *X, int64_t n, int64_t p);

static void spoil_nothing(double *X, int64_t n, int64_t p)
{
	(void)X;
	(void)n;
	(void)p;
}

static void some_dead(double *X, int64_t n, int64_t p)
{
	for (int64_t t = 0; t < p; t++)
		for (int64_t j = 0; j < n; j += 5)
			X[t * n + j] = 0;
}

static void a_dead_group(double *X, int64_t n, int64_t p) /* all inputs of one 2:4 group are zero */
{
	for (int64_t t = 0; t < p; t++)
		for (int64_t j = 4; j < 8 && j < n; j++)
			X[t * n + j] = 0;
}

static void all_dead(double *X, int64_t n, int64_t p)
{
	memset(X, 0, (size_t)(n * p) * sizeof *X);
}

static void constant(double *X, int64_t n, int64_t p)
{
	for (int64_t i = 0; i < n * p; i++)
		X[i] = 1;
}

static void one_outlier(double *X, int64_t n, int64_t p)
{
	for (int64_t t = 0; t < p; t++)
		X[t * n + n / 2] *= 1e4;
}

static void huge(double *X, int64_t n, int64_t p)
{
	for (int64_t i = 0; i < n * p; i++)
		X[i] *= 1e12;
}

static void tiny(double *X, int64_t n, int64_t p)
{
	for (int64_t i = 0; i < n * p; i++)
		X[i] *= 1e-12;
}

static const struct {
	const char *name;
	int64_t m, n, p;
	spoil_function spoil;
} cases[] = {
	{"plain", 6, 24, 80, spoil_nothing},
	{"fewer tokens than inputs", 6, 40, 7, spoil_nothing},
	{"one token", 6, 24, 1, spoil_nothing},
	{"one weight", 1, 1, 9, spoil_nothing},
	{"one row, odd length", 1, 13, 40, spoil_nothing},
	{"one column", 9, 1, 40, spoil_nothing},
	{"dead inputs", 6, 24, 80, some_dead},
	{"a dead group", 6, 24, 80, a_dead_group},
	{"no input at all", 6, 24, 80, all_dead},
	{"constant inputs", 6, 24, 80, constant},
	{"an outlier", 6, 24, 80, one_outlier},
	{"huge numbers", 6, 24, 80, huge},
	{"tiny numbers", 6, 24, 80, tiny},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static void make_case(solver_fixture *f, int i, const char *pattern)
{
	solver_fixture plain;
	make_fixture(&plain, cases[i].m, cases[i].n, cases[i].p, 0, 83, pattern);
	cases[i].spoil(plain.X, plain.n, plain.p);
	make_fixture_from(f, plain.m, plain.n, plain.p, plain.W, plain.X, plain.X, pattern);
	f->problem.gram = &f->gram;
	free_fixture(&plain);
}

/* Checks the share of zeros: of the matrix, or of each row for a method whose authors count by row. */
static int64_t fewest_zeros(const solver_fixture *f)
{
	double sparsity = f->problem.pattern.sparsity;
	if (strcmp(f->settings->method, "wanda") == 0)
		return f->m * (int64_t)floor(sparsity * (double)f->n);
	return (int64_t)floor(sparsity * (double)(f->m * f->n));
}

static void every_recipe_survives_every_case(void **unused)
{
	(void)unused;
	static const char *const patterns[] = {"50%", "2:4", "0%"};
	for (int i = 0; i < CASE_COUNT; i++)
		for (int r = 0; r < RECIPE_COUNT; r++)
			for (int p = 0; p < 3; p++) {
				solver_fixture f;
				fp_solution solution;
				make_case(&f, i, patterns[p]);
				fp_status status = solve(&f, r, &solution);
				if (status != FP_OK)
					fail_msg("%s, recipe %d, %s: %s", cases[i].name, r, patterns[p], fp_context_message(f.ctx));
				float *V = fixture_floats(&f, f.V);
				double direct = fixture_residual(&f, f.V);
				double output = sqrt(f.energy);
				for (int64_t j = 0; j < f.m * f.n; j++)
					if (!isfinite(V[j]))
						fail_msg("%s, recipe %d, %s: entry %d is %g", cases[i].name, r, patterns[p], (int)j,
								 (double)V[j]);
				if (f.problem.pattern.group > 0 ? verify_full_groups(V, f.m, f.n, 2, 4) > 0
												: verify_zeros(V, f.m * f.n) < fewest_zeros(&f))
					fail_msg("%s, recipe %d: the pattern %s does not hold", cases[i].name, r, patterns[p]);
				if (!(fabs(direct - solution.error) <= 1e-3 * direct + 1e-3 * output))
					fail_msg("%s, recipe %d, %s: error %g, directly %g", cases[i].name, r, patterns[p], solution.error,
							 direct);
				if (p == 2 && direct > 2e-3 * output)
					fail_msg("%s, recipe %d: nothing to prune, but an error of %g of %g", cases[i].name, r, direct,
							 output);
				free(V);
				free_fixture(&f);
			}
}

/* A Gram matrix with one very negative eigenvalue is invalid: the objective has no minimum. */
static void an_indefinite_gram_matrix_gives_finite_results_or_an_error(void **unused)
{
	(void)unused;
	for (int r = 0; r < RECIPE_COUNT; r++) {
		solver_fixture f;
		fp_solution solution;
		make_fixture(&f, 4, 16, 60, 0, 89, "50%");
		for (int64_t i = 0; i < f.n; i++)
			for (int64_t j = 0; j < f.n; j++) /* −μ·11ᵀ */
				f.A[i * f.n + j] -= 0.5 * f.gram.mean_diagonal;
		fixture_put(&f, f.dA, f.A);
		fp_gram_free(&f.gram);
		assert_ok(f.ctx, fp_gram_new(&f.gram, f.be, f.dA));
		fp_status status = solve(&f, r, &solution);
		if (status != FP_OK)
			assert_true(status == FP_ERROR_NUMERIC && strlen(fp_context_message(f.ctx)) > 10);
		float *V = fixture_floats(&f, f.V);
		for (int64_t j = 0; j < f.m * f.n && status == FP_OK; j++)
			assert_true(isfinite(V[j]));
		free(V);
		free_fixture(&f);
	}
}

/* If Cholesky fails, SparseGPT damps ten times as much and says so. */
static void damping_grows_if_cholesky_fails(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_solution solution;
	make_fixture(&f, 4, 16, 60, 0, 97, "50%");
	for (int64_t i = 0; i < f.n; i++)
		f.A[i * f.n + i] -= 0.3 * f.gram.mean_diagonal;
	fixture_put(&f, f.dA, f.A);
	fp_gram_free(&f.gram);
	assert_ok(f.ctx, fp_gram_new(&f.gram, f.be, f.dA));
	assert_ok(f.ctx, solve(&f, 2, &solution));
	assert_true(solution.damping > 0.05);
	free_fixture(&f);
	make_fixture(&f, 4, 16, 60, 0, 97, "50%");
	assert_ok(f.ctx, solve(&f, 2, &solution));
	assert_true(solution.damping == 0.01);
	free_fixture(&f);
}

/* The damping that was asked for is tried, however strong it is. */
static void strong_damping_is_tried(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_solution solution;
	make_fixture(&f, 4, 16, 60, 0, 97, "50%");
	fixture_set(&f, "damping=100");
	assert_ok(f.ctx, solve(&f, 2, &solution));
	assert_true(solution.damping == 100);
	free_fixture(&f);
}

static void too_long_groups_are_refused(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_solution solution;
	make_fixture(&f, 4, 16, 60, 0, 97, "512:1024");
	assert_ok(f.ctx, solve(&f, 2, &solution));
	fixture_pattern(&f, "512:1025");
	assert_fails(f.ctx, FP_ERROR_USAGE, "up to 1024 entries", solve(&f, 2, &solution));
	free_fixture(&f);
}

static void non_finite_input_is_refused(void **unused)
{
	(void)unused;
	static const double bad[] = {NAN, INFINITY, -INFINITY};
	for (int r = 0; r < RECIPE_COUNT; r++)
		for (int b = 0; b < 3; b++)
			for (int where = 0; where < 3; where++) {
				solver_fixture f;
				fp_solution solution;
				make_fixture(&f, 4, 16, 60, 0, 101, "50%");
				if (where == 0) {
					f.W[9] = bad[b];
					fixture_put(&f, f.dW, f.W);
				} else if (where == 1) { /* off the diagonal */
					f.A[1] = f.A[f.n] = bad[b];
					fixture_put(&f, f.dA, f.A);
				} else {
					f.A[f.n + 1] = bad[b];
					fixture_put(&f, f.dA, f.A);
				}
				fp_gram_free(&f.gram);
				fp_status status = fp_gram_new(&f.gram, f.be, f.dA);
				if (status == FP_OK)
					status = solve(&f, r, &solution);
				if (status != FP_ERROR_NUMERIC)
					fail_msg("recipe %d with %g at %d: %s", r, bad[b], where, fp_status_name(status));
				free_fixture(&f);
			}
}

/* Fails each allocation in turn: an error, no leak and no double free (under AddressSanitizer). */
static void every_allocation_may_fail(void **unused)
{
	(void)unused;
	for (int r = 0; r < RECIPE_COUNT; r++)
		for (int64_t n = 1;; n++) {
			solver_fixture f;
			fp_solution solution;
			make_fixture(&f, 3, 8, 20, 0.1, 103, "2:4");
			fixture_set(&f, "patience=1");
			f.ctx->fail_allocation_at = f.ctx->allocations + n;
			fp_status status = solve(&f, r, &solution);
			f.ctx->fail_allocation_at = 0;
			free_fixture(&f);
			if (status == FP_OK)
				break;
			assert_int_equal(status, FP_ERROR_MEMORY);
			assert_true(n < 3000);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_recipe_survives_every_case),
		cmocka_unit_test(an_indefinite_gram_matrix_gives_finite_results_or_an_error),
		cmocka_unit_test(damping_grows_if_cholesky_fails),
		cmocka_unit_test(strong_damping_is_tried),
		cmocka_unit_test(too_long_groups_are_refused),
		cmocka_unit_test(non_finite_input_is_refused),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
