/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on a grid: descent against rounding to the nearest and against every change of one code; SparseGPT's sweep with
 * a grid; zeros, and groups that have nothing but zeros. */
#include "solver/grid.h"
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>

enum { M = 7, N = 96, GROUP = 32, GROUPS = N / GROUP };

/* A problem with n inputs whose V is the solution by Wanda's mask and a refit. */
static void make_solved(solver_fixture *f, int64_t n, uint64_t seed, const char *pattern)
{
	make_fixture(f, M, n, 300, 0, seed, pattern);
	assert_ok(f->ctx, fp_warm_start(&f->problem, "wanda", f->settings, f->V, f->mask));
	assert_ok(f->ctx, fp_refit(&f->problem, 50, f->mask, f->V));
}

/* ‖(a − b)X*‖² of row i */
static double row_error(const solver_fixture *f, const double *a, const double *b, int64_t i)
{
	double sum = 0;
	for (int64_t j = 0; j < f->n; j++)
		for (int64_t k = 0; k < f->n; k++)
			sum += (a[i * f->n + j] - b[i * f->n + j]) * f->A[j * f->n + k] * (a[i * f->n + k] - b[i * f->n + k]);
	return sum;
}

static double whole_error(const solver_fixture *f, const double *a, const double *b)
{
	double sum = 0;
	for (int64_t i = 0; i < f->m; i++)
		sum += row_error(f, a, b, i);
	return sum;
}

static void descent_is_better_than_the_nearest(void **unused)
{
	(void)unused;
	static const char *const formats[] = {"int4-g32", "int4-asym-g32", "int8", "fp8"};
	static const char *const patterns[] = {"0%", "50%", "2:4"};
	for (int i = 0; i < 4; i++)
		for (int p = 0; p < 3; p++) {
			solver_fixture f;
			fp_grid grid;
			make_solved(&f, N, 11, patterns[p]);
			double *V = fixture_doubles(&f, f.V);
			assert_ok(f.ctx, fp_grid_new(&grid, f.be, fp_grid_format_named(formats[i]), FP_BF16, M, N));
			assert_ok(f.ctx, fp_grid_fit(f.be, f.V, &grid));
			assert_ok(f.ctx, f.be->grid->round(f.be, &grid, f.V, f.V));
			double *nearest = fixture_doubles(&f, f.V);
			fixture_put(&f, f.V, V);
			assert_ok(f.ctx, fp_quantise_by_descent(&f.gram, f.settings, f.V, &grid));
			double *got = fixture_doubles(&f, f.V);
			double floor = whole_error(&f, nearest, V), reached = whole_error(&f, got, V);
			print_message("%s %s: %g by descent, %g nearest\n", formats[i], patterns[p], reached, floor);
			assert_true(reached < 0.8 * floor);
			for (int64_t j = 0; j < M * N; j++)
				assert_true(V[j] != 0 || (got[j] == 0 && !signbit(got[j])));
			free(V);
			free(nearest);
			free(got);
			fp_grid_free(f.be, &grid);
			free_fixture(&f);
		}
}

/* After many passes no other code of any single weight has a smaller error; of every `step`th weight of a row. */
static void expect_a_minimum(int64_t n, const char *format, int64_t group, int64_t step)
{
	solver_fixture f;
	fp_grid grid;
	make_solved(&f, n, 13, "50%");
	fixture_set(&f, "quantizer_passes=60");
	double *V = fixture_doubles(&f, f.V);
	assert_ok(f.ctx, fp_grid_new(&grid, f.be, fp_grid_format_named(format), FP_F32, M, n));
	assert_int_equal(grid.scale.cols, n / group);
	assert_ok(f.ctx, fp_quantise_by_descent(&f.gram, f.settings, f.V, &grid));
	double *got = fixture_doubles(&f, f.V), *scale = fixture_doubles(&f, grid.scale);
	for (int64_t i = 0; i < M; i++) {
		double reached = row_error(&f, got, V, i);
		for (int64_t j = i; j < n; j += step) {
			double own = got[i * n + j], unit = scale[i * (n / group) + j / group];
			for (int change = -2; change <= 2 && V[i * n + j] != 0; change++) {
				got[i * n + j] = own + change * unit;
				assert_true(row_error(&f, got, V, i) >= reached * (1 - 1e-3) || fabs(got[i * n + j]) > 7 * unit);
			}
			got[i * n + j] = own;
		}
	}
	free(V);
	free(got);
	free(scale);
	fp_grid_free(f.be, &grid);
	free_fixture(&f);
}

static void descent_ends_at_a_minimum(void **unused)
{
	(void)unused;
	expect_a_minimum(N, "int4-g32", GROUP, 1);
	expect_a_minimum(1152, "int4", 128, 83); /* several strips, of which the last is shorter */
	expect_a_minimum(1100, "int8", 1100, 83);
}

