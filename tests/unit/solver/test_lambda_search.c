/* SPDX-License-Identifier: Apache-2.0 */
/* The λ search against the paper's pseudocode written out once more, and what it promises about its start. */
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double error_of(solver_fixture *f, fp_matrix V)
{
	fp_matrix work[2];
	double square;
	for (int i = 0; i < 2; i++)
		assert_ok(f->ctx, fp_matrix_new(f->be, &work[i], f->m, f->n, FP_F32));
	assert_ok(f->ctx, fp_problem_error(&f->problem, V, work, &square));
	for (int i = 0; i < 2; i++)
		fp_matrix_free(f->be, &work[i]);
	return sqrt(square);
}

typedef struct expected {
	double error, lambda;
	int64_t rounds;
	fp_matrix V;
} expected;

/* Algorithm 1: from the start in f->V. */
static void follow_pseudocode(solver_fixture *f, expected *out)
{
	const fp_settings *s = f->settings;
	int geometric = strcmp(s->lambda_search, "geometric") == 0;
	double unit = geometric ? largest_of(f->C, f->m * f->n) : 1;
	double low = s->lambda_low * unit, high = s->lambda_high * unit, lambda = s->lambda_start * unit;
	double L;
	int64_t t = 0, steps = 0;
	fp_matrix candidate;
	*out = (expected){.error = error_of(f, f->V)};
	assert_ok(f->ctx, fp_matrix_new(f->be, &candidate, f->m, f->n, FP_F32));
	assert_ok(f->ctx, fp_matrix_new(f->be, &out->V, f->m, f->n, FP_F32));
	assert_ok(f->ctx, f->be->memory->copy(f->be, out->V, f->V));
	assert_ok(f->ctx, fp_gram_largest(&f->gram, &L));
	for (;;) {
		assert_ok(f->ctx, f->be->memory->copy(f->be, candidate, out->V));
		assert_ok(f->ctx, fp_fista(&f->problem, s, lambda, L, NULL, candidate, candidate, &steps));
		double before = error_of(f, candidate);
		assert_ok(f->ctx, fp_round(&f->problem, candidate, f->mask));
		double total = error_of(f, candidate);
		double gain = (out->error - total) / out->error;
		out->rounds++;
		if (total < out->error) {
			out->error = total;
			out->lambda = lambda;
			assert_ok(f->ctx, f->be->memory->copy(f->be, out->V, candidate));
			if (s->reset_patience)
				t = 0;
			if (gain < s->tolerance)
				break;
		} else if (++t >= s->patience) {
			break;
		}
		if ((total - before) / total > s->rounding_share)
			low = lambda;
		else
			high = lambda;
		lambda = geometric ? exp(0.5 * (log(low) + log(high))) : (low + high) / 2;
	}
	fp_matrix_free(f->be, &candidate);
}

static void follows_the_pseudocode(void **unused)
{
	(void)unused;
	static const char *const variants[][4] = {
		{"lambda_search=geometric", "reset_patience=1", "tolerance=1e-3", "patience=3"},
		{"lambda_search=geometric", "reset_patience=0", "tolerance=1e-6", "patience=5"},
		{"lambda_search=bisection", "reset_patience=0", "tolerance=1e-3", "patience=3"},
		{"lambda_search=bisection", "reset_patience=1", "tolerance=1e-6", "patience=2"},
		{"lambda_search=geometric", "reset_patience=1", "tolerance=1", "patience=3"},
	};
	static const char *const patterns[] = {"50%", "2:4", "80%"};
	for (int v = 0; v < 5; v++)
		for (int p = 0; p < 3; p++) {
			solver_fixture f;
			expected want;
			fp_solution got = {0};
			make_fixture(&f, 10, 32, 120, 0.3, 61 + (uint64_t)p, patterns[p]);
			for (int i = 0; i < 4; i++)
				fixture_set(&f, variants[v][i]);
			if (strcmp(variants[v][0], "lambda_search=bisection") == 0) {
				fixture_set(&f, "lambda_low=0");
				fixture_set(&f, "lambda_high=1e6");
			}
			assert_ok(f.ctx, fp_warm_start(&f.problem, "wanda", f.settings, f.V, f.mask));
			double start = error_of(&f, f.V);
			follow_pseudocode(&f, &want);
			assert_ok(f.ctx, fp_lambda_search(&f.problem, f.settings, true, f.V, f.mask, &got));
			assert_int_equal(got.rounds, want.rounds);
			assert_true(fabs(got.lambda - want.lambda) <= 1e-9 * want.lambda);
			assert_true(fabs(got.error - want.error) <= 1e-6 * want.error);
			assert_true(got.error <= start);
			float *a = fixture_floats(&f, f.V);
			float *b = fixture_floats(&f, want.V);
			unsigned char *mask = fixture_bytes(&f, f.mask);
			for (int64_t i = 0; i < f.m * f.n; i++) {
				assert_true(fabsf(a[i] - b[i]) < 1e-5F);
				assert_true(mask[i] || a[i] == 0.0F); /* the mask is that of the best, not of the last */
			}
			assert_true(verify_pattern(a, f.m, f.n, &f.problem.pattern));
			double direct = fixture_residual(&f, f.V);
			assert_true(fabs(direct - got.error) < 1e-4 * direct);
			free(a);
			free(b);
			free(mask);
			fp_matrix_free(f.be, &want.V);
			free_fixture(&f);
		}
}

