/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers with many equal magnitudes, zeros of both signs, subnormal and huge ones. */
static sample sample_tied(contract *c, int64_t rows, int64_t cols)
{
	double *values = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++) {
		int64_t kind = contract_random(c, 0, 9);
		values[k] = (double)random_normal(&c->seed);
		if (kind < 4)
			values[k] = (double)contract_random(c, -3, 3) / 2;
		if (kind == 4)
			values[k] = contract_random(c, 0, 1) ? -0.0 : 1e-42;
		if (kind == 5)
			values[k] *= 1e30;
	}
	sample s = sample_from(c, rows, cols, values);
	free(values);
	return s;
}

static void check_fista(contract *c, int64_t rows, int64_t cols, fp_momentum rule, float step, float threshold,
						float momentum)
{
	sample G = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), P = sample_normal(c, rows, cols);
	double *y = new_doubles(rows * cols), *p = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	double want = 0, got = -1, slack = 1e-12;
	for (int64_t k = 0; k < rows * cols; k++) {
		double z = Y.value[k] - (double)step * G.value[k], size = fabs(z) - (double)threshold;
		p[k] = size > 0 ? copysign(size, z) : 0;
		y[k] = p[k] + (double)momentum * (p[k] - (rule == FP_MOMENTUM_STANDARD ? P.value[k] : Y.value[k]));
		want += (p[k] - P.value[k]) * (p[k] - P.value[k]);
		/* five operations in float on numbers of this size */
		double reach = fabs(Y.value[k]) + fabs((double)step * G.value[k]) + (double)threshold + fabs(P.value[k]);
		bound[k] = FLOAT_EPSILON * 4 * reach * (1 + fabs((double)momentum));
		slack += 4 * bound[k] * reach;
	}
	assert_ok(c->ctx, c->be->ops->fista_step(c->be, rule, step, threshold, momentum, G.view, Y.view, P.view, &got));
	sample_expect_within(c, &P, p, bound, "fista_step, P");
	sample_expect_within(c, &Y, y, bound, "fista_step, Y");
	assert_true(fabs(got - want) <= slack);
	double *now = sample_read(c, &P);
	for (int64_t k = 0; k < rows * cols; k++)
		assert_false(now[k] == 0 && signbit(now[k])); /* never −0.0 */
	assert_ok(c->ctx, c->be->ops->fista_step(c->be, rule, step, threshold, momentum, G.view, Y.view, P.view, NULL));
	free(now);
	free(y);
	free(p);
	free(bound);
	sample_free(c, &G);
	sample_free(c, &Y);
	sample_free(c, &P);
}

static void test_fista_step(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		for (int rule = 0; rule < 2; rule++) {
			check_fista(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, 0.3f, 0.5f, 0.7f);
			check_fista(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, 0.01f, 0, 0);
		}
	}
	/* what the threshold swallows is +0.0, from both sides and at threshold 0; a NaN is not swallowed */
	const double y[] = {0.25, -0.25, -0.0, 0, NAN};
	for (int k = 0; k < 2; k++) {
		sample G = sample_filled(c, 1, 5, 0), Y = sample_from(c, 1, 5, y), P = sample_filled(c, 1, 5, 0);
		assert_ok(c->ctx, c->be->ops->fista_step(c->be, FP_MOMENTUM_STANDARD, 1, k ? 0.0f : 0.25f, 0, G.view, Y.view,
												 P.view, NULL));
		double *p = sample_read(c, &P);
		assert_true(isnan(p[4]));
		for (int i = k ? 2 : 0; i < 4; i++)
			assert_true(p[i] == 0 && !signbit(p[i]));
		free(p);
		sample_free(c, &G);
		sample_free(c, &Y);
		sample_free(c, &P);
	}
}

/* A matrix of a 16-bit type, or a float view as it is, with the numbers it then holds. */
static fp_matrix narrow_of(contract *c, sample *s, fp_dtype dtype)
{
	fp_matrix narrow;
	assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, s->view.rows, s->view.cols, dtype));
	assert_ok(c->ctx, c->be->ops->copy(c->be, narrow, s->view));
	assert_ok(c->ctx, c->be->ops->copy(c->be, s->view, narrow));
	double *value = sample_read(c, s);
	memcpy(s->value, value, (size_t)fp_matrix_size(s->view) * sizeof *value);
	free(value);
	return narrow;
}

