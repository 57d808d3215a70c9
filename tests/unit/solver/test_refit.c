/* SPDX-License-Identifier: Apache-2.0 */
/* The refit against the normal equations; the support search; scaling, ridge and row importance. */
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double error_of(solver_fixture *f)
{
	fp_matrix work[2];
	double square;
	for (int i = 0; i < 2; i++)
		assert_ok(f->ctx, fp_matrix_new(f->be, &work[i], f->m, f->n, FP_F32));
	assert_ok(f->ctx, fp_problem_error(&f->problem, f->V, work, &square));
	for (int i = 0; i < 2; i++)
		fp_matrix_free(f->be, &work[i]);
	return sqrt(square);
}

static void solves_the_normal_equations(void **unused)
{
	(void)unused;
	static const char *const patterns[] = {"50%", "2:4", "90%", "0%"};
	for (int i = 0; i < 4; i++) {
		solver_fixture f;
		make_fixture(&f, 9, 32, 200, 0.5, 41, patterns[i]);
		assert_ok(f.ctx, fp_warm_start(&f.problem, "wanda", f.settings, f.V, f.mask));
		unsigned char *mask = fixture_bytes(&f, f.mask);
		double *want = malloc((size_t)(f.m * f.n) * sizeof *want);
		verify_least_squares(want, f.A, f.C, mask, f.m, f.n);
		assert_ok(f.ctx, fp_refit(&f.problem, 100, f.mask, f.V));
		float *got = fixture_floats(&f, f.V);
		for (int64_t j = 0; j < f.m * f.n; j++)
			if (!(fabs((double)got[j] - want[j]) < 2e-4) || (!mask[j] && (got[j] != 0 || signbit(got[j]))))
				fail_msg("%s: entry %lld is %g, not %g", patterns[i], (long long)j, (double)got[j], want[j]);
		free(mask);
		free(want);
		free(got);
		free_fixture(&f);
	}
}

/* No conjugate-gradient step raises the error, even if A is rank-deficient, however many there are. */
static void never_raises_the_error(void **unused)
{
	(void)unused;
	static const int64_t tokens[] = {300, 32, 9};
	for (int i = 0; i < 3; i++) {
		solver_fixture f;
		make_fixture(&f, 6, 32, tokens[i], 0.4, 43, "50%");
		assert_ok(f.ctx, fp_warm_start(&f.problem, "wanda", f.settings, f.V, f.mask));
		double start = error_of(&f);
		double before = start;
		for (int step = 0; step < 8; step++) {
			assert_ok(f.ctx, fp_refit(&f.problem, 1, f.mask, f.V));
			double now = error_of(&f);
			assert_true(now <= before + 1e-5 * start);
			before = now;
		}
		assert_ok(f.ctx, fp_refit(&f.problem, 2000, f.mask, f.V));
		double last = fixture_residual(&f, f.V);
		print_message("%d tokens: %g at the start, %g after 8 steps, %g after 2000\n", (int)tokens[i], start, before,
					  last);
		assert_true(last <= before + 1e-5 * start);
		free_fixture(&f);
	}
}

static void support_search_keeps_the_pattern_and_improves(void **unused)
{
	(void)unused;
	static const char *const patterns[] = {"50%", "2:4", "70%", "3:8", "0%"};
	for (int i = 0; i < 5; i++) {
		solver_fixture f;
		fp_solution solution;
		make_fixture(&f, 12, 40, 160, 0.2, 47 + (uint64_t)i, patterns[i]);
		fixture_set(&f, "iterations=0");
		fixture_set(&f, "refit_steps=40");
		assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
		double start = fixture_residual(&f, f.V);
		fixture_set(&f, "support_search=admm");
		fixture_set(&f, "search_steps=120");
		fixture_set(&f, "scaling=1");
		assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
		double found = fixture_residual(&f, f.V);
		float *V = fixture_floats(&f, f.V);
		print_message("%s: refit alone %g, with the search %g\n", patterns[i], start, found);
		assert_true(found <= start * (1 + 1e-5));
		assert_true(i == 4 || found < 0.98 * start); /* 0%: nothing to improve */
		assert_true(verify_pattern(V, f.m, f.n, &f.problem.pattern));
		assert_true(fabs(solution.error - found) <= 1e-4 * found + 1e-3);
		free(V);
		free_fixture(&f);
	}
}

