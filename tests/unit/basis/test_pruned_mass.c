/* SPDX-License-Identifier: Apache-2.0 */
/* The mass that a pattern removes, and its gradients with the removed set held fixed, against plain loops in double. */
#include "plain_mass.h"
#include "support.h"

#include "basis/pruned_mass.h"

#include <math.h>
#include <stdlib.h>

typedef struct mass_case {
	int64_t m, n;
	fp_pattern pattern;
} mass_case;

static const mass_case cases[] = {
	{1, 8, {.sparsity = 0.5}},   {16, 24, {.sparsity = 0.5}}, {40, 24, {.sparsity = 0.7}},
	{7, 13, {.sparsity = 0.25}}, {16, 24, {2, 4, 0.5}},       {5, 24, {1, 4, 0.75}},
	{9, 40, {4, 8, 0.5}},        {40, 64, {2, 4, 0.5}},       {3, 16, {3, 4, 0.25}},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static double *random_doubles(int64_t count, bool positive, uint64_t *seed)
{
	double *out = malloc((size_t)count * sizeof *out);
	for (int64_t i = 0; i < count; i++) {
		float x = random_normal(seed);
		out[i] = (double)(positive ? x * x + 0.01F : x); /* a float */
	}
	return out;
}

static void put(fp_backend *be, fp_matrix matrix, const double *values)
{
	int64_t count = fp_matrix_size(matrix);
	float *floats = malloc((size_t)count * sizeof *floats);
	for (int64_t i = 0; i < count; i++)
		floats[i] = (float)values[i];
	assert_ok(be->ctx, be->memory->upload(be, matrix, floats, FP_F32, matrix.cols));
	assert_ok(be->ctx, be->memory->synchronize(be));
	free(floats);
}

static float *take(fp_backend *be, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_ok(be->ctx, be->memory->download(be, out, FP_F32, matrix.cols, matrix));
	assert_ok(be->ctx, be->memory->synchronize(be));
	return out;
}

/* The slope of the fixed mass by *x. It is a square or linear: any step gives the exact one. */
static double slope(double *x, double weight, const unsigned char *removed, const double *W, const double *h, int64_t m,
					int64_t n)
{
	double kept = *x, step = 0.5, up, down;
	*x = kept + step;
	up = plain_sum(removed, W, h, m, n);
	*x = kept - step;
	down = plain_sum(removed, W, h, m, n);
	*x = kept;
	return weight * (up - down) / (2 * step);
}

static void check_close(double got, double want, double scale, const char *what, int which)
{
	if (!(fabs(got - want) <= 1e-5 * (fabs(want) + scale)))
		fail_msg("case %d: %s is %.9g, expected %.9g", which, what, got, want);
}

static void check_case(fp_backend *be, int which)
{
	const double weight = 0.37;
	const mass_case *c = &cases[which];
	int64_t m = c->m, n = c->n;
	uint64_t seed = 11 + (uint64_t)which;
	double *W = random_doubles(m * n, false, &seed), *h = random_doubles(n, true, &seed);
	unsigned char *removed = malloc((size_t)(m * n));
	fp_mass_space space;
	fp_matrix dW, dh, gradient;
	fp_mass mass = {.removed = 3, .all = 5}; /* it is added to */
	plain_removed(removed, W, h, m, n, &c->pattern);
	assert_ok(be->ctx, fp_mass_space_new(&space, be, m * n + 7, n + 3)); /* larger than needed */
	assert_ok(be->ctx, fp_matrix_new(be, &dW, m, n, FP_F32));
	assert_ok(be->ctx, fp_matrix_new(be, &dh, 1, n, FP_F32));
	assert_ok(be->ctx, fp_matrix_new(be, &gradient, 1, n, FP_F32));
	put(be, dW, W);
	put(be, dh, h);
	assert_ok(be->ctx, fp_pruned_mass(&space, be, &c->pattern, weight, dW, dh, gradient, &mass));
	double all = plain_sum(NULL, W, h, m, n);
	check_close(mass.removed - 3, weight * plain_sum(removed, W, h, m, n), 0.01 * all, "the removed mass", which);
	check_close(mass.all - 5, weight * all, 0, "the whole mass", which);
	float *by_w = take(be, dW), *by_h = take(be, gradient);
	for (int64_t i = 0; i < m * n; i++)
		check_close((double)by_w[i], slope(&W[i], weight, removed, W, h, m, n), 0.1, "a gradient by w", which);
	for (int64_t j = 0; j < n; j++)
		check_close((double)by_h[j], slope(&h[j], weight, removed, W, h, m, n), 0.1, "a gradient by h", which);
	free(by_w);
	free(by_h);
	/* without the gradient by h all else is the same */
	fp_mass again = {0};
	put(be, dW, W);
	assert_ok(be->ctx, fp_pruned_mass(&space, be, &c->pattern, weight, dW, dh, (fp_matrix){0}, &again));
	check_close(again.removed, mass.removed - 3, 0, "the mass without a gradient by h", which);
	fp_matrix_free(be, &dW);
	fp_matrix_free(be, &dh);
	fp_matrix_free(be, &gradient);
	fp_mass_space_free(be, &space);
	free(W);
	free(h);
	free(removed);
}

static void masses_and_gradients_are_those_of_plain_loops(void **state)
{
	fp_backend *be;
	assert_ok(*state, fp_backend_open(&be, *state, "cpu", 2));
	for (int i = 0; i < CASE_COUNT; i++)
		check_case(be, i);
	fp_backend_close(be);
}

/* An input that is always zero costs nothing, and gives neither a NaN nor an infinity. */
static void an_input_of_no_cost_has_no_gradient(void **state)
{
	enum { M = 3, N = 8 };
	fp_context *ctx = *state;
	fp_backend *be;
	fp_mass_space space;
	fp_matrix W, h, gradient;
	fp_mass mass = {0};
	uint64_t seed = 7;
	const fp_pattern half = {.sparsity = 0.5};
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	double *weights = random_doubles(M * N, false, &seed), *costs = random_doubles(N, true, &seed);
	costs[2] = 0;
	assert_ok(ctx, fp_mass_space_new(&space, be, M * N, N));
	assert_ok(ctx, fp_matrix_new(be, &W, M, N, FP_F32));
	assert_ok(ctx, fp_matrix_new(be, &h, 1, N, FP_F32));
	assert_ok(ctx, fp_matrix_new(be, &gradient, 1, N, FP_F32));
	put(be, W, weights);
	put(be, h, costs);
	assert_ok(ctx, fp_pruned_mass(&space, be, &half, 1, W, h, gradient, &mass));
	float *by_w = take(be, W), *by_h = take(be, gradient);
	assert_true(isfinite(mass.removed) && isfinite(mass.all));
	for (int64_t i = 0; i < M * N; i++)
		assert_true(i % N == 2 ? by_w[i] == 0 : isfinite(by_w[i]));
	assert_true(by_h[2] == 0);
	free(by_w);
	free(by_h);
	free(weights);
	free(costs);
	fp_matrix_free(be, &W);
	fp_matrix_free(be, &h);
	fp_matrix_free(be, &gradient);
	fp_mass_space_free(be, &space);
	fp_backend_close(be);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(masses_and_gradients_are_those_of_plain_loops, context_set_up,
										context_tear_down),
		cmocka_unit_test_setup_teardown(an_input_of_no_cost_has_no_gradient, context_set_up, context_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