/* halve() and rejoin(): nothing is lost beside what V − W rounds, and the upper half is D in bf16. */
static void check_halves(contract *c, int64_t rows, int64_t cols, const fp_matrix *W, sample *V, sample *Y,
						 fp_matrix *D)
{
	double *bound = new_doubles(rows * cols), *high = new_doubles(rows * cols);
	sample H = sample_filled(c, rows, cols, NAN);
	assert_ok(c->ctx, fp_matrix_new(c->be, D, 2 * rows, cols, FP_BF16));
	assert_ok(c->ctx, c->be->ops->halve(c->be, Y->view, *W, *D));
	assert_ok(c->ctx, c->be->ops->rejoin(c->be, *W, *D, V->view));
	assert_ok(c->ctx, c->be->ops->copy(c->be, H.view, fp_matrix_rows(*D, 0, rows)));
	double *back = sample_read(c, V), *upper = sample_read(c, &H);
	sample wide = sample_filled(c, rows, cols, 0);
	assert_ok(c->ctx, c->be->ops->copy(c->be, wide.view, *W));
	double *w = sample_read(c, &wide);
	for (int64_t k = 0; k < rows * cols; k++) {
		high[k] = Y->value[k] - w[k];
		bound[k] = ldexp(fabs(high[k]), -8) + FLOAT_EPSILON * (fabs(Y->value[k]) + fabs(w[k]));
		if (fabs(back[k] - Y->value[k]) > FLOAT_EPSILON * (fabs(Y->value[k]) + fabs(w[k])))
			fail_msg("rejoin: %g came back as %g beside %g", Y->value[k], back[k], w[k]);
		if (fabs(upper[k] - high[k]) > bound[k])
			fail_msg("halve: the upper half of %g is %g", high[k], upper[k]);
	}
	free(back);
	free(upper);
	free(w);
	free(bound);
	free(high);
	sample_free(c, &H);
	sample_free(c, &wide);
}

/* The same step from G − R at Y = W + D, with D in halves. */
static void check_fista_near(contract *c, int64_t rows, int64_t cols, fp_momentum rule, bool with_r, fp_dtype type)
{
	sample G = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), P = sample_normal(c, rows, cols);
	sample R = sample_normal(c, rows, cols), W = sample_normal(c, rows, cols), V = sample_filled(c, rows, cols, NAN);
	double *y = new_doubles(rows * cols), *bound = new_doubles(rows * cols), change = -1, expected = 0, sum = 0;
	fp_matrix r = narrow_of(c, &R, FP_BF16), w = narrow_of(c, &W, type), g = narrow_of(c, &G, FP_BF16), out;
	fp_fista_near near = {.rule = rule, .step = 0.3f, .threshold = 0.2f, .momentum = 0.7f};
	near.W = type == FP_F32 ? W.view : w;
	near.R = with_r ? r : (fp_matrix){0};
	near.P = rule == FP_MOMENTUM_LITERAL && !with_r ? (fp_matrix){0} : P.view;
	check_halves(c, rows, cols, &near.W, &V, &Y, &near.D);
	for (int64_t k = 0; k < rows * cols; k++) {
		double z = Y.value[k] - (double)0.3f * (G.value[k] - (with_r ? R.value[k] : 0)), size = fabs(z) - (double)0.2f;
		double p = size > 0 ? copysign(size, z) : 0;
		y[k] = p + (double)0.7f * (p - (rule == FP_MOMENTUM_STANDARD ? P.value[k] : Y.value[k]));
		/* ten operations in float on numbers of this size */
		bound[k] = FLOAT_EPSILON * 12 *
				   (fabs(Y.value[k]) + fabs(G.value[k]) + fabs(R.value[k]) + fabs(P.value[k]) + fabs(W.value[k]) + 1);
		expected += (p - P.value[k]) * (p - P.value[k]);
	}
	out = with_r ? g : G.view; /* both types of gradient hold the same numbers */
	assert_ok(c->ctx, c->be->ops->fista_step_near(c->be, &near, out, with_r ? &change : NULL));
	assert_ok(c->ctx, c->be->ops->rejoin(c->be, near.W, near.D, V.view));
	sample_expect_within(c, &V, y, bound, "fista_step_near");
	if (with_r)
		assert_true(fabs(change - expected) <= 1e-4 * expected + 1e-6);
	if (fp_matrix_is_absent(near.P))
		sample_expect(c, &P, P.value, 0, 0, "fista_step_near, P left alone");
	/* the sum that errors are told by, with the upper half only */
	sample H = sample_filled(c, rows, cols, NAN);
	assert_ok(c->ctx, c->be->ops->copy(c->be, H.view, fp_matrix_rows(near.D, 0, rows)));
	double *high = sample_read(c, &H), want = 0, size = 0;
	for (int64_t k = 0; k < rows * cols; k++) {
		double term = high[k] * (G.value[k] - 2 * (with_r ? R.value[k] : 0));
		want += term;
		size += fabs(term);
	}
	assert_ok(c->ctx, c->be->ops->near_sum(c->be, near.D, out, near.R, &sum));
	assert_true(fabs(sum - want) <= 1e-9 * size);
	free(high);
	free(y);
	free(bound);
	fp_matrix *narrow[] = {&near.D, &r, &w, &g};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
	sample *all[] = {&G, &Y, &P, &R, &W, &V, &H};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