static void scaling_gives_columns_of_unit_norm(void **unused)
{
	(void)unused;
	solver_fixture f;
	make_fixture(&f, 5, 24, 80, 0.2, 53, "50%");
	assert_ok(f.ctx, fp_gram_scaled(&f.gram, 0.01, FP_SCALING_COLUMNS));
	double *scaled = fixture_doubles(&f, f.gram.scaled->A);
	double *s = fixture_doubles(&f, f.gram.scale);
	double *inverse = fixture_doubles(&f, f.gram.inverse_scale);
	double mean = 0;
	for (int64_t i = 0; i < f.n; i++)
		mean += f.A[i * f.n + i] / (double)f.n;
	assert_true(fabs(mean - f.gram.mean_diagonal) < 1e-5 * mean);
	for (int64_t i = 0; i < f.n; i++) {
		assert_true(fabs(scaled[i * f.n + i] - 1) < 1e-5);
		assert_true(fabs(s[i] * inverse[i] - 1) < 1e-6);
		for (int64_t j = 0; j < f.n; j++) {
			double want = (f.A[i * f.n + j] + (i == j ? 0.01 * mean : 0)) / (s[i] * s[j]);
			assert_true(fabs(scaled[i * f.n + j] - want) < 1e-5);
		}
	}
	free(scaled);
	free(s);
	free(inverse);
	free_fixture(&f);
}

/* The ridge works with and without scaling, though both share code. */
static void ridge_pulls_towards_the_dense_weights(void **unused)
{
	(void)unused;
	static const char *const scalings[] = {"scaling=0", "scaling=1"};
	for (int i = 0; i < 2; i++) {
		solver_fixture f;
		fp_solution solution;
		make_fixture(&f, 9, 32, 200, 0.5, 47, "2:4");
		static const char *const all[] = {"warm_start=wanda", "iterations=0", "refit_steps=200", "ridge=0.3"};
		for (int k = 0; k < 4; k++)
			fixture_set(&f, all[k]);
		fixture_set(&f, scalings[i]);
		assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
		float *got = fixture_floats(&f, f.V);
		double *want = malloc((size_t)(f.m * f.n) * sizeof *want);
		unsigned char *mask = malloc((size_t)(f.m * f.n));
		double delta = 0;
		for (int64_t j = 0; j < f.n; j++)
			delta += 0.3 * f.A[j * f.n + j] / (double)f.n;
		for (int64_t j = 0; j < f.n; j++)
			f.A[j * f.n + j] += delta;
		for (int64_t j = 0; j < f.m * f.n; j++) {
			f.C[j] += delta * f.W[j];
			mask[j] = got[j] != 0;
		}
		verify_least_squares(want, f.A, f.C, mask, f.m, f.n);
		for (int64_t j = 0; j < f.m * f.n; j++)
			if (!(fabs((double)got[j] - want[j]) < 2e-4))
				fail_msg("%s: entry %lld is %g, not %g", scalings[i], (long long)j, (double)got[j], want[j]);
		free(mask);
		free(want);
		free(got);
		free_fixture(&f);
	}
}

/* With nothing to prune and one stream, the dense weights are the solution in any scale. */
static void scaling_round_trip_keeps_the_weights(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_solution solution;
	make_fixture(&f, 5, 24, 80, 0, 59, "0%");
	fixture_set(&f, "iterations=0");
	fixture_set(&f, "scaling=1");
	fixture_set(&f, "ridge=0.01");
	assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
	double *V = fixture_doubles(&f, f.V);
	for (int64_t i = 0; i < f.m * f.n; i++)
		assert_true(fabs(V[i] - f.W[i]) <= 1e-6 * (1 + fabs(f.W[i])));
	free(V);
	free_fixture(&f);
}

