/* SPDX-License-Identifier: Apache-2.0 */
/* What a method says of its memory and of its products, against what a solve allocates and multiplies. */
#include "counting_allocator.h"
#include "solver_fixture.h"

#include <math.h>
#include <string.h>

enum { M = 160, N = 224, TOKENS = 600 };

static const char *const recipes[][3] = {
	{"method=magnitude"},
	{"method=wanda"},
	{"method=sparsegpt"},
	{"method=admm"},
	{"method=alps"},
	{"preset=paper"},
	{"preset=paper", "warm_start=sparsegpt"},
	{"preset=fast"},
	{"preset=fast", "warm_start=wanda"},
	{"preset=fast", "iterations=20", "warm_start=wanda"},
	{"preset=fast", "support_search=none", "search_steps=0"},
};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

static void start(solver_fixture *f, int recipe, double drift)
{
	make_fixture(f, M, N, TOKENS, drift, 91, "50%");
	for (int i = 0; i < 3 && recipes[recipe][i]; i++)
		fixture_set(f, recipes[recipe][i]);
	assert_ok(f->ctx, fp_settings_resolve(f->settings, f->ctx, "llama"));
}

static void memory_is_what_a_solve_holds(void **unused)
{
	(void)unused;
	for (int i = 0; i < 2 * RECIPES; i++) {
		solver_fixture f;
		fp_solution solution;
		counting_allocator counter;
		bool drifts = i >= RECIPES;
		start(&f, i % RECIPES, drifts ? 0.3 : 0);
		if (!drifts)
			f.problem.R = (fp_matrix){0};
		fp_solve_size size = {.inputs = N, .entries = M * N, .operators = 1, .has_R = drifts};
		double estimate = 4 * fp_solve_floats(f.be, f.settings, &size);
		counting_allocator_begin(&counter, f.be);
		assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
		double peak = (double)counting_allocator_end(&counter);
		print_message("%s %s: estimate / peak %.3f\n", recipes[i % RECIPES][0],
					  recipes[i % RECIPES][1] ? recipes[i % RECIPES][1] : "", estimate / peak);
		if (!(estimate >= 0.98 * peak && estimate <= 1.05 * peak))
			fail_msg("%s: estimated %.0f bytes, peak %.0f", recipes[i % RECIPES][0], estimate, peak);
		free_fixture(&f);
	}
}

static fp_linear_operations real;
static double flops;

static fp_status counted_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							  float beta, fp_matrix C)
{
	flops += 2.0 * (double)fp_matrix_size(C) * (double)(ta == FP_PLAIN ? A.cols : A.rows);
	return real.gemm(be, alpha, A, ta, B, tb, beta, C);
}

static fp_status counted_inverse(fp_backend *be, fp_matrix A, int64_t *refused)
{
	flops += 2.0 * pow((double)A.rows, 3);
	return real.inverse(be, A, refused);
}

/* The estimate is for the usual numbers of rounds and steps, which differ from problem to problem. */
static void products_are_of_the_right_size(void **unused)
{
	(void)unused;
	for (int i = 0; i < RECIPES; i++) {
		solver_fixture f;
		fp_solution solution;
		start(&f, i, 0.3);
		fp_solve_products products = fp_method_of(f.settings)->products(f.be, f.settings);
		double estimate = 2.0 * N * N * (M * (products.operators + 1) + N * products.gram); /* and the error */
		real = *f.be->linear;
		fp_linear_operations counted = real;
		counted.gemm = counted_gemm;
		counted.inverse = counted_inverse;
		f.be->linear = &counted;
		flops = 0;
		assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
		f.be->linear = &real;
		print_message("%s %s: estimate / counted %.2f\n", recipes[i][0], recipes[i][1] ? recipes[i][1] : "",
					  estimate / flops);
		if (strcmp(recipes[i][0], "method=sparsegpt") != 0) /* its sweep and factor are not products */
			assert_true(estimate >= 0.5 * flops && estimate <= 2.5 * flops);
		free_fixture(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_what_a_solve_holds),
		cmocka_unit_test(products_are_of_the_right_size),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