/* Matrices without gaps, which are read in eights: the same numbers as those with gaps. And a NaN is seen. */
static void check_near_flat(contract *c)
{
	enum { ROWS = 6, COLS = 64 };
	sample G = sample_normal(c, ROWS, COLS), Y = sample_normal(c, ROWS, COLS), W = sample_normal(c, ROWS, COLS);
	sample V = sample_filled(c, ROWS, COLS, NAN);
	fp_matrix g = narrow_of(c, &G, FP_BF16), w = narrow_of(c, &W, FP_BF16), y, v, flat;
	fp_fista_near near = {.rule = FP_MOMENTUM_LITERAL, .step = 0.3f, .threshold = 0.2f, .momentum = 0.7f, .R = g};
	near.W = W.view;
	assert_ok(c->ctx, fp_matrix_new(c->be, &near.D, 2 * ROWS, COLS, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &flat, 2 * ROWS, COLS, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &y, ROWS, COLS, FP_F32));
	assert_ok(c->ctx, fp_matrix_new(c->be, &v, ROWS, COLS, FP_F32));
	assert_ok(c->ctx, c->be->ops->copy(c->be, y, Y.view));
	assert_ok(c->ctx, c->be->ops->halve(c->be, Y.view, W.view, near.D));
	assert_ok(c->ctx, c->be->ops->fista_step_near(c->be, &near, G.view, NULL));
	assert_ok(c->ctx, c->be->ops->rejoin(c->be, W.view, near.D, V.view));
	double *want = sample_read(c, &V), one, other;
	assert_ok(c->ctx, c->be->ops->near_sum(c->be, near.D, G.view, g, &one));
	near.W = w;
	near.D = flat;
	assert_ok(c->ctx, c->be->ops->halve(c->be, y, w, flat));
	assert_ok(c->ctx, c->be->ops->fista_step_near(c->be, &near, g, NULL));
	assert_ok(c->ctx, c->be->ops->rejoin(c->be, w, flat, v));
	assert_ok(c->ctx, c->be->ops->copy(c->be, V.view, v));
	sample_expect(c, &V, want, 0, 0, "fista_step_near, flat");
	assert_ok(c->ctx, c->be->ops->near_sum(c->be, flat, g, g, &other));
	assert_true(fabs(one - other) <= 1e-9 * (fabs(one) + ROWS * COLS));
	assert_ok(c->ctx, c->be->ops->fill(c->be, v, NAN));
	assert_ok(c->ctx, c->be->ops->halve(c->be, v, w, flat));
	assert_ok(c->ctx, c->be->ops->near_sum(c->be, flat, g, g, &other));
	assert_true(isnan(other));
	free(want);
	fp_matrix *narrow[] = {&g, &w, &y, &v, &flat};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
	sample *all[] = {&G, &Y, &W, &V};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

/* The product that goes with it: bf16 operands as they are; one that is not is rounded. */
static void check_narrow_product(contract *c)
{
	sample A = sample_normal(c, 40, 24), B = sample_normal(c, 56, 24), C = sample_filled(c, 40, 56, NAN);
	fp_matrix a, b, whole;
	assert_ok(c->ctx, fp_matrix_new(c->be, &whole, 40, 24, FP_F32));
	assert_ok(c->ctx, fp_matrix_new(c->be, &a, 40, 24, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &b, 56, 24, FP_BF16));
	assert_ok(c->ctx, c->be->ops->copy(c->be, whole, A.view)); /* rows without gaps may be rounded another way */
	assert_ok(c->ctx, c->be->ops->copy(c->be, a, whole));
	assert_ok(c->ctx, c->be->ops->copy(c->be, b, B.view));
	double *want = new_doubles(40 * 56), *bound = new_doubles(40 * 56);
	for (int64_t k = 0; k < 40 * 56; k++)
		for (int64_t e = 0; e < 24; e++) {
			double term = A.value[k / 56 * 24 + e] * B.value[k % 56 * 24 + e];
			want[k] += term;
			bound[k] += ldexp(fabs(term), -7); /* two operands of 8 bits */
		}
	for (int which = 1; which < 4; which++) {
		assert_ok(c->ctx, c->be->ops->fill(c->be, C.view, NAN));
		assert_ok(c->ctx, c->be->ops->gemm(c->be, 1, which & 1 ? a : A.view, FP_PLAIN, which & 2 ? b : B.view,
										   FP_TRANSPOSED, 0, C.view));
		sample_expect_within(c, &C, want, bound, "gemm of bf16");
	}
	fp_matrix narrow;
	assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, 40, 56, FP_BF16));
	assert_ok(c->ctx, c->be->ops->gemm(c->be, 1, a, FP_PLAIN, b, FP_TRANSPOSED, 0, narrow));
	assert_ok(c->ctx, c->be->ops->copy(c->be, C.view, narrow));
	for (int64_t k = 0; k < 40 * 56; k++)
		bound[k] += ldexp(fabs(want[k]), -8);
	sample_expect_within(c, &C, want, bound, "gemm of bf16 to bf16");
	fp_matrix_free(c->be, &narrow);
	free(want);
	free(bound);
	fp_matrix_free(c->be, &whole);
	fp_matrix_free(c->be, &a);
	fp_matrix_free(c->be, &b);
	sample_free(c, &A);
	sample_free(c, &B);
	sample_free(c, &C);
}