/* Σᵢ sᵢ²‖(VX* − WX)ᵢ‖², and how many entries each row keeps */
static double weighted_residual(solver_fixture *f, const double *s, int64_t *kept)
{
	double *V = fixture_doubles(f, f->V), sum = 0;
	for (int64_t i = 0; i < f->m; i++) {
		kept[i] = 0;
		for (int64_t j = 0; j < f->n; j++)
			kept[i] += V[i * f->n + j] != 0;
		for (int64_t t = 0; t < f->p; t++) {
			double off = 0;
			for (int64_t j = 0; j < f->n; j++)
				off += V[i * f->n + j] * f->Xstar[t * f->n + j] - f->W[i * f->n + j] * f->X[t * f->n + j];
			sum += s[i] * s[i] * off * off;
		}
	}
	free(V);
	return sum;
}

/* With an unstructured pattern, important rows keep more entries and the weighted error falls. With N:M every row keeps
 * the same number. */
static void important_rows_keep_more(void **unused)
{
	(void)unused;
	static const char *const patterns[] = {"50%", "70%", "2:4"};
	static const char *const recipe[] = {"iterations=0",     "refit_steps=40", "support_search=admm",
										 "search_steps=120", "scaling=1",      "ridge=0.01"};
	for (int i = 0; i < 3; i++) {
		solver_fixture f;
		fp_solution solution;
		int64_t kept[2][12], shift = 0;
		double s[12], over[12], error[2];
		make_fixture(&f, 12, 40, 160, 0.2, 61 + (uint64_t)i, patterns[i]);
		for (size_t k = 0; k < sizeof recipe / sizeof *recipe; k++)
			fixture_set(&f, recipe[k]);
		assert_ok(f.ctx, fp_matrix_new(f.be, &f.problem.importance, 1, 12, FP_F32));
		assert_ok(f.ctx, fp_matrix_new(f.be, &f.problem.inverse_importance, 1, 12, FP_F32));
		for (int row = 0; row < 12; row++)
			over[row] = 1 / (s[row] = row % 2 ? 1.75 : 0.5);
		fixture_put(&f, f.problem.importance, s);
		fixture_put(&f, f.problem.inverse_importance, over);
		fp_matrix importance = f.problem.importance;
		for (int with = 0; with < 2; with++) {
			f.problem.importance = with ? importance : (fp_matrix){0};
			assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
			error[with] = weighted_residual(&f, s, kept[with]);
			assert_true(fabs(solution.error - fixture_residual(&f, f.V)) <= 1e-4 * solution.error + 1e-3);
			float *V = fixture_floats(&f, f.V);
			assert_true(verify_pattern(V, f.m, f.n, &f.problem.pattern));
			free(V);
		}
		for (int row = 0; row < 12; row++)
			shift += (row % 2 ? 1 : -1) * (kept[1][row] - kept[0][row]);
		print_message("%s: weighted error %g, by importance %g; entries moved: %d\n", patterns[i], error[0], error[1],
					  (int)shift / 2);
		if (i < 2)
			assert_true(shift > 0 && error[1] < error[0]);
		else
			assert_true(shift == 0 && fabs(error[1] - error[0]) < 0.01 * error[0]);
		fp_matrix_free(f.be, &importance);
		fp_matrix_free(f.be, &f.problem.inverse_importance);
		free_fixture(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(solves_the_normal_equations),
		cmocka_unit_test(never_raises_the_error),
		cmocka_unit_test(support_search_keeps_the_pattern_and_improves),
		cmocka_unit_test(scaling_gives_columns_of_unit_norm),
		cmocka_unit_test(ridge_pulls_towards_the_dense_weights),
		cmocka_unit_test(scaling_round_trip_keeps_the_weights),
		cmocka_unit_test(important_rows_keep_more),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
