/* SPDX-License-Identifier: Apache-2.0 */
/* ALPS against a reference in double, written with the unscaled multiplier as its paper does, and against ADMM. */
#include "solver/steps.h"
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* f->V and f->mask ← ALPS's solution. Returns its steps. */
static int64_t solve_alps(solver_fixture *f)
{
	fp_solution solution = {0};
	assert_ok(f->ctx, f->be->memory->fill(f->be, f->V, NAN)); /* nothing may read it */
	assert_ok(f->ctx, fp_method_alps.solve(&f->problem, f->settings, f->V, f->mask, &solution));
	return solution.search_steps;
}

static double *zeros(int64_t count)
{
	return calloc((size_t)count, sizeof(double));
}

/* out ← (A + ρI)⁻¹, column by column */
static void invert(const double *A, double rho, double *out, int64_t n)
{
	double *copy = zeros(n * n);
	double *unit = zeros(n);
	double *x = zeros(n);
	for (int64_t j = 0; j < n; j++) {
		memcpy(copy, A, (size_t)(n * n) * sizeof *copy);
		for (int64_t i = 0; i < n; i++) {
			copy[i * n + i] += rho;
			unit[i] = i == j;
		}
		verify_solve(copy, unit, x, n);
		for (int64_t i = 0; i < n; i++)
			out[i * n + j] = x[i];
	}
	free(copy);
	free(unit);
	free(x);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;
	return (x > y) - (x < y);
}

/* X ← its `kept` largest magnitudes of each run of `group` entries */
static void keep_largest(double *X, unsigned char *mask, int64_t count, int64_t group, int64_t kept)
{
	double *sizes = zeros(group);
	for (int64_t first = 0; first < count; first += group) {
		for (int64_t i = 0; i < group; i++)
			sizes[i] = fabs(X[first + i]);
		qsort(sizes, (size_t)group, sizeof *sizes, by_size);
		for (int64_t i = first; i < first + group; i++) {
			mask[i] = kept > 0 && fabs(X[i]) >= sizes[group - kept];
			X[i] = mask[i] ? X[i] : 0;
		}
	}
	free(sizes);
}

static void project(const solver_fixture *f, double *X, unsigned char *mask)
{
	const fp_pattern *pattern = &f->problem.pattern;
	int64_t count = f->m * f->n;
	if (pattern->group)
		keep_largest(X, mask, count, pattern->group, pattern->kept);
	else
		keep_largest(X, mask, count, count, count - fp_pattern_zeros(pattern, count));
}

/* How often the reference took each way to the next ρ; the test must see all of them. */
enum { BY_13, BY_12, BY_11, RESTARTED, LOWERED, STOPPED, STOPPED_FEW, WAY_COUNT };
static const char *const way_names[WAY_COUNT] = {"1.3", "1.2", "1.1", "restart", "lowered", "stop", "stop at few"};
static int ways[WAY_COUNT];

/* B ← the weights of the reference's last step; A, C, W are scaled. Returns the steps. */
static int64_t reference_admm(const solver_fixture *f, const double *A, const double *C, const double *W, double *B)
{
	int64_t n = f->n;
	int64_t count = f->m * n;
	double *D = zeros(count);
	double *V = zeros(count); /* the multiplier */
	double *work = zeros(count);
	double *inverse = zeros(n * n);
	unsigned char *before = calloc((size_t)count, 1);
	unsigned char *mask = calloc((size_t)count, 1);
	double kept = (1 - f->problem.pattern.sparsity) * (double)count;
	double rho = 0.1;
	int grown = 0;
	int64_t step = 0;
	memcpy(D, W, (size_t)count * sizeof *D);
	project(f, D, before);
	invert(A, rho, inverse, n);
	while (step < 300) {
		for (int64_t i = 0; i < count; i++)
			work[i] = C[i] - V[i] + rho * D[i];
		verify_product(B, work, inverse, f->m, n, n);
		for (int64_t i = 0; i < count; i++)
			D[i] = B[i] + V[i] / rho;
		project(f, D, mask);
		for (int64_t i = 0; i < count; i++)
			V[i] += rho * (B[i] - D[i]);
		if (++step % 3)
			continue;
		int64_t changed = 0;
		for (int64_t i = 0; i < count; i++)
			changed += mask[i] != before[i];
		double share = (double)changed / kept;
		int way = share > 0.1     ? BY_13
				  : share > 0.005 ? BY_12
				  : changed       ? (grown ? BY_11 : RESTARTED)
				  : grown         ? STOPPED
								  : LOWERED;
		if (way != STOPPED && step > 30 && share < 0.0003)
			way = STOPPED_FEW;
		ways[way]++;
		if (way == STOPPED || way == STOPPED_FEW)
			break;
		static const double factor[] = {
			[BY_13] = 1.3, [BY_12] = 1.2, [BY_11] = 1.1, [RESTARTED] = 0.2, [LOWERED] = 0.2};
		grown = grown || way == BY_13 || way == BY_12;
		rho = fmin(rho * factor[way], 1e6);
		memcpy(before, mask, (size_t)count);
		if (way == RESTARTED) {
			memcpy(D, W, (size_t)count * sizeof *D);
			memset(V, 0, (size_t)count * sizeof *V);
			project(f, D, mask);
		}
		invert(A, rho, inverse, n);
	}
	free(D);
	free(V);
	free(work);
	free(inverse);
	free(before);
	free(mask);
	return step;
}