/* Where the start is the optimum nothing can improve: the start comes back after `patience` rounds. */
static void keeps_a_start_that_cannot_be_improved(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_solution solution = {0};
	make_fixture(&f, 4, 16, 60, 0, 67, "0%");
	fixture_set(&f, "patience=4");
	assert_ok(f.ctx, f.be->memory->copy(f.be, f.V, f.dW));
	assert_ok(f.ctx, fp_lambda_search(&f.problem, f.settings, true, f.V, f.mask, &solution));
	assert_int_equal(solution.rounds, 4);
	assert_true(solution.lambda == 0 && solution.error == 0);
	double *V = fixture_doubles(&f, f.V);
	assert_memory_equal(V, f.W, (size_t)(f.m * f.n) * sizeof *V);
	free(V);
	free_fixture(&f);
}

static void a_dense_start_is_no_solution(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_solution solution = {0};
	make_fixture(&f, 6, 24, 90, 0, 71, "2:4");
	assert_ok(f.ctx, f.be->memory->copy(f.be, f.V, f.dW));
	assert_ok(f.ctx, fp_lambda_search(&f.problem, f.settings, false, f.V, f.mask, &solution));
	float *V = fixture_floats(&f, f.V);
	assert_true(verify_pattern(V, f.m, f.n, &f.problem.pattern));
	assert_true(solution.error > 0 && solution.rounds > 0 && solution.lambda > 0);
	free(V);
	free_fixture(&f);
}

/* Fewer tokens than weights that stay: an error of zero is possible and every round comes nearer to it. */
static void ends_where_an_exact_fit_exists(void **unused)
{
	(void)unused;
	solver_fixture f;
	fp_solution solution = {0};
	make_fixture(&f, 4, 40, 5, 0, 73, "50%");
	fixture_set(&f, "tolerance=0");
	assert_ok(f.ctx, fp_warm_start(&f.problem, "wanda", f.settings, f.V, f.mask));
	assert_ok(f.ctx, fp_lambda_search(&f.problem, f.settings, true, f.V, f.mask, &solution));
	assert_true(solution.rounds <= 64);
	free_fixture(&f);
}

/* Weights of rows decide where zeros go, but ratios of errors are those of ‖VX* − T‖ itself, its constant included. */
static void errors_are_those_without_row_weights(void **unused)
{
	(void)unused;
	enum { M = 10, N = 32 };
	solver_fixture f;
	fp_solution solution;
	float weight[M], inverse[M];
	make_fixture(&f, M, N, 120, 0.3, 83, "50%");
	fixture_set(&f, "preset=paper");
	assert_ok(f.ctx, fp_matrix_new(f.be, &f.problem.importance, 1, M, FP_F32));
	assert_ok(f.ctx, fp_matrix_new(f.be, &f.problem.inverse_importance, 1, M, FP_F32));
	for (int i = 0; i < M; i++) {
		weight[i] = 0.2F + 0.3F * (float)i;
		inverse[i] = 1 / weight[i];
	}
	assert_ok(f.ctx, f.be->memory->upload(f.be, f.problem.importance, weight, FP_F32, M));
	assert_ok(f.ctx, f.be->memory->upload(f.be, f.problem.inverse_importance, inverse, FP_F32, M));
	f.problem.unmeasured = true; /* leaves the search's own figure */
	assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
	double direct = fixture_residual(&f, f.V);
	assert_true(solution.rounds > 0 && fabs(direct - solution.error) < 1e-4 * direct);
	fp_matrix_free(f.be, &f.problem.importance);
	fp_matrix_free(f.be, &f.problem.inverse_importance);
	free_fixture(&f);
}

static void an_interrupt_ends_it(void **unused)
{
	(void)unused;
	volatile int flag = 1;
	solver_fixture f;
	fp_solution solution = {0};
	make_fixture(&f, 4, 16, 60, 0, 79, "50%");
	fp_context_set_interrupt(f.ctx, &flag);
	assert_ok(f.ctx, fp_warm_start(&f.problem, "wanda", f.settings, f.V, f.mask));
	assert_fails(f.ctx, FP_ERROR_INTERRUPTED, "interrupted",
				 fp_lambda_search(&f.problem, f.settings, true, f.V, f.mask, &solution));
	free_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(follows_the_pseudocode),         cmocka_unit_test(keeps_a_start_that_cannot_be_improved),
		cmocka_unit_test(a_dense_start_is_no_solution),   cmocka_unit_test(an_interrupt_ends_it),
		cmocka_unit_test(ends_where_an_exact_fit_exists), cmocka_unit_test(errors_are_those_without_row_weights),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
