/* SPDX-License-Identifier: Apache-2.0 */
/* contract_delta.c: FISTA on V − W in 16-bit halves. */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A copy of the sample in another type; the sample's numbers are rounded to that type. */
static fp_matrix narrow_of(contract *c, sample *s, fp_dtype dtype)
{
	fp_matrix narrow;
	assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, s->view.rows, s->view.cols, dtype));
	assert_ok(c->ctx, c->be->memory->copy(c->be, narrow, s->view));
	assert_ok(c->ctx, c->be->memory->copy(c->be, s->view, narrow));
	double *value = sample_read(c, s);
	memcpy(s->value, value, (size_t)fp_matrix_size(s->view) * sizeof *value);
	free(value);
	return narrow;
}

/* split() and join() lose only the rounding of V − W, and the upper half is D in bf16. */
static void check_halves(contract *c, int64_t rows, int64_t cols, const fp_matrix *W, sample *V, sample *Y,
						 fp_matrix *D)
{
	double *bound = new_doubles(rows * cols), *high = new_doubles(rows * cols);
	sample H = sample_filled(c, rows, cols, NAN);
	assert_ok(c->ctx, fp_matrix_new(c->be, D, 2 * rows, cols, FP_BF16));
	assert_ok(c->ctx, c->be->delta->split(c->be, Y->view, *W, *D));
	assert_ok(c->ctx, c->be->delta->join(c->be, *W, *D, V->view));
	assert_ok(c->ctx, c->be->memory->copy(c->be, H.view, fp_matrix_rows(*D, 0, rows)));
	double *back = sample_read(c, V), *upper = sample_read(c, &H);
	sample wide = sample_filled(c, rows, cols, 0);
	assert_ok(c->ctx, c->be->memory->copy(c->be, wide.view, *W));
	double *w = sample_read(c, &wide);
	for (int64_t k = 0; k < rows * cols; k++) {
		high[k] = Y->value[k] - w[k];
		bound[k] = ldexp(fabs(high[k]), -8) + FLOAT_EPSILON * (fabs(Y->value[k]) + fabs(w[k]));
		if (fabs(back[k] - Y->value[k]) > FLOAT_EPSILON * (fabs(Y->value[k]) + fabs(w[k])))
			fail_msg("join: %g came back as %g with W = %g", Y->value[k], back[k], w[k]);
		if (fabs(upper[k] - high[k]) > bound[k])
			fail_msg("split: the upper half of %g is %g", high[k], upper[k]);
	}
	free(back);
	free(upper);
	free(w);
	free(bound);
	free(high);
	sample_free(c, &H);
	sample_free(c, &wide);
}

/* A FISTA step with the gradient G − R at Y = W + D. */
static void check_fista_delta(contract *c, int64_t rows, int64_t cols, fp_momentum rule, bool with_r, fp_dtype type)
{
	sample G = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), P = sample_normal(c, rows, cols);
	sample R = sample_normal(c, rows, cols), W = sample_normal(c, rows, cols), V = sample_filled(c, rows, cols, NAN);
	double *y = new_doubles(rows * cols), *bound = new_doubles(rows * cols), change = -1, expected = 0, sum = 0;
	fp_matrix r = narrow_of(c, &R, FP_BF16), w = narrow_of(c, &W, type), g = narrow_of(c, &G, FP_BF16), out;
	fp_delta_step delta = {.rule = rule, .step = 0.3f, .threshold = 0.2f, .momentum = 0.7f};
	delta.W = type == FP_F32 ? W.view : w;
	delta.R = with_r ? r : (fp_matrix){0};
	delta.P = rule == FP_MOMENTUM_LITERAL && !with_r ? (fp_matrix){0} : P.view;
	check_halves(c, rows, cols, &delta.W, &V, &Y, &delta.D);
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
	assert_ok(c->ctx, c->be->delta->step(c->be, &delta, out, with_r ? &change : NULL, NULL));
	assert_ok(c->ctx, c->be->delta->join(c->be, delta.W, delta.D, V.view));
	sample_expect_within(c, &V, y, bound, "step");
	if (with_r)
		assert_true(fabs(change - expected) <= 1e-4 * expected + 1e-6);
	if (fp_matrix_is_absent(delta.P))
		sample_expect(c, &P, P.value, 0, 0, "step, P left alone");
	/* sum() uses the upper half only */
	sample H = sample_filled(c, rows, cols, NAN);
	assert_ok(c->ctx, c->be->memory->copy(c->be, H.view, fp_matrix_rows(delta.D, 0, rows)));
	double *high = sample_read(c, &H), want = 0, size = 0;
	for (int64_t k = 0; k < rows * cols; k++) {
		double term = high[k] * (G.value[k] - 2 * (with_r ? R.value[k] : 0));
		want += term;
		size += fabs(term);
	}
	assert_ok(c->ctx, c->be->delta->sum(c->be, delta.D, out, delta.R, &sum));
	assert_true(fabs(sum - want) <= 2 * FLOAT_EPSILON * size);
	free(high);
	free(y);
	free(bound);
	fp_matrix *narrow[] = {&delta.D, &r, &w, &g};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
	sample *all[] = {&G, &Y, &P, &R, &W, &V, &H};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