/* One row of ten steps of conjugate gradients for xA = c on a support, with a diagonal of ones. */
static void reference_cg(double *x, const double *A, const double *c, const unsigned char *mask, int64_t n)
{
	double *r = zeros(n);
	double *p = zeros(n);
	double *q = zeros(n);
	verify_product(q, x, A, 1, n, n);
	for (int64_t j = 0; j < n; j++)
		p[j] = r[j] = mask[j] ? c[j] - q[j] : 0;
	double rr = verify_dot(r, r, n);
	for (int step = 0; step < 10 && rr > 1e-24; step++) {
		verify_product(q, p, A, 1, n, n);
		double alpha = rr / verify_dot(p, q, n);
		for (int64_t j = 0; j < n; j++) {
			x[j] += alpha * p[j];
			r[j] -= mask[j] ? alpha * q[j] : 0;
		}
		double next = verify_dot(r, r, n);
		for (int64_t j = 0; j < n; j++)
			p[j] = r[j] + next / rr * p[j];
		rr = next;
	}
	free(r);
	free(p);
	free(q);
}

/* V and mask ← ALPS from the Gram matrix as it was measured: damping, scaling, ADMM, conjugate gradients. */
static int64_t reference(const solver_fixture *f, double *V, unsigned char *mask)
{
	int64_t n = f->n;
	int64_t count = f->m * n;
	double *A = zeros(n * n);
	double *C = zeros(count);
	double *W = zeros(count);
	double *norm = zeros(n);
	double damping = 0;
	for (int64_t i = 0; i < n; i++)
		damping += 0.01 * f->A[i * n + i] / (double)n;
	for (int64_t i = 0; i < n; i++)
		norm[i] = sqrt(f->A[i * n + i] + damping);
	for (int64_t i = 0; i < n * n; i++)
		A[i] = (f->A[i] + (i / n == i % n ? damping : 0)) / norm[i / n] / norm[i % n];
	for (int64_t i = 0; i < count; i++) {
		W[i] = f->W[i] * norm[i % n];
		C[i] = (f->C[i] + damping * f->W[i]) / norm[i % n];
	}
	int64_t steps = reference_admm(f, A, C, W, V);
	project(f, V, mask);
	for (int64_t i = 0; i < f->m; i++)
		reference_cg(V + i * n, A, C + i * n, mask + i * n, n);
	for (int64_t i = 0; i < count; i++)
		V[i] /= norm[i % n];
	free(A);
	free(C);
	free(W);
	free(norm);
	return steps;
}

static void check_pattern(solver_fixture *f, const char *what)
{
	int64_t count = f->m * f->n;
	float *V = fixture_floats(f, f->V);
	unsigned char *mask = fixture_bytes(f, f->mask);
	if (!verify_pattern(V, f->m, f->n, &f->problem.pattern))
		fail_msg("%s: not the pattern", what);
	for (int64_t i = 0; i < count; i++)
		if (!isfinite(V[i]) || (!mask[i] && (V[i] != 0 || signbit(V[i]))))
			fail_msg("%s: entry %lld is %g, its mask %d", what, (long long)i, (double)V[i], mask[i]);
	free(V);
	free(mask);
}

