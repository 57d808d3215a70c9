/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract_grid.c: quantised weights. What is rounded must be what tensor/grid_format.c rounds to, which has tests of its
 * own. Descent is repeated in double with the weights that the backend chose: at every choice, no point of the grid may be
 * clearly nearer. (Weights cannot be compared directly, because a number in the middle of two points may go either way.)
 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>

typedef struct grid_case {
	const char *format;
	fp_dtype dtype;
	int64_t rows, groups, size; /* of a group */
} grid_case;

static const grid_case cases[] = {
	{"int4", FP_BF16, 5, 3, 32},      {"int4-asym", FP_BF16, 7, 2, 43}, {"int8", FP_F16, 3, 1, 64},
	{"fp8", FP_F32, 9, 1, 50},        {"int4", FP_F32, 1, 1, 1},        {"int4-asym", FP_F16, 70, 4, 64},
	{"int4-g32", FP_BF16, 33, 5, 32}, {"fp8", FP_BF16, 4, 1, 128},      {"int4", FP_F16, 0, 2, 8},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* A grid of samples; freed with its samples. */
typedef struct grid_sample {
	fp_grid grid;
	sample scale, zero;
	bool zeros;
} grid_sample;

/* Scales of about `size`, numbers of the type. */
static grid_sample grid_new(contract *c, const grid_case *k, double size)
{
	grid_sample out = {.grid = {.format = fp_grid_format_named(k->format), .dtype = k->dtype}};
	const int64_t count = k->rows * k->groups;
	double *scale = new_doubles(count), *zero = new_doubles(count);
	for (int64_t i = 0; i < count; i++) {
		scale[i] = fp_round_to_type(k->dtype, (float)(size * (1.5 + (double)random_uniform(&c->seed))));
		zero[i] = (double)contract_random(c, -8, 7);
	}
	out.zeros = !out.grid.format->symmetric;
	out.scale = sample_from(c, k->rows, k->groups, scale);
	out.grid.scale = out.scale.view;
	if (out.zeros) {
		out.zero = sample_from(c, k->rows, k->groups, zero);
		out.grid.zero = out.zero.view;
	}
	free(scale);
	free(zero);
	return out;
}

static void grid_free(contract *c, grid_sample *g)
{
	sample_free(c, &g->scale);
	if (g->zeros)
		sample_free(c, &g->zero);
}

static float nearest(const grid_sample *g, int64_t at, double x)
{
	float scale = (float)g->scale.value[at], zero = g->zeros ? (float)g->zero.value[at] : 0.0F;
	return fp_grid_value(g->grid.dtype, scale, zero, fp_grid_code(g->grid.format, scale, zero, (float)x));
}

/* Weights of which a third is zero. */
static sample sparse_sample(contract *c, int64_t rows, int64_t cols, double size)
{
	double *v = new_doubles(rows * cols);
	for (int64_t i = 0; i < rows * cols; i++)
		v[i] = contract_random(c, 0, 2) == 0 ? 0 : size * (double)random_normal(&c->seed);
	sample out = sample_from(c, rows, cols, v);
	free(v);
	return out;
}

static void test_round(void **state)
{
	contract *c = *state;
	for (int k = 0; k < CASES; k++) {
		const int64_t cols = cases[k].groups * cases[k].size;
		grid_sample g = grid_new(c, &cases[k], 0.02);
		sample X = sparse_sample(c, cases[k].rows, cols, 0.1), V = sample_normal(c, cases[k].rows, cols);
		double *want = new_doubles(cases[k].rows * cols);
		for (int64_t i = 0; i < cases[k].rows * cols; i++)
			want[i] = nearest(&g, i / cols * cases[k].groups + i % cols / cases[k].size, X.value[i]);
		assert_ok(c->ctx, c->be->grid->round(c->be, &g.grid, X.view, V.view));
		sample_expect(c, &V, want, 0, 0, "grid round");
		assert_ok(c->ctx, c->be->grid->round(c->be, &g.grid, X.view, X.view)); /* in place */
		sample_expect(c, &X, want, 0, 0, "grid round in place");
		free(want);
		grid_free(c, &g);
		sample_free(c, &X);
		sample_free(c, &V);
	}
}

/* Σ weight·error² of a group with one of the candidates, whose scale and zero point are written. */
static double candidate_error(const grid_case *k, const double *weight, const double *v, double shrink, float *scale,
							  float *zero)
{
	const fp_grid_format *format = fp_grid_format_named(k->format);
	float low = 0, high = 0;
	double sum = 0;
	for (int64_t j = 0; j < k->size; j++) {
		low = fminf(low, (float)v[j]);
		high = fmaxf(high, (float)v[j]);
	}
	fp_grid_scale_of(fp_grid_rule_of(format, k->dtype), format->symmetric, low, high, (float)shrink, scale, zero);
	for (int64_t j = 0; j < k->size; j++) {
		double error =
			(double)fp_grid_value(k->dtype, *scale, *zero, fp_grid_code(format, *scale, *zero, (float)v[j])) - v[j];
		sum += weight[j] * error * error;
	}
	return sum;
}

static void check_fit(contract *c, const grid_case *k, int count)
{
	const float step = 0.05F;
	const int64_t cols = k->groups * k->size;
	grid_sample g = grid_new(c, k, 1);
	sample V = sparse_sample(c, k->rows, cols, 0.1);
	double *numbers = new_doubles(cols);
	for (int64_t j = 0; j < cols; j++)
		numbers[j] = 0.1 + (double)j / (double)cols;
	sample weight = sample_from(c, 1, cols, numbers);
	free(numbers);
	assert_ok(c->ctx, c->be->grid->fit(c->be, weight.view, count, step, V.view, &g.grid));
	double *scales = sample_read(c, &g.scale), *zeros = g.zeros ? sample_read(c, &g.zero) : NULL;
	for (int64_t i = 0; i < k->rows * k->groups; i++) {
		const double *v = V.value + i / k->groups * cols + i % k->groups * k->size;
		const double *w = weight.value + i % k->groups * k->size;
		double least = INFINITY, got = INFINITY;
		for (int at = 0; at < count; at++) {
			float scale, zero;
			double error = candidate_error(k, w, v, (double)(1.0F - (float)at * step), &scale, &zero);
			least = fmin(least, error);
			if ((double)scale == scales[i] && (!zeros || (double)zero == zeros[i]))
				got = fmin(got, error);
		}
		assert_true(got <= least * (1 + 1e-9)); /* one of the candidates, and none is better */
	}
	free(scales);
	free(zeros);
	grid_free(c, &g);
	sample_free(c, &V);
	sample_free(c, &weight);
}

static void test_fit(void **state)
{
	contract *c = *state;
	for (int k = 0; k < CASES; k++) {
		check_fit(c, &cases[k], 1);
		check_fit(c, &cases[k], 7);
	}
}

/* A positive definite matrix with one input that is always zero. */
static sample gram_sample(contract *c, int64_t n)
{
	double *x = new_doubles(2 * n * n), *a = new_doubles(n * n);
	for (int64_t i = 0; i < 2 * n * n; i++)
		x[i] = n > 2 && i % n == n / 2 ? 0 : (double)random_normal(&c->seed);
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < n; j++)
			for (int64_t t = 0; t < 2 * n; t++)
				a[i * n + j] += x[t * n + i] * x[t * n + j];
	sample out = sample_from(c, n, n, a);
	free(x);
	free(a);
	return out;
}