static void test_clean_zeros(void **state)
{
	contract *c = *state;
	if (!c->be->ops->clean_zeros)
		skip();
	const double special[] = {0.0, -0.0};
	for (int i = 0; i < contract_shape_count; i++) {
		sample X = sample_mixed(c, contract_shapes[i].rows, contract_shapes[i].cols, 1, special, 2);
		int64_t zeros = 0, got = -1, size = fp_matrix_size(X.view);
		for (int64_t k = 0; k < size; k++)
			zeros += X.value[k] == 0;
		assert_ok(c->ctx, c->be->ops->clean_zeros(c->be, X.view, &got));
		assert_int_equal(got, zeros);
		double *after = sample_read(c, &X);
		for (int64_t k = 0; k < size; k++)
			assert_true(after[k] == X.value[k] && (after[k] != 0 || !signbit(after[k])));
		free(after);
		sample_free(c, &X);
	}
}

static void test_fista_step_near(void **state)
{
	contract *c = *state;
	if (!c->be->ops->fista_step_near)
		skip();
	for (int i = 0; i < contract_shape_count; i++) {
		for (int rule = 0; rule < 2; rule++) {
			const fp_dtype type = i % 3 == 0 ? FP_BF16 : i % 3 == 1 ? FP_F16 : FP_F32;
			check_fista_near(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, true, type);
			check_fista_near(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, false, type);
		}
	}
	check_near_flat(c);
	check_narrow_product(c);
}

typedef struct ranked {
	double size;
	int64_t index;
} ranked;

