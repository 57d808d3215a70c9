/* SPDX-License-Identifier: Apache-2.0 */
/* FISTA against the optimality conditions of the LASSO, its proven rate, least squares and scikit-learn. */
#include "real_layer.h"
#include "solver_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* V ← FISTA from zero */
static void run_fista(solver_fixture *f, double lambda, int64_t iterations)
{
	double L;
	int64_t steps = 0;
	char text[64];
	snprintf(text, sizeof text, "iterations=%lld", (long long)iterations);
	fixture_set(f, text);
	assert_ok(f->ctx, fp_gram_largest(&f->gram, &L));
	assert_ok(f->ctx, f->be->memory->fill(f->be, f->V, 0.0F));
	assert_ok(f->ctx, fp_fista(&f->problem, f->settings, lambda, L, NULL, f->V, f->V, &steps));
	assert_true(steps > 0 && steps <= iterations);
}

/* The violation of the subgradient condition, relative to the largest gradient at zero (the smallest λ whose optimum is
 * V = 0). */
static double optimality(solver_fixture *f, double lambda)
{
	double *V = fixture_doubles(f, f->V);
	double out = verify_lasso(V, f->A, f->C, f->m, f->n, lambda) / largest_of(f->C, f->m * f->n);
	free(V);
	return out;
}

static void reaches_the_optimum_of_random_problems(void **unused)
{
	(void)unused;
	static const double shares[] = {0.5, 0.1, 0.01};
	static const int64_t tokens[] = {200, 40, 12}; /* more than, as many as and fewer than inputs */
	for (int i = 0; i < 3; i++) {
		solver_fixture f;
		make_fixture(&f, 8, 40, tokens[i], 0.3, 7 + (uint64_t)i, "50%");
		fixture_set(&f, "step_tolerance=0");
		fixture_set(&f, "restart=1");
		for (int s = 0; s < 3; s++) {
			double lambda = shares[s] * largest_of(f.C, f.m * f.n);
			run_fista(&f, lambda, 20000);
			double off = optimality(&f, lambda);
			print_message("%d tokens, lambda %g max|C|: off by %.2e\n", (int)tokens[i], shares[s], off);
			assert_true(off < 1e-4 * shares[s]); /* 1e-4 of λ */
		}
		free_fixture(&f);
	}
}

static void check_real_layers(const real_source *sources, int count)
{
	static const fp_role roles[] = {FP_QUERY, FP_OUTPUT, FP_UP, FP_DOWN};
	for (int i = 0; i < count; i++) {
		model_fixture model;
		fp_windows windows;
		open_real(&model, &windows, &sources[i], 4, 64);
		for (int r = 0; r < 4; r++) {
			solver_fixture f;
			real_operator op;
			capture_real(&op, &model, &windows, 1, roles[r]);
			make_fixture_from(&f, 16, op.n, op.p, op.W, op.X, op.X, "50%"); /* the first rows; rows are independent */
			fixture_set(&f, "step_tolerance=0");
			fixture_set(&f, "restart=1");
			double lambda = 0.01 * largest_of(f.C, f.m * f.n);
			run_fista(&f, lambda, 6000);
			double off = optimality(&f, lambda);
			print_message("%s %s: off by %.2e of max|C|\n", sources[i].name, fp_role_name(roles[r]), off);
			assert_true(off < 1e-4 * 0.01);
			free(op.W);
			free(op.X);
			free_fixture(&f);
		}
		fp_windows_free(&windows);
		close_fixture(&model);
	}
}

static void reaches_the_optimum_of_real_layers(void **unused)
{
	(void)unused;
	check_real_layers(real_sources, real_source_count);
}

static void reaches_the_optimum_of_a_shared_model(void **unused)
{
	(void)unused;
	check_real_layers(&shared_source, 1);
}

static void without_lambda_it_is_least_squares(void **unused)
{
	(void)unused;
	solver_fixture f;
	make_fixture(&f, 6, 24, 300, 0.5, 3, "50%");
	fixture_set(&f, "step_tolerance=0");
	fixture_set(&f, "restart=1");
	run_fista(&f, 0.0, 20000);
	unsigned char *full = malloc((size_t)(f.m * f.n));
	double *want = malloc((size_t)(f.m * f.n) * sizeof *want);
	memset(full, 1, (size_t)(f.m * f.n));
	verify_least_squares(want, f.A, f.C, full, f.m, f.n);
	double *got = fixture_doubles(&f, f.V);
	for (int64_t i = 0; i < f.m * f.n; i++)
		assert_true(fabs(got[i] - want[i]) < 2e-4);
	free(full);
	free(want);
	free(got);
	free_fixture(&f);
}

/* Beck and Teboulle's theorem: F(P_k) − F* ≤ 2L‖P_0 − P*‖²/(k + 1)². */
static void objective_falls_with_the_square_of_the_steps(void **unused)
{
	(void)unused;
	static const int64_t steps[] = {1, 2, 5, 10, 20, 50, 100, 200, 400};
	solver_fixture f;
	double L;
	make_fixture(&f, 6, 40, 48, 0.2, 11, "50%");
	fixture_set(&f, "step_tolerance=0");
	double lambda = 0.001 * largest_of(f.C, f.m * f.n);
	double *zero = calloc((size_t)(f.m * f.n), sizeof *zero);
	fixture_set(&f, "restart=1");
	run_fista(&f, lambda, 50000);
	fixture_set(&f, "restart=0");
	double *best = fixture_doubles(&f, f.V);
	double lowest = verify_objective(best, f.A, f.C, f.m, f.n, lambda);
	double distance = distance_of(best, zero, f.m * f.n);
	assert_ok(f.ctx, fp_gram_largest(&f.gram, &L));
	double before = INFINITY;
	for (int i = 0; i < 9; i++) {
		run_fista(&f, lambda, steps[i]);
		double *V = fixture_doubles(&f, f.V);
		double gap = verify_objective(V, f.A, f.C, f.m, f.n, lambda) - lowest;
		double k = (double)steps[i] + 1;
		print_message("%d steps: %.4g above the optimum, bound %.4g\n", (int)steps[i], gap,
					  2 * L * distance * distance / (k * k));
		assert_true(gap <= 2 * L * distance * distance / (k * k) + 1e-6 * fabs(lowest));
		if (steps[i] <= 10) /* later FISTA may oscillate */
			assert_true(gap < before);
		before = gap;
		free(V);
	}
	free(zero);
	free(best);
	free_fixture(&f);
}