/* A group without weights and an input that is always zero stay as they are; nothing becomes infinite. */
static void empty_groups_and_dead_inputs(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_grid grid;
	make_fixture(&f, M, N, 300, 0, 17, "50%");
	double *A = fixture_doubles(&f, f.dA), *V = fixture_doubles(&f, f.dW);
	for (int64_t i = 0; i < N; i++)
		A[5 * N + i] = A[i * N + 5] = 0;
	for (int64_t j = 0; j < M * N; j++)
		V[j] = j % N < GROUP ? 0 : V[j]; /* the first group */
	for (int64_t j = 0; j < M * N; j += 4)
		V[j] = V[j + 1] = 0;
	fixture_put(&f, f.dA, A);
	fp_gram_free(&f.gram);
	assert_ok(f.ctx, fp_gram_new(&f.gram, f.be, f.dA));
	fixture_put(&f, f.V, V);
	assert_ok(f.ctx, fp_grid_new(&grid, f.be, fp_grid_format_named("int4-asym-g32"), FP_F16, M, N));
	assert_ok(f.ctx, fp_quantise_by_descent(&f.gram, f.settings, f.V, &grid));
	double *got = fixture_doubles(&f, f.V), *scale = fixture_doubles(&f, grid.scale);
	for (int64_t j = 0; j < M * N; j++)
		assert_true(isfinite(got[j]) && (V[j] != 0 || got[j] == 0));
	for (int64_t i = 0; i < M; i++)
		assert_true(scale[i * GROUPS] == 0x1p-10); /* the type's epsilon */
	free(A);
	free(V);
	free(got);
	free(scale);
	fp_grid_free(f.be, &grid);
	free_fixture(&f);
}

/* SparseGPT's result lies on the grid, which is that of the dense weights. */
static void sparsegpt_rounds_in_its_sweep(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_grid grid;
	fp_solution solution;
	make_fixture(&f, M, N, 300, 0, 19, "2:4");
	fixture_set(&f, "method=sparsegpt");
	assert_int_equal(fp_quantiser_of(f.settings), FP_QUANTISER_OWN);
	assert_ok(f.ctx, fp_grid_new(&grid, f.be, fp_grid_format_named("int4-g32"), FP_BF16, M, N));
	assert_ok(f.ctx, fp_grid_fit(f.be, f.dW, &grid));
	f.problem.grid = &grid;
	assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
	double *got = fixture_doubles(&f, f.V);
	assert_ok(f.ctx, f.be->grid->round(f.be, &grid, f.V, f.V));
	double *rounded = fixture_doubles(&f, f.V);
	int64_t zeros = 0;
	for (int64_t j = 0; j < M * N; j++) {
		assert_true(got[j] == rounded[j]);
		zeros += got[j] == 0;
	}
	assert_true(zeros >= M * N / 2);
	free(got);
	free(rounded);
	fp_grid_free(f.be, &grid);
	free_fixture(&f);
}

/* Weights that have zeros already and a pattern that prunes nothing: every method leaves the zeros, also where errors of
 * earlier operators are to be corrected, and `fast` reaches the least squares of the other weights. */
static void zeros_of_the_input_stay(void **unused)
{
	(void)unused;
	static const char *const methods[] = {"preset=fast", "preset=paper", "method=sparsegpt", "method=admm",
										  "method=alps", "method=wanda", "method=magnitude"};
	static const char *const patterns[] = {"0%", "4:4"};
	for (int i = 0; i < 14; i++) {
		solver_fixture dense, f;
		fp_grid grid;
		fp_solution solution;
		make_fixture(&dense, M, N, 300, 0.3, 23, "0%");
		for (int64_t j = 0; j < M * N; j++)
			dense.W[j] = j * 7 % 13 < 6 ? 0 : dense.W[j];
		make_fixture_from(&f, M, N, 300, dense.W, dense.X, dense.Xstar, patterns[i % 2]);
		f.problem.gram = &f.gram;
		fixture_set(&f, methods[i / 2]);
		fixture_set(&f, "ridge=0");
		fixture_set(&f, "refit_steps=20");
		assert_ok(f.ctx, fp_settings_resolve(f.settings, f.ctx, "llama"));
		assert_ok(f.ctx, fp_grid_new(&grid, f.be, fp_grid_format_named("int4-asym-g32"), FP_BF16, M, N));
		assert_ok(f.ctx, fp_grid_fit(f.be, f.dW, &grid));
		f.problem.grid = fp_quantiser_of(f.settings) == FP_QUANTISER_OWN ? &grid : NULL;
		assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
		double *got = fixture_doubles(&f, f.V);
		for (int64_t j = 0; j < M * N; j++)
			assert_true(f.W[j] != 0 || (got[j] == 0 && !signbit(got[j])));
		if (i < 2) {
			unsigned char mask[M * N];
			double want[M * N];
			for (int64_t j = 0; j < M * N; j++)
				mask[j] = f.W[j] != 0;
			verify_least_squares(want, f.A, f.C, mask, M, N);
			assert_true(distance_of(got, want, M * N) < 1e-3 * largest_of(want, M * N));
		}
		free(got);
		fp_grid_free(f.be, &grid);
		free_fixture(&f);
		free_fixture(&dense);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descent_is_better_than_the_nearest), cmocka_unit_test(descent_ends_at_a_minimum),
		cmocka_unit_test(empty_groups_and_dead_inputs), cmocka_unit_test(sparsegpt_rounds_in_its_sweep),
		cmocka_unit_test(zeros_of_the_input_stay)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