static int by_size(const void *a, const void *b)
{
	const ranked *x = a, *y = b;
	if (x->size != y->size)
		return x->size < y->size ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

/* 0 at the `zeros` smallest of count, the first of equals first. */
static void reference_smallest(const double *score, int64_t count, int64_t zeros, double *mask)
{
	ranked *all = malloc((size_t)(count + 1) * sizeof *all);
	for (int64_t k = 0; k < count; k++) {
		all[k] = (ranked){fabs(score[k]), k};
		mask[k] = 1;
	}
	qsort(all, (size_t)count, sizeof *all, by_size);
	for (int64_t k = 0; k < zeros; k++)
		mask[all[k].index] = 0;
	free(all);
}

static void test_mask_unstructured(void **state)
{
	contract *c = *state;
	static const double sparsities[] = {0, 0.1, 0.5, 0.7, 0.9, 0.999, 1};
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		for (size_t s = 0; s < sizeof sparsities / sizeof *sparsities; s++) {
			fp_pattern pattern = {.sparsity = sparsities[s]};
			sample score = s % 2 ? sample_tied(c, rows, cols) : sample_normal(c, rows, cols),
				   mask = sample_mask(c, rows, cols);
			double *want = new_doubles(rows * cols);
			reference_smallest(score.value, rows * cols, (int64_t)floor(sparsities[s] * (double)(rows * cols)), want);
			assert_ok(c->ctx, c->be->ops->mask_smallest(c->be, score.view, &pattern, mask.view));
			sample_expect(c, &mask, want, 0, 0, "mask_smallest"); /* exact */
			for (int64_t r = 0; r < rows; r++)
				reference_smallest(score.value + r * cols, cols, (int64_t)floor(sparsities[s] * (double)cols),
								   want + r * cols);
			assert_ok(c->ctx, c->be->ops->mask_rows(c->be, score.view, &pattern, mask.view));
			sample_expect(c, &mask, want, 0, 0, "mask_rows");
			free(want);
			sample_free(c, &score);
			sample_free(c, &mask);
		}
	}
}

/* Of each group the largest stay, the first of equals: the reverse order of pruning. */
static void reference_groups(const double *score, int64_t cols, int64_t kept, int64_t group, double *mask)
{
	for (int64_t begin = 0; begin < cols; begin += group) {
		int64_t size = cols - begin < group ? cols - begin : group;
		int64_t keep = (int64_t)ceil((double)(kept * size) / (double)group);
		for (int64_t k = 0; k < size; k++)
			mask[begin + k] = 0;
		for (int64_t n = 0; n < keep; n++) {
			int64_t best = -1;
			for (int64_t k = begin; k < begin + size; k++) {
				if (mask[k] == 0 && (best < 0 || fabs(score[k]) > fabs(score[best])))
					best = k;
			}
			mask[best] = 1;
		}
	}
}

static void test_mask_groups(void **state)
{
	contract *c = *state;
	static const int64_t patterns[][2] = {{2, 4}, {1, 4}, {4, 8}, {3, 8}, {0, 4}, {4, 4}, {1, 1}, {5, 16}, {1, 3}};
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
			fp_pattern pattern = {patterns[p][0], patterns[p][1], 1 - (double)patterns[p][0] / (double)patterns[p][1]};
			sample score = sample_tied(c, rows, cols), mask = sample_mask(c, rows, cols);
			double *want = new_doubles(rows * cols);
			for (int64_t r = 0; r < rows; r++)
				reference_groups(score.value + r * cols, cols, patterns[p][0], patterns[p][1], want + r * cols);
			assert_ok(c->ctx, c->be->ops->mask_smallest(c->be, score.view, &pattern, mask.view));
			sample_expect(c, &mask, want, 0, 0, "mask_smallest by groups");
			free(want);
			sample_free(c, &score);
			sample_free(c, &mask);
		}
	}
}

/* The caller checks for NaN; should one slip through, the count must hold all the same. */
static void test_mask_with_nan(void **state)
{
	contract *c = *state;
	double *values = new_doubles(35);
	for (int k = 0; k < 35; k++)
		values[k] = k % 5 == 0 ? NAN : k % 5 == 1 ? INFINITY : (double)k;
	sample score = sample_from(c, 5, 7, values), mask = sample_mask(c, 5, 7);
	const fp_pattern patterns[] = {{.sparsity = 0.5}, {2, 4, 0.5}};
	for (int p = 0; p < 2; p++) {
		assert_ok(c->ctx, c->be->ops->mask_smallest(c->be, score.view, &patterns[p], mask.view));
		double *got = sample_read(c, &mask), kept = 0;
		for (int k = 0; k < 35; k++)
			kept += got[k];
		assert_true(kept == (p == 0 ? 18 : 5 * 4));
		free(got);
	}
	free(values);
	sample_free(c, &score);
	sample_free(c, &mask);
}