static void check_descend(contract *c, const grid_case *k)
{
	const int64_t n = k->size;
	grid_sample g = grid_new(c, k, 0.02);
	sample A = gram_sample(c, n), G = sample_normal(c, k->rows, n), D = sample_normal(c, k->rows, n);
	sample X = sparse_sample(c, k->rows, n, 0.1), V = sparse_sample(c, k->rows, n, 0.1);
	assert_ok(c->ctx, c->be->grid->round(c->be, &g.grid, V.view, V.view));
	double *before = sample_read(c, &V);
	assert_ok(c->ctx, c->be->grid->descend(c->be, &g.grid, A.view, X.view, G.view, V.view, D.view));
	double *after = sample_read(c, &V), *change = sample_read(c, &D), *slope = new_doubles(n);
	for (int64_t i = 0; i < k->rows; i++) {
		for (int64_t j = 0; j < n; j++)
			slope[j] = G.value[i * n + j];
		for (int64_t j = 0; j < n; j++) {
			const double *a = A.value + j * n, v = before[i * n + j], now = after[i * n + j];
			assert_true((float)change[i * n + j] == (float)now - (float)v);
			if (X.value[i * n + j] == 0 || a[j] == 0) {
				assert_true(now == v);
				continue;
			}
			const double best = v - slope[j] / a[j];
			assert_true(now == (double)nearest(&g, i, now)); /* on the grid */
			/* in float, the slope has the errors of n updates */
			assert_true(fabs(now - best) <=
						fabs((double)nearest(&g, i, best) - best) * 1.001 + 1e-4 * fabs(best) + 1e-5);
			for (int64_t l = 0; l < n; l++)
				slope[l] += (now - v) * a[l];
		}
	}
	sample_expect(c, &G, G.value, 0, 0, "G after descend");
	sample_expect(c, &A, A.value, 0, 0, "A after descend");
	free(before);
	free(after);
	free(change);
	free(slope);
	grid_free(c, &g);
	sample *all[] = {&A, &G, &D, &X, &V};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

static void test_descend(void **state)
{
	contract *c = *state;
	for (int k = 0; k < CASES; k++)
		if (cases[k].groups == 1 && cases[k].size <= FP_GRID_BLOCK)
			check_descend(c, &cases[k]);
	static const grid_case more[] = {
		{"int4", FP_BF16, 40, 1, 64}, {"int4-asym", FP_F32, 33, 1, 33}, {"int4", FP_F16, 6, 1, 31}};
	for (size_t k = 0; k < sizeof more / sizeof *more; k++)
		check_descend(c, &more[k]);
	grid_sample g = grid_new(c, &(grid_case){"int4", FP_F32, 2, 1, FP_GRID_BLOCK + 1}, 0.1);
	sample A = gram_sample(c, FP_GRID_BLOCK + 1), V = sample_normal(c, 2, FP_GRID_BLOCK + 1);
	sample X = sample_normal(c, 2, FP_GRID_BLOCK + 1), G = sample_normal(c, 2, FP_GRID_BLOCK + 1);
	assert_fails(c->ctx, FP_ERROR_INTERNAL, "does not hold",
				 c->be->grid->descend(c->be, &g.grid, A.view, X.view, G.view, V.view, G.view));
	grid_free(c, &g);
	sample *all[] = {&A, &G, &X, &V};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

static void check_rescale(contract *c, const grid_case *k)
{
	const int64_t n = k->size;
	const double type = k->dtype == FP_F32 ? 0x1p-23 : k->dtype == FP_F16 ? 0x1p-10 : 0x1p-7;
	grid_sample g = grid_new(c, k, 0.02);
	sample A = gram_sample(c, n), G = sample_normal(c, k->rows, n), D = sample_normal(c, k->rows, n);
	sample V = sparse_sample(c, k->rows, n, 0.1), P = sample_normal(c, k->rows, n);
	assert_ok(c->ctx, c->be->grid->round(c->be, &g.grid, V.view, V.view));
	assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, V.view, FP_PLAIN, A.view, FP_PLAIN, 0, P.view));
	double *before = sample_read(c, &V), *product = sample_read(c, &P);
	assert_ok(c->ctx, c->be->grid->rescale(c->be, &g.grid, P.view, G.view, V.view, D.view));
	double *after = sample_read(c, &V), *change = sample_read(c, &D), *scales = sample_read(c, &g.scale);
	for (int64_t i = 0; i < k->rows; i++) {
		const float old = (float)g.scale.value[i], now = (float)scales[i],
					zero = g.zeros ? (float)g.zero.value[i] : 0.0F;
		double slope = 0, curvature = 0;
		for (int64_t j = 0; j < n; j++) {
			slope += before[i * n + j] * G.value[i * n + j];
			curvature += before[i * n + j] * product[i * n + j];
		}
		const double best = (double)old * (1 - slope / curvature), t = (double)now / (double)old - 1;
		if (now != old) {
			assert_true(fabs((double)now - best) <= type * fabs(best) && 2 * slope * t + curvature * t * t < 1e-6);
			assert_true(now == fp_round_to_type(k->dtype, now));
		} else if (curvature > 0 && best > 0) {
			assert_true(fabs(best - (double)old) <= type * (double)old); /* so small a step is lost */
		}
		for (int64_t j = 0; j < n; j++) {
			float code = fp_grid_code(g.grid.format, old, zero, (float)before[i * n + j]);
			assert_true(after[i * n + j] == (double)fp_grid_value(k->dtype, now, zero, code));
			assert_true((float)change[i * n + j] == (float)after[i * n + j] - (float)before[i * n + j]);
		}
	}
	free(before);
	free(product);
	free(after);
	free(change);
	free(scales);
	sample *all[] = {&A, &G, &D, &V, &P, &g.scale};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
	if (g.zeros)
		sample_free(c, &g.zero);
}

static void test_rescale(void **state)
{
	contract *c = *state;
	for (int k = 0; k < CASES; k++)
		if (cases[k].groups == 1)
			check_rescale(c, &cases[k]);
	static const grid_case more[] = {
		{"int4", FP_BF16, 40, 1, 128}, {"int4-asym", FP_F32, 33, 1, 33}, {"int4", FP_F16, 6, 1, 300}};
	for (size_t k = 0; k < sizeof more / sizeof *more; k++)
		check_rescale(c, &more[k]);
}

CONTRACT_TESTS(grid, cmocka_unit_test(test_round), cmocka_unit_test(test_fit), cmocka_unit_test(test_descend),
			   cmocka_unit_test(test_rescale));