/* Contiguous matrices, which take a faster path, give the same numbers as strided ones. NaN propagates. */
static void check_delta_flat(contract *c)
{
	enum { ROWS = 6, COLS = 64 };
	sample G = sample_normal(c, ROWS, COLS), Y = sample_normal(c, ROWS, COLS), W = sample_normal(c, ROWS, COLS);
	sample V = sample_filled(c, ROWS, COLS, NAN);
	fp_matrix g = narrow_of(c, &G, FP_BF16), w = narrow_of(c, &W, FP_BF16), y, v, flat;
	fp_delta_step delta = {.rule = FP_MOMENTUM_LITERAL, .step = 0.3f, .threshold = 0.2f, .momentum = 0.7f, .R = g};
	delta.W = W.view;
	assert_ok(c->ctx, fp_matrix_new(c->be, &delta.D, 2 * ROWS, COLS, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &flat, 2 * ROWS, COLS, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &y, ROWS, COLS, FP_F32));
	assert_ok(c->ctx, fp_matrix_new(c->be, &v, ROWS, COLS, FP_F32));
	assert_ok(c->ctx, c->be->memory->copy(c->be, y, Y.view));
	assert_ok(c->ctx, c->be->delta->split(c->be, Y.view, W.view, delta.D));
	assert_ok(c->ctx, c->be->delta->step(c->be, &delta, G.view, NULL, NULL));
	assert_ok(c->ctx, c->be->delta->join(c->be, W.view, delta.D, V.view));
	double *want = sample_read(c, &V), one, other;
	assert_ok(c->ctx, c->be->delta->sum(c->be, delta.D, G.view, g, &one));
	delta.W = w;
	fp_matrix_free(c->be, &delta.D);
	delta.D = flat;
	assert_ok(c->ctx,
			  fp_matrix_new(c->be, &delta.from, 2 * ROWS, COLS, FP_BF16)); /* a step that reads from another matrix */
	assert_ok(c->ctx, c->be->delta->split(c->be, y, w, delta.from));
	assert_ok(c->ctx, c->be->delta->step(c->be, &delta, g, NULL, NULL));
	assert_ok(c->ctx, c->be->delta->join(c->be, w, flat, v));
	assert_ok(c->ctx, c->be->memory->copy(c->be, V.view, v));
	sample_expect(c, &V, want, 0, 0, "step, flat");
	assert_ok(c->ctx, c->be->delta->sum(c->be, flat, g, g, &other));
	assert_true(fabs(one - other) <= 1e-9 * (fabs(one) + ROWS * COLS)); /* summed in another order */
	assert_ok(c->ctx, c->be->memory->fill(c->be, v, NAN));
	assert_ok(c->ctx, c->be->delta->split(c->be, v, w, flat));
	assert_ok(c->ctx, c->be->delta->sum(c->be, flat, g, g, &other));
	assert_true(isnan(other));
	free(want);
	fp_matrix *narrow[] = {&g, &w, &y, &v, &flat, &delta.from};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
	sample *all[] = {&G, &Y, &W, &V};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

/* Two F16 operands keep their 11 bits, so the error is an eighth of `bound`, which is for bf16. The result may be F16. */
static void check_half_product(contract *c, sample *A, fp_matrix B, sample *C, const double *want, const double *bound)
{
	int64_t size = fp_matrix_size(C->view);
	double *closer = new_doubles(size);
	fp_matrix a, out;
	for (int64_t k = 0; k < size; k++)
		closer[k] = bound[k] / 8;
	assert_ok(c->ctx, fp_matrix_new(c->be, &a, A->view.rows, A->view.cols, FP_F16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &out, C->view.rows, C->view.cols, FP_F16));
	assert_ok(c->ctx, c->be->memory->copy(c->be, a, A->view));
	assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, a, FP_PLAIN, B, FP_TRANSPOSED, 0, C->view));
	sample_expect_within(c, C, want, closer, "gemm of two f16");
	assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, a, FP_PLAIN, B, FP_TRANSPOSED, 0, out));
	assert_ok(c->ctx, c->be->memory->copy(c->be, C->view, out));
	for (int64_t k = 0; k < size; k++)
		closer[k] += ldexp(fabs(want[k]), -11);
	sample_expect_within(c, C, want, closer, "gemm of two f16 to f16");
	free(closer);
	fp_matrix_free(c->be, &a);
	fp_matrix_free(c->be, &out);
}