static void check_against_reference(solver_fixture *f, const char *what)
{
	int64_t count = f->m * f->n;
	double *want = zeros(count);
	unsigned char *want_mask = calloc((size_t)count, 1);
	int64_t want_steps = reference(f, want, want_mask);
	int64_t steps = solve_alps(f);
	double *got = fixture_doubles(f, f->V);
	unsigned char *mask = fixture_bytes(f, f->mask);
	assert_int_equal(steps, want_steps);
	for (int64_t i = 0; i < count; i++)
		if (mask[i] != want_mask[i] || !(fabs(got[i] - want[i]) <= 1e-4))
			fail_msg("%s: entry %lld is %g, not %g; its mask %d, not %d", what, (long long)i, got[i], want[i], mask[i],
					 want_mask[i]);
	check_pattern(f, what);
	print_message("%s: %lld steps, distance %g\n", what, (long long)steps, distance_of(got, want, count));
	free(want);
	free(want_mask);
	free(got);
	free(mask);
}

static void is_the_reference(void **unused)
{
	(void)unused;
	static const struct {
		int64_t m, n, p;
		double drift;
		const char *pattern;
	} cases[] = {
		{12, 24, 200, 0, "50%"},   {12, 24, 200, 0, "2:4"},   {12, 24, 200, 0, "4:8"}, {12, 24, 200, 0, "70%"},
		{12, 24, 200, 0.3, "2:4"}, {12, 24, 200, 0.3, "70%"}, {12, 24, 100, 0, "50%"}, {12, 24, 200, 0, "0%"},
		{48, 32, 300, 0, "60%"},   {96, 32, 4000, 0, "3%"},   {96, 32, 4000, 0, "1%"},
	};
	memset(ways, 0, sizeof ways);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		solver_fixture f;
		make_fixture(&f, cases[i].m, cases[i].n, cases[i].p, cases[i].drift, 61 + i, cases[i].pattern);
		check_against_reference(&f, cases[i].pattern);
		free_fixture(&f);
	}
	for (int i = 0; i < WAY_COUNT; i++)
		print_message("%s: %d\n", way_names[i], ways[i]);
	for (int i = 0; i < WAY_COUNT; i++)
		assert_true(ways[i] > 0);
}

static void is_no_worse_than_admm(void **unused)
{
	(void)unused;
	static const char *const patterns[] = {"50%", "2:4", "4:8", "70%", "90%"};
	for (int i = 0; i < 10; i++) {
		solver_fixture f;
		fp_solution solution;
		double drift = i < 5 ? 0 : 0.2;
		make_fixture(&f, 24, 64, 500, drift, 81 + (uint64_t)i, patterns[i % 5]);
		fixture_set(&f, "method=admm");
		assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
		double admm = fixture_residual(&f, f.V);
		free_fixture(&f);
		make_fixture(&f, 24, 64, 500, drift, 81 + (uint64_t)i, patterns[i % 5]);
		solve_alps(&f);
		check_pattern(&f, patterns[i % 5]);
		double alps = fixture_residual(&f, f.V);
		free_fixture(&f);
		print_message("%s: ADMM %g, ALPS %g\n", patterns[i % 5], admm, alps);
		assert_true(alps <= 1.001 * admm);
	}
}

/* Fewer tokens than inputs, and an input that is always zero. */
static void survives_deficient_inputs(void **unused)
{
	(void)unused;
	enum { M = 12, N = 32, P = 9 };
	static const char *const patterns[] = {"50%", "2:4", "70%", "0%"};
	double W[M * N];
	double X[P * N];
	uint64_t seed = 91;
	for (int i = 0; i < M * N; i++)
		W[i] = (double)random_normal(&seed);
	for (int i = 0; i < P * N; i++)
		X[i] = i % N == 5 ? 0 : (double)random_normal(&seed);
	for (int i = 0; i < 4; i++) {
		solver_fixture f;
		make_fixture_from(&f, M, N, P, W, X, X, patterns[i]);
		solve_alps(&f);
		check_pattern(&f, patterns[i]);
		double error = fixture_residual(&f, f.V);
		double want[M * N];
		unsigned char mask[M * N];
		reference(&f, want, mask);
		double limit = 1.01 * verify_residual(want, X, W, X, M, N, P) + 1e-5 * sqrt(f.energy);
		print_message("%s: error %g, limit %g\n", patterns[i], error, limit);
		assert_true(error <= limit);
		free_fixture(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_the_reference),
		cmocka_unit_test(is_no_worse_than_admm),
		cmocka_unit_test(survives_deficient_inputs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