static void agrees_with_scikit_learn(void **unused)
{
	(void)unused;
	size_t size;
	unsigned char *bytes = read_whole(source_path("tests/fixtures/solver/lasso.bin"), &size);
	int32_t h[4];
	memcpy(h, bytes, sizeof h);
	int64_t m = h[0], n = h[1], p = h[2];
	double *X = to_double((const float *)(bytes + 16), p * n);
	double *Y = to_double((const float *)(bytes + 16 + 4 * p * n), p * m);
	double *W = calloc((size_t)(m * n), sizeof *W);
	const unsigned char *cursor = bytes + 16 + 4 * (p * n + p * m);
	solver_fixture f;
	make_fixture_from(&f, m, n, p, W, X, X, "50%");
	verify_inner(f.C, Y, X, p, m, n); /* the target is Y, whatever the weights are */
	fixture_put(&f, f.dC, f.C);
	fixture_set(&f, "step_tolerance=0");
	fixture_set(&f, "restart=1");
	for (int i = 0; i < h[3]; i++) {
		double lambda;
		double *want = malloc((size_t)(m * n) * sizeof *want);
		memcpy(&lambda, cursor, 8);
		memcpy(want, cursor + 8, 8 * (size_t)(m * n));
		cursor += 8 + 8 * m * n;
		run_fista(&f, lambda, 20000);
		double *got = fixture_doubles(&f, f.V);
		double worst = 0;
		for (int64_t j = 0; j < m * n; j++)
			worst = fmax(worst, fabs(got[j] - want[j]));
		print_message("lambda %g: differs by %.2e\n", lambda, worst);
		assert_true(worst < 1e-4);
		free(want);
		free(got);
	}
	assert_ptr_equal(cursor, bytes + size);
	free(bytes);
	free(X);
	free(Y);
	free(W);
	free_fixture(&f);
}

/* Both momentum rules against plain loops in double. */
static void momentum_is_as_its_rule_says(void **unused)
{
	(void)unused;
	static const char *const rules[] = {"momentum=standard", "momentum=literal"};
	for (int rule = 0; rule < 2; rule++) {
		solver_fixture f;
		double L;
		make_fixture(&f, 3, 12, 40, 0.3, 5, "50%");
		fixture_set(&f, rules[rule]);
		int64_t size = f.m * f.n;
		double lambda = 0.02 * largest_of(f.C, size);
		run_fista(&f, lambda, 7);
		assert_ok(f.ctx, fp_gram_largest(&f.gram, &L));
		double *P = calloc((size_t)size, sizeof *P);
		double *Y = calloc((size_t)size, sizeof *Y);
		double *G = malloc((size_t)size * sizeof *G);
		double t = 1;
		for (int k = 0; k < 7; k++) {
			double next = (1 + sqrt(1 + 4 * t * t)) / 2;
			verify_product(G, Y, f.A, f.m, f.n, f.n);
			for (int64_t i = 0; i < size; i++) {
				double z = Y[i] - (G[i] - f.C[i]) / L;
				double point = copysign(fmax(fabs(z) - lambda / L, 0), z);
				Y[i] = point + (t - 1) / next * (point - (rule == 0 ? P[i] : Y[i]));
				P[i] = point;
			}
			t = next;
		}
		double *got = fixture_doubles(&f, f.V);
		for (int64_t i = 0; i < size; i++)
			assert_true(fabs(got[i] - (rule == 0 ? P[i] : Y[i])) < 1e-5);
		free(P);
		free(Y);
		free(G);
		free(got);
		free_fixture(&f);
	}
}

static void stops_when_it_no_longer_moves(void **unused)
{
	(void)unused;
	solver_fixture f;
	int64_t steps = 0;
	double L;
	make_fixture(&f, 4, 16, 100, 0, 9, "50%");
	fixture_set(&f, "iterations=1000");
	assert_ok(f.ctx, fp_gram_largest(&f.gram, &L));
	assert_ok(f.ctx, f.be->memory->copy(f.be, f.V, f.dW)); /* with one stream the dense weights are the optimum */
	fixture_set(&f, "step_tolerance=1e-3");
	assert_ok(f.ctx, fp_fista(&f.problem, f.settings, 0.0, L, NULL, f.V, f.V, &steps));
	assert_true(steps < 10);
	free_fixture(&f);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reaches_the_optimum_of_random_problems),
		cmocka_unit_test(reaches_the_optimum_of_real_layers),
		cmocka_unit_test(without_lambda_it_is_least_squares),
		cmocka_unit_test(objective_falls_with_the_square_of_the_steps),
		cmocka_unit_test(agrees_with_scikit_learn),
		cmocka_unit_test(momentum_is_as_its_rule_says),
		cmocka_unit_test(stops_when_it_no_longer_moves),
	};
	const struct CMUnitTest shared_model[] = {cmocka_unit_test(reaches_the_optimum_of_a_shared_model)};
	TEST_PART(shared_model);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