/* gemm() takes bf16 operands as they are and rounds others to bf16. */
static void check_narrow_product(contract *c)
{
	sample A = sample_normal(c, 40, 24), B = sample_normal(c, 56, 24), C = sample_filled(c, 40, 56, NAN);
	fp_matrix a, b, half, whole;
	assert_ok(c->ctx, fp_matrix_new(c->be, &whole, 40, 24, FP_F32));
	assert_ok(c->ctx, fp_matrix_new(c->be, &a, 40, 24, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &b, 56, 24, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &half, 56, 24, FP_F16));
	assert_ok(c->ctx, c->be->memory->copy(c->be, half, B.view));
	assert_ok(c->ctx, c->be->memory->copy(c->be, whole, A.view)); /* contiguous rows may be rounded by other code */
	assert_ok(c->ctx, c->be->memory->copy(c->be, a, whole));
	assert_ok(c->ctx, c->be->memory->copy(c->be, b, B.view));
	double *want = new_doubles(40 * 56), *bound = new_doubles(40 * 56);
	for (int64_t k = 0; k < 40 * 56; k++)
		for (int64_t e = 0; e < 24; e++) {
			double term = A.value[k / 56 * 24 + e] * B.value[k % 56 * 24 + e];
			want[k] += term;
			bound[k] += ldexp(fabs(term), -7); /* two operands of 8 bits */
		}
	for (int which = 1; which < 4; which++) {
		assert_ok(c->ctx, c->be->memory->fill(c->be, C.view, NAN));
		assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, which & 1 ? a : A.view, FP_PLAIN, which & 2 ? b : B.view,
											  FP_TRANSPOSED, 0, C.view));
		sample_expect_within(c, &C, want, bound, "gemm of bf16");
	}
	for (int which = 0; which < 2; which++) {
		assert_ok(c->ctx, c->be->memory->fill(c->be, C.view, NAN));
		assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, which ? a : A.view, FP_PLAIN, half, FP_TRANSPOSED, 0, C.view));
		sample_expect_within(c, &C, want, bound, "gemm of f16");
	}
	check_half_product(c, &A, half, &C, want, bound);
	fp_matrix narrow;
	assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, 40, 56, FP_BF16));
	assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, a, FP_PLAIN, b, FP_TRANSPOSED, 0, narrow));
	assert_ok(c->ctx, c->be->memory->copy(c->be, C.view, narrow));
	for (int64_t k = 0; k < 40 * 56; k++)
		bound[k] += ldexp(fabs(want[k]), -8);
	sample_expect_within(c, &C, want, bound, "gemm of bf16 to bf16");
	fp_matrix_free(c->be, &narrow);
	free(want);
	free(bound);
	fp_matrix_free(c->be, &whole);
	fp_matrix_free(c->be, &a);
	fp_matrix_free(c->be, &b);
	fp_matrix_free(c->be, &half);
	sample_free(c, &A);
	sample_free(c, &B);
	sample_free(c, &C);
}