static void test_apply_and_distance(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols, want = 0, got = -1;
		sample X = sample_normal(c, rows, cols), a = sample_mask(c, rows, cols), b = sample_mask(c, rows, cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			want += a.value[k] != b.value[k];
			X.value[k] = a.value[k] != 0 ? X.value[k] : 0;
		}
		assert_ok(c->ctx, c->be->ops->mask_distance(c->be, a.view, b.view, &got));
		assert_int_equal(got, want);
		assert_ok(c->ctx, c->be->ops->apply_mask(c->be, a.view, X.view));
		sample_expect(c, &X, X.value, 0, 0, "apply_mask");
		double *now = sample_read(c, &X);
		for (int64_t k = 0; k < rows * cols; k++)
			assert_false(a.value[k] == 0 && signbit(now[k]));
		free(now);
		sample_free(c, &X);
		sample_free(c, &a);
		sample_free(c, &b);
	}
}

/* With small whole numbers everything is exact, so the mask must be the one the reference chooses. */
static sample sample_whole(contract *c, int64_t rows, int64_t cols)
{
	double *values = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++)
		values[k] = (double)contract_random(c, -9, 9);
	sample s = sample_from(c, rows, cols, values);
	free(values);
	return s;
}

static void check_support_step(contract *c, int64_t rows, int64_t cols, const fp_pattern *pattern, bool with_r)
{
	sample G = sample_whole(c, rows, cols), S = sample_whole(c, rows, cols), W = sample_whole(c, rows, cols);
	sample R = sample_whole(c, rows, cols), T = sample_filled(c, rows, cols, NAN), mask = sample_mask(c, rows, cols);
	sample other = sample_mask(c, rows, cols);
	double *s = new_doubles(rows * cols), *t = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++)
		s[k] = G.value[k] + W.value[k] + (mask.value[k] != 0 ? 0 : S.value[k]);
	sample score = sample_from(c, rows, cols, s);
	assert_ok(c->ctx, c->be->ops->mask_smallest(c->be, score.view, pattern, other.view));
	double *want = sample_read(c, &other);
	for (int64_t k = 0; k < rows * cols; k++) {
		s[k] *= want[k] != 0 ? 1 : 0.5;
		t[k] = 0.25 * ((want[k] != 0 ? s[k] : -s[k]) - W.value[k]) + (with_r ? R.value[k] : 0);
	}
	fp_support_rule rule = {*pattern, 0.25f, 0.5f, W.view, with_r ? R.view : (fp_matrix){0}};
	assert_ok(c->ctx, c->be->ops->support_step(c->be, &rule, G.view, S.view, mask.view, T.view));
	sample_expect(c, &mask, want, 0, 0, "support_step, mask");
	sample_expect(c, &S, s, 0, 0, "support_step, S");
	sample_expect(c, &T, t, 0, 0, "support_step, T");
	free(want);
	free(s);
	free(t);
	sample *all[] = {&G, &S, &W, &R, &T, &mask, &other, &score};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

static void test_support_step(void **state)
{
	contract *c = *state;
	const fp_pattern patterns[] = {{.sparsity = 0.5}, {2, 4, 0.5}, {1, 4, 0.75}, {4, 8, 0.5}};
	for (int i = 0; i < contract_shape_count; i++)
		for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
			check_support_step(c, contract_shapes[i].rows, contract_shapes[i].cols, &patterns[p], (p + (size_t)i) % 2);
	check_support_step(c, 24, 64, &patterns[1], true); /* whole groups */
}

CONTRACT_TESTS(pruning, cmocka_unit_test(test_fista_step), cmocka_unit_test(test_fista_step_near),
			   cmocka_unit_test(test_clean_zeros), cmocka_unit_test(test_mask_unstructured),
			   cmocka_unit_test(test_mask_groups), cmocka_unit_test(test_mask_with_nan),
			   cmocka_unit_test(test_apply_and_distance), cmocka_unit_test(test_support_step));