/* round() chooses as mask_smallest() does, in contiguous and strided matrices. */
static void check_round_delta(contract *c, int64_t rows, int64_t cols, fp_pattern pattern, bool flat)
{
	sample V = sample_normal(c, rows, cols), W = sample_normal(c, rows, cols), mask = sample_mask(c, rows, cols);
	fp_matrix w = narrow_of(c, &W, FP_BF16), d, other;
	assert_ok(c->ctx, fp_matrix_new(c->be, &d, 2 * rows, cols, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &other, 2 * rows, cols, FP_BF16));
	fp_matrix weights = flat ? w : W.view;
	assert_ok(c->ctx, c->be->delta->split(c->be, V.view, weights, d));
	assert_ok(c->ctx, c->be->delta->join(c->be, weights, d, V.view));
	assert_ok(c->ctx, c->be->pruning->mask_smallest(c->be, V.view, &pattern, mask.view));
	assert_ok(c->ctx, c->be->pruning->apply_mask(c->be, mask.view, V.view));
	double *want = sample_read(c, &V);
	assert_ok(c->ctx, c->be->delta->round(c->be, &pattern, weights, d, other));
	assert_ok(c->ctx, c->be->delta->join(c->be, weights, other, V.view));
	sample_expect(c, &V, want, 0, 0, "round");
	assert_ok(c->ctx, c->be->delta->round(c->be, &pattern, weights, d, d)); /* the call before has not changed d */
	assert_ok(c->ctx, c->be->delta->join(c->be, weights, d, V.view));
	sample_expect(c, &V, want, 0, 0, "round, in place");
	free(want);
	fp_matrix_free(c->be, &w);
	fp_matrix_free(c->be, &d);
	fp_matrix_free(c->be, &other);
	sample_free(c, &V);
	sample_free(c, &W);
	sample_free(c, &mask);
}

static void test_round_delta(void **state)
{
	contract *c = *state;
	const fp_pattern patterns[] = {{2, 4, 0.5}, {4, 8, 0.5}, {1, 4, 0.75}, {1, 2, 0.5}, {3, 7, 4.0 / 7}};
	for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
		for (int i = 0; i < contract_shape_count; i++)
			for (int flat = 0; flat < 2; flat++)
				check_round_delta(c, contract_shapes[i].rows, contract_shapes[i].cols, patterns[p], flat);
}

/* A step that also returns the bound is the same step, and the bound agrees with its definition. */
static void check_bound(contract *c, int64_t rows, int64_t cols, bool with_r, bool flat)
{
	sample G = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), W = sample_normal(c, rows, cols);
	sample R = sample_normal(c, rows, cols), H = sample_filled(c, rows, cols, NAN), V = sample_filled(c, rows, cols, 0);
	fp_matrix g = narrow_of(c, &G, FP_BF16), r = narrow_of(c, &R, FP_BF16), w = narrow_of(c, &W, FP_BF16), d;
	fp_delta_step delta = {.rule = FP_MOMENTUM_LITERAL, .step = 0.3f, .threshold = 0.2f, .momentum = 0.7f};
	delta.W = flat ? w : W.view;
	delta.R = with_r ? r : (fp_matrix){0};
	assert_ok(c->ctx, fp_matrix_new(c->be, &d, 2 * rows, cols, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &delta.D, 2 * rows, cols, FP_BF16));
	assert_ok(c->ctx, c->be->delta->split(c->be, Y.view, delta.W, d));
	assert_ok(c->ctx, c->be->memory->copy(c->be, delta.D, d));
	assert_ok(c->ctx, c->be->memory->copy(c->be, H.view, fp_matrix_rows(d, 0, rows)));
	double *before = sample_read(c, &H), bound = NAN, want = 0, size = 0;
	assert_ok(c->ctx, c->be->delta->step(c->be, &delta, flat ? g : G.view, NULL, &bound));
	assert_ok(c->ctx, c->be->memory->copy(c->be, H.view, fp_matrix_rows(delta.D, 0, rows)));
	double *after = sample_read(c, &H);
	for (int64_t k = 0; k < rows * cols; k++) {
		double gradient = G.value[k] - (with_r ? R.value[k] : 0);
		want += 2 * after[k] * gradient - before[k] * G.value[k];
		size += 2 * fabs(after[k]) * (fabs(G.value[k]) + fabs(R.value[k])) + fabs(before[k] * G.value[k]);
	}
	assert_true(fabs(bound - want) <= 2 * FLOAT_EPSILON * size);
	assert_ok(c->ctx, c->be->delta->join(c->be, delta.W, delta.D, V.view));
	double *stepped = sample_read(c, &V);
	assert_ok(c->ctx, c->be->delta->step(c->be,
										 &(fp_delta_step){delta.rule, delta.step, delta.threshold, delta.momentum,
														  delta.W, delta.R, d, .P = {0}},
										 flat ? g : G.view, NULL, NULL));
	assert_ok(c->ctx, c->be->delta->join(c->be, delta.W, d, V.view));
	sample_expect(c, &V, stepped, 0, 0, "step with a bound");
	free(before);
	free(after);
	free(stepped);
	fp_matrix *narrow[] = {&delta.D, &d, &r, &w, &g};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
	sample *all[] = {&G, &Y, &R, &W, &V, &H};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

/* For the gradient of a quadratic form, the form minus the bound is the form of the step, so the bound is never too
 * large. */
static void check_bound_holds(contract *c)
{
	enum { ROWS = 12, COLS = 40 };
	sample X = sample_normal(c, 64, COLS), W = sample_normal(c, ROWS, COLS), Y = sample_normal(c, ROWS, COLS);
	sample A = sample_filled(c, COLS, COLS, 0), H = sample_filled(c, ROWS, COLS, 0);
	fp_delta_step delta = {.rule = FP_MOMENTUM_LITERAL, .step = 0.004f, .threshold = 0.001f, .momentum = 0.5f};
	assert_ok(c->ctx, c->be->linear->gram(c->be, X.view, 0, A.view));
	assert_ok(c->ctx, c->be->linear->mirror(c->be, A.view));
	fp_matrix a = narrow_of(c, &A, FP_BF16), w = narrow_of(c, &W, FP_BF16), g;
	delta.W = w;
	assert_ok(c->ctx, fp_matrix_new(c->be, &g, ROWS, COLS, FP_F32));
	assert_ok(c->ctx, fp_matrix_new(c->be, &delta.D, 2 * ROWS, COLS, FP_BF16));
	assert_ok(c->ctx, c->be->delta->split(c->be, Y.view, w, delta.D));
	for (int step = 0; step < 5; step++) {
		double bound, form, gap = 0;
		fp_matrix high = fp_matrix_rows(delta.D, 0, ROWS);
		assert_ok(c->ctx, c->be->memory->copy(c->be, H.view, high));
		double *before = sample_read(c, &H);
		assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, high, FP_PLAIN, a, FP_TRANSPOSED, 0, g));
		assert_ok(c->ctx, c->be->delta->step(c->be, &delta, g, NULL, &bound));
		assert_ok(c->ctx, c->be->memory->copy(c->be, H.view, high));
		double *after = sample_read(c, &H);
		assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, high, FP_PLAIN, a, FP_TRANSPOSED, 0, g));
		assert_ok(c->ctx, c->be->delta->sum(c->be, delta.D, g, (fp_matrix){0}, &form));
		for (int64_t i = 0; i < ROWS; i++)
			for (int64_t j = 0; j < COLS; j++)
				for (int64_t k = 0; k < COLS; k++)
					gap += (after[i * COLS + j] - before[i * COLS + j]) * A.value[j * COLS + k] *
						   (after[i * COLS + k] - before[i * COLS + k]);
		if (!(fabs(form - bound - gap) <= 1e-4 * (form + gap)))
			fail_msg("step %d: the form is %g, its bound %g, the form of the step %g", step, form, bound, gap);
		free(before);
		free(after);
	}
	fp_matrix *narrow[] = {&delta.D, &a, &w, &g};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
	sample *all[] = {&X, &W, &Y, &A, &H};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

static void test_bound(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++)
		for (int which = 0; which < 4; which++)
			check_bound(c, contract_shapes[i].rows, contract_shapes[i].cols, which & 1, which & 2);
	check_bound(c, 6, 64, true, true);
	check_bound_holds(c);
}

static void test_fista_step_delta(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		for (int rule = 0; rule < 2; rule++) {
			const fp_dtype type = i % 3 == 0 ? FP_BF16 : i % 3 == 1 ? FP_F16 : FP_F32;
			check_fista_delta(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, true, type);
			check_fista_delta(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, false, type);
		}
	}
	check_delta_flat(c);
	check_narrow_product(c);
}

CONTRACT_TESTS(delta, cmocka_unit_test(test_fista_step_delta), cmocka_unit_test(test_round_delta),
			   cmocka_unit_test(test_bound));
