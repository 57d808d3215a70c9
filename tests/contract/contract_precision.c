/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract_precision.c: error bounds of relaxed uses, for every precision. A backend may be more accurate than required,
 * as the CPU is. For exact uses the other files require float arithmetic at any precision.
 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>

/* The relative rounding error of one operand. For iterations in bf16 a GPU takes tf32, which is more accurate. */
static double operand_error(fp_use use, fp_precision precision)
{
	const double bf16 = ldexp(1, -8);
	const double tf32 = ldexp(1, -10); /* truncated, not rounded */
	const double split = ldexp(1, -16);
	if (use == FP_USE_EXACT || precision == FP_PRECISION_FP32)
		return 0;
	if (use == FP_USE_REFINEMENT || precision == FP_PRECISION_BF16X3)
		return split;
	return precision == FP_PRECISION_BF16 ? bf16 : tf32;
}

/* The rounding errors of two operands, and k sums in float. */
static double product_bound(fp_use use, fp_precision precision, int64_t k, double size)
{
	return (2.5 * operand_error(use, precision) + FLOAT_EPSILON * (double)(k + 4) / 2) * size;
}

static void check_products(contract *c, int64_t m, int64_t n, int64_t k, int turned)
{
	bool ta = turned & 1, tb = turned & 2;
	sample A = ta ? sample_normal(c, k, m) : sample_normal(c, m, k);
	sample B = tb ? sample_normal(c, n, k) : sample_normal(c, k, n);
	sample C = sample_normal(c, m, n);
	double *want = new_doubles(m * n), *bound = new_doubles(m * n);
	for (int64_t i = 0; i < m; i++) {
		for (int64_t j = 0; j < n; j++) {
			double sum = 0.5 * C.value[i * n + j], size = 0;
			for (int64_t p = 0; p < k; p++) {
				double term = A.value[ta ? p * m + i : i * k + p] * B.value[tb ? j * k + p : p * n + j];
				sum += term;
				size += fabs(term);
			}
			want[i * n + j] = sum;
			bound[i * n + j] = product_bound(c->be->use, c->be->precision, k, size) + FLOAT_EPSILON * fabs(sum);
		}
	}
	assert_ok(c->ctx, c->be->linear->gemm(c->be, 1, A.view, ta ? FP_TRANSPOSED : FP_PLAIN, B.view,
										  tb ? FP_TRANSPOSED : FP_PLAIN, 0.5f, C.view));
	sample_expect_within(c, &C, want, bound, "gemm, relaxed");
	free(want);
	free(bound);
	sample_free(c, &A);
	sample_free(c, &B);
	sample_free(c, &C);
}

static void check_gram(contract *c, int64_t p, int64_t n)
{
	sample X = sample_normal(c, p, n), A = sample_filled(c, n, n, NAN);
	double *want = new_doubles(n * n), *bound = new_doubles(n * n);
	for (int64_t a = 0; a < n; a++) {
		for (int64_t b = a; b < n; b++) {
			double sum = 0, size = 0;
			for (int64_t t = 0; t < p; t++) {
				sum += X.value[t * n + a] * X.value[t * n + b];
				size += fabs(X.value[t * n + a] * X.value[t * n + b]);
			}
			want[a * n + b] = want[b * n + a] = sum;
			bound[a * n + b] = bound[b * n + a] = product_bound(c->be->use, c->be->precision, p, size);
		}
	}
	assert_ok(c->ctx, c->be->linear->gram(c->be, X.view, 0, A.view));
	assert_ok(c->ctx, c->be->linear->mirror(c->be, A.view));
	sample_expect_within(c, &A, want, bound, "gram, relaxed");
	free(want);
	free(bound);
	sample_free(c, &X);
	sample_free(c, &A);
}

/* The reference is the same attention as an exact use. */
static void check_attention(contract *c, fp_attention_shape shape)
{
	int64_t tokens = shape.sequences * shape.length, width = shape.heads * shape.head_dim;
	fp_use use = c->be->use;
	sample Q = sample_normal(c, tokens, width), K = sample_normal(c, tokens, shape.kv_heads * shape.head_dim);
	sample V = sample_normal(c, tokens, shape.kv_heads * shape.head_dim), out = sample_filled(c, tokens, width, NAN);
	shape.scale = (float)(1 / sqrt((double)shape.head_dim));
	c->be->use = FP_USE_EXACT;
	assert_ok(c->ctx, c->be->transformer->attention(c->be, &shape, Q.view, K.view, V.view, out.view));
	double *want = sample_read(c, &out);
	c->be->use = use;
	assert_ok(c->ctx, c->be->memory->fill(c->be, out.view, NAN));
	assert_ok(c->ctx, c->be->transformer->attention(c->be, &shape, Q.view, K.view, V.view, out.view));
	/* Each term of a score has two rounding errors, weights and values have one each. 5 is about the largest of the
	 * normal numbers. */
	sample_expect(c, &out, want, 5 * (8 * operand_error(use, c->be->precision) + 64 * FLOAT_EPSILON), 0,
				  "attention, relaxed");
	free(want);
	sample_free(c, &Q);
	sample_free(c, &K);
	sample_free(c, &V);
	sample_free(c, &out);
}

static double largest_of(const double *numbers, int64_t count)
{
	double largest = 0;
	for (int64_t k = 0; k < count; k++)
		largest = fmax(largest, fabs(numbers[k]));
	return largest;
}

/* A BF16 copy of the sample; the sample's numbers are rounded to bf16. */
static fp_matrix rounded_of(contract *c, sample *s)
{
	fp_matrix narrow;
	assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, s->view.rows, s->view.cols, FP_BF16));
	assert_ok(c->ctx, c->be->memory->copy(c->be, narrow, s->view));
	assert_ok(c->ctx, c->be->memory->copy(c->be, s->view, narrow));
	return narrow;
}

/* The same for its gradients. */
static void check_attention_backward(contract *c, fp_attention_shape shape)
{
	int64_t tokens = shape.sequences * shape.length, width = shape.heads * shape.head_dim;
	fp_use use = c->be->use;
	sample all[8]; /* Q, K, V, out, dout; dQ, dK, dV */
	double *want[3];
	for (int i = 0; i < 8; i++) {
		bool keys = i == 1 || i == 2 || i > 5;
		all[i] = sample_normal(c, tokens, keys ? shape.kv_heads * shape.head_dim : width);
	}
	shape.scale = (float)(1 / sqrt((double)shape.head_dim));
	c->be->use = FP_USE_EXACT;
	for (int round = 0; round < 2; round++) {
		assert_ok(c->ctx,
				  c->be->transformer->attention(c->be, &shape, all[0].view, all[1].view, all[2].view, all[3].view));
		assert_ok(c->ctx, c->be->gradients->attention_backward(c->be, &shape, all[0].view, all[1].view, all[2].view,
															   all[3].view, all[4].view, all[5].view, all[6].view,
															   all[7].view));
		for (int i = 5; i < 8 && round == 0; i++) {
			want[i - 5] = sample_read(c, &all[i]);
			assert_ok(c->ctx, c->be->memory->fill(c->be, all[i].view, NAN));
		}
		c->be->use = use;
	}
	for (int i = 5; i < 8; i++) {
		/* sums over up to `length` rows with a few rounding errors per term; the first keys sum over all rows */
		double largest = largest_of(want[i - 5], fp_matrix_size(all[i].view));
		sample_expect(c, &all[i], want[i - 5],
					  largest * (8 * operand_error(use, c->be->precision) + 64 * FLOAT_EPSILON), 0,
					  "attention_backward, relaxed");
		free(want[i - 5]);
	}
	for (int i = 0; i < 8; i++)
		sample_free(c, &all[i]);
}

static void test_relaxed_uses(void **state)
{
	contract *c = *state;
	for (int precision = 0; precision < FP_PRECISION_COUNT; precision++) {
		for (int use = 0; use < FP_USE_COUNT; use++) {
			c->be->precision = (fp_precision)precision;
			assert_int_equal(c->be->use, FP_USE_EXACT);
			FP_PRODUCTS_FOR(c->be, (fp_use)use);
			for (int turned = 0; turned < 4; turned++) {
				check_products(c, 33, 17, 65, turned);
				check_products(c, 64, 128, 256, turned);
				check_products(c, 150, 131, 129, turned); /* enough for a CPU to round, in no direction whole tiles */
			}
			check_gram(c, 40, 33);
			check_gram(c, 64, 640); /* more than one panel */
			check_attention(c, (fp_attention_shape)SHAPE(2, 70, 4, 2, 16, 0, 0));
			check_attention(c, (fp_attention_shape)SHAPE(1, 150, 2, 2, 64, 40, 0));
			check_attention(c, (fp_attention_shape)SHAPE(1, 200, 4, 1, 128, 0, 0));
			check_attention(c, (fp_attention_shape)SHAPE(2, 520, 36, 4, 128, 0, 0)); /* more work than processors */
			check_attention(c, (fp_attention_shape)SHAPE(2, 700, 6, 3, 64, 300, 0));
			c->be->precision = FP_PRECISION_FP32;
		}
	}
}

/* With BF16 operands, and then with BF16 results too. */
static void check_bf16_attention_backward(contract *c, fp_attention_shape shape)
{
	int64_t tokens = shape.sequences * shape.length, width = shape.heads * shape.head_dim;
	sample in[5], got[3]; /* Q, K, V, dout, out; dQ, dK, dV */
	fp_matrix narrow[5], results[3];
	double *want[3];
	FP_PRODUCTS_FOR(c->be, FP_USE_ACTIVATION);
	shape.scale = (float)(1 / sqrt((double)shape.head_dim));
	for (int i = 0; i < 5; i++) {
		in[i] = sample_normal(c, tokens, i == 1 || i == 2 ? shape.kv_heads * shape.head_dim : width);
		if (i == 4)
			assert_ok(c->ctx,
					  c->be->transformer->attention(c->be, &shape, in[0].view, in[1].view, in[2].view, in[4].view));
		narrow[i] = rounded_of(c, &in[i]);
	}
	for (int i = 0; i < 3; i++) {
		got[i] = sample_filled(c, tokens, in[i].view.cols, NAN);
		assert_ok(c->ctx, fp_matrix_new(c->be, &results[i], tokens, in[i].view.cols, FP_BF16));
	}
	for (int round = 0; round < 3; round++) { /* in float; with narrow operands; with narrow results too */
		fp_matrix x[5], y[3];
		for (int i = 0; i < 5; i++)
			x[i] = round == 0 ? in[i].view : narrow[i];
		for (int i = 0; i < 3; i++) {
			y[i] = round == 2 ? results[i] : got[i].view;
			assert_ok(c->ctx, c->be->memory->fill(c->be, y[i], NAN));
		}
		c->be->precision = round == 0 ? FP_PRECISION_FP32 : FP_PRECISION_BF16;
		assert_ok(c->ctx,
				  c->be->gradients->attention_backward(c->be, &shape, x[0], x[1], x[2], x[4], x[3], y[0], y[1], y[2]));
		c->be->precision = FP_PRECISION_FP32;
		for (int i = 0; i < 3; i++) {
			if (round == 0)
				want[i] = sample_read(c, &got[i]);
			if (round == 2)
				assert_ok(c->ctx, c->be->memory->copy(c->be, got[i].view, results[i]));
			double largest = largest_of(want[i], fp_matrix_size(got[i].view));
			sample_expect(c, &got[i], want[i], 8 * largest * operand_error(FP_USE_ACTIVATION, FP_PRECISION_BF16),
						  ldexp(1, -8), "attention_backward of bf16");
		}
	}
	for (int i = 0; i < 3; i++) {
		free(want[i]);
		sample_free(c, &got[i]);
		fp_matrix_free(c->be, &results[i]);
	}
	for (int i = 0; i < 5; i++) {
		sample_free(c, &in[i]);
		fp_matrix_free(c->be, &narrow[i]);
	}
}

/* Apart from the other products, so that racecheck, which is slow, can be run on this alone. */
static void test_relaxed_attention_backward(void **state)
{
	static const fp_attention_shape shapes[] = {SHAPE(2, 70, 4, 2, 16, 0, 0), SHAPE(1, 150, 2, 2, 64, 40, 0),
												SHAPE(1, 200, 4, 1, 128, 0, 0), SHAPE(2, 385, 6, 3, 128, 0, 0),
												SHAPE(2, 330, 4, 2, 64, 130, 0)};
	contract *c = *state;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		for (int precision = 0; precision < FP_PRECISION_COUNT; precision++) {
			FP_PRODUCTS_FOR(c->be, FP_USE_ACTIVATION);
			c->be->precision = (fp_precision)precision;
			check_attention_backward(c, shapes[i]);
		}
		c->be->precision = FP_PRECISION_FP32;
		if (fp_backend_can(c->be, FP_CAN_MULTIPLY_NARROW))
			check_bf16_attention_backward(c, shapes[i]);
	}
}

/* Gradients in bf16 have the same bits every time. On Hopper this runs kernels of our own only, not those of BLAS, which
 * racecheck takes minutes for or does not support. */
static void test_repeated_attention_backward(void **state)
{
	static const fp_attention_shape shapes[] = {SHAPE(1, 150, 2, 2, 64, 40, 0.125f), SHAPE(1, 200, 4, 1, 128, 0, 0.1f),
												SHAPE(2, 385, 6, 3, 128, 0, 0.1f),
												SHAPE(2, 330, 4, 2, 64, 130, 0.125f)};
	contract *c = *state;
	FP_PRODUCTS_FOR(c->be, FP_USE_ACTIVATION);
	c->be->precision = FP_PRECISION_BF16;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		const fp_attention_shape *shape = &shapes[i];
		int64_t tokens = shape->sequences * shape->length;
		fp_matrix in[5], out[2][3]; /* Q, K, V, dout, out; dQ, dK, dV */
		for (int k = 0; k < 5; k++) {
			sample s = sample_normal(c, tokens, (k == 1 || k == 2 ? shape->kv_heads : shape->heads) * shape->head_dim);
			in[k] = rounded_of(c, &s);
			sample_free(c, &s);
		}
		assert_ok(c->ctx, c->be->transformer->attention(c->be, shape, in[0], in[1], in[2], in[4]));
		for (int round = 0; round < 2; round++) {
			for (int k = 0; k < 3; k++)
				assert_ok(c->ctx, fp_matrix_new(c->be, &out[round][k], tokens, in[k].cols, FP_BF16));
			assert_ok(c->ctx, c->be->gradients->attention_backward(c->be, shape, in[0], in[1], in[2], in[4], in[3],
																   out[round][0], out[round][1], out[round][2]));
		}
		for (int k = 0; k < 3; k++) {
			sample first = sample_filled(c, tokens, in[k].cols, NAN),
				   second = sample_filled(c, tokens, in[k].cols, NAN);
			assert_ok(c->ctx, c->be->memory->copy(c->be, first.view, out[0][k]));
			assert_ok(c->ctx, c->be->memory->copy(c->be, second.view, out[1][k]));
			double *want = sample_read(c, &first);
			sample_expect(c, &second, want, 0, 0, "attention_backward, repeated");
			free(want);
			sample_free(c, &first);
			sample_free(c, &second);
			fp_matrix_free(c->be, &out[0][k]);
			fp_matrix_free(c->be, &out[1][k]);
		}
		for (int k = 0; k < 5; k++)
			fp_matrix_free(c->be, &in[k]);
	}
	c->be->precision = FP_PRECISION_FP32;
}

/* Fails unless `narrow` (BF16) holds the rounded numbers of `wide`. */
static void expect_rounded(contract *c, const sample *wide, fp_matrix narrow, const char *what)
{
	sample got = sample_filled(c, narrow.rows, narrow.cols, NAN);
	fp_matrix rounded;
	assert_ok(c->ctx, fp_matrix_new(c->be, &rounded, narrow.rows, narrow.cols, FP_BF16));
	assert_ok(c->ctx, c->be->memory->copy(c->be, rounded, wide->view));
	assert_ok(c->ctx, c->be->memory->copy(c->be, got.view, rounded));
	double *want = sample_read(c, &got);
	assert_ok(c->ctx, c->be->memory->copy(c->be, got.view, narrow));
	sample_expect(c, &got, want, 0, 0, what);
	free(want);
	fp_matrix_free(c->be, &rounded);
	sample_free(c, &got);
}

/* A narrow result must be the wide one, rounded once. */
static void check_narrow(contract *c, int64_t rows, int64_t cols)
{
	sample X = sample_normal(c, rows, cols), G = sample_normal(c, rows, cols), U = sample_normal(c, rows, cols);
	sample wide[2] = {sample_filled(c, rows, cols, NAN), sample_filled(c, rows, cols, NAN)};
	sample w = sample_normal(c, 1, cols), sums = sample_filled(c, 1, cols, NAN);
	fp_matrix out[2];
	for (int i = 0; i < 2; i++)
		assert_ok(c->ctx, fp_matrix_new(c->be, &out[i], rows, cols, FP_BF16));
	for (int kind = 0; kind < 2; kind++) {
		assert_ok(c->ctx,
				  c->be->transformer->norm(c->be, (fp_norm_kind)kind, X.view, w.view, w.view, 1e-5f, wide[0].view));
		assert_ok(c->ctx, c->be->transformer->norm(c->be, (fp_norm_kind)kind, X.view, w.view, w.view, 1e-5f, out[0]));
		expect_rounded(c, &wide[0], out[0], "norm, narrow");
	}
	for (int kind = 0; kind < 4; kind++) {
		fp_activation f = (fp_activation)kind;
		assert_ok(c->ctx, c->be->transformer->activate(c->be, f, X.view, wide[0].view));
		assert_ok(c->ctx, c->be->transformer->activate(c->be, f, X.view, out[0]));
		expect_rounded(c, &wide[0], out[0], "activate, narrow");
		assert_ok(c->ctx, c->be->transformer->activate_gated(c->be, f, G.view, U.view, wide[0].view));
		assert_ok(c->ctx, c->be->transformer->activate_gated(c->be, f, G.view, U.view, out[0]));
		expect_rounded(c, &wide[0], out[0], "activate_gated, narrow");
		assert_ok(c->ctx, c->be->gradients->activate_backward(c->be, f, X.view, G.view, wide[0].view));
		assert_ok(c->ctx, c->be->gradients->activate_backward(c->be, f, X.view, G.view, out[0]));
		expect_rounded(c, &wide[0], out[0], "activate_backward, narrow");
		assert_ok(c->ctx, c->be->gradients->activate_gated_backward(c->be, f, G.view, U.view, X.view, wide[0].view,
																	wide[1].view));
		assert_ok(c->ctx, c->be->gradients->activate_gated_backward(c->be, f, G.view, U.view, X.view, out[0], out[1]));
		for (int i = 0; i < 2; i++)
			expect_rounded(c, &wide[i], out[i], "activate_gated_backward, narrow");
	}
	assert_ok(c->ctx, c->be->memory->copy(c->be, wide[0].view, out[0]));
	assert_ok(c->ctx, c->be->gradients->column_sums(c->be, wide[0].view, 0, sums.view));
	double *want = sample_read(c, &sums);
	assert_ok(c->ctx, c->be->gradients->column_sums(c->be, out[0], 0, sums.view));
	sample_expect(c, &sums, want, 0, 0, "column_sums, narrow");
	free(want);
	assert_ok(c->ctx, c->be->gradients->column_squares(c->be, wide[0].view, 0, sums.view));
	want = sample_read(c, &sums);
	assert_ok(c->ctx, c->be->gradients->column_squares(c->be, out[0], 0, sums.view));
	sample_expect(c, &sums, want, 0, 0, "column_squares, narrow");
	fp_adam rule = {0.01f, 0.9f, 0.999f, 1e-8f, 1, true, out[0]};
	assert_ok(c->ctx, c->be->memory->fill(c->be, wide[1].view, 0)); /* a second moment is not negative */
	assert_ok(c->ctx, c->be->gradients->adam_step(c->be, &rule, G.view, wide[0].view, wide[1].view, X.view));
	expect_rounded(c, &X, out[0], "Adam's weights, narrow");
	free(want);
	/* from zero moments, the step is the same with a narrow mean: it is rounded after it was used */
	fp_adam plain = {.rate = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .step = 1};
	assert_ok(c->ctx, c->be->memory->copy(c->be, U.view, X.view));
	assert_ok(c->ctx, c->be->memory->fill(c->be, wide[0].view, 0));
	assert_ok(c->ctx, c->be->memory->fill(c->be, wide[1].view, 0));
	assert_ok(c->ctx, c->be->gradients->adam_step(c->be, &plain, G.view, wide[0].view, wide[1].view, X.view));
	want = sample_read(c, &X);
	assert_ok(c->ctx, c->be->memory->fill(c->be, out[1], 0));
	assert_ok(c->ctx, c->be->memory->fill(c->be, wide[1].view, 0));
	assert_ok(c->ctx, c->be->gradients->adam_step(c->be, &plain, G.view, out[1], wide[1].view, U.view));
	sample_expect(c, &U, want, 0, 0, "Adam's weights with a narrow mean");
	expect_rounded(c, &wide[0], out[1], "Adam's mean, narrow");
	free(want);
	sample *all[] = {&X, &G, &U, &wide[0], &wide[1], &w, &sums};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
	fp_matrix_free(c->be, &out[0]);
	fp_matrix_free(c->be, &out[1]);
}

static void test_narrow_results(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++)
		check_narrow(c, contract_shapes[i].rows, contract_shapes[i].cols);
}

/* With BF16 matrices the result must be that of the same numbers in float, rounded once. */
static void check_bf16(contract *c, int64_t rows, int64_t cols)
{
	sample X = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), wide = sample_filled(c, rows, cols, NAN);
	sample w = sample_normal(c, 1, cols), other = sample_filled(c, rows, cols, NAN),
		   dots = sample_filled(c, 1, rows, NAN);
	fp_matrix x = rounded_of(c, &X), y = rounded_of(c, &Y), out, second;
	assert_ok(c->ctx, fp_matrix_new(c->be, &out, rows, cols, FP_BF16));
	assert_ok(c->ctx, fp_matrix_new(c->be, &second, rows, cols, FP_BF16));
	assert_ok(c->ctx, c->be->linear->row_dot(c->be, X.view, Y.view, dots.view));
	double *want = sample_read(c, &dots);
	assert_ok(c->ctx, c->be->linear->row_dot(c->be, x, y, dots.view));
	sample_expect(c, &dots, want, 0, 0, "row_dot of bf16");
	free(want);
	for (int kind = 0; kind < 2; kind++) {
		assert_ok(c->ctx,
				  c->be->transformer->norm(c->be, (fp_norm_kind)kind, X.view, w.view, w.view, 1e-5f, wide.view));
		assert_ok(c->ctx, c->be->transformer->norm(c->be, (fp_norm_kind)kind, x, w.view, w.view, 1e-5f, out));
		expect_rounded(c, &wide, out, "norm of bf16");
	}
	for (int kind = 0; kind < 4; kind++) {
		fp_activation f = (fp_activation)kind;
		assert_ok(c->ctx, c->be->transformer->activate(c->be, f, X.view, wide.view));
		assert_ok(c->ctx, c->be->transformer->activate(c->be, f, x, out));
		expect_rounded(c, &wide, out, "activate of bf16");
		assert_ok(c->ctx, c->be->transformer->activate_gated(c->be, f, X.view, Y.view, wide.view));
		assert_ok(c->ctx, c->be->memory->copy(c->be, out, y));
		assert_ok(c->ctx, c->be->transformer->activate_gated(c->be, f, x, out, out)); /* in place */
		expect_rounded(c, &wide, out, "activate_gated of bf16");
		assert_ok(c->ctx, c->be->gradients->activate_backward(c->be, f, X.view, Y.view, wide.view));
		assert_ok(c->ctx, c->be->gradients->activate_backward(c->be, f, x, y, out));
		expect_rounded(c, &wide, out, "activate_backward of bf16");
		assert_ok(c->ctx,
				  c->be->gradients->activate_gated_backward(c->be, f, X.view, Y.view, X.view, wide.view, other.view));
		assert_ok(c->ctx, c->be->gradients->activate_gated_backward(c->be, f, x, y, x, out, second));
		expect_rounded(c, &wide, out, "activate_gated_backward of bf16 by the gate");
		expect_rounded(c, &other, second, "activate_gated_backward of bf16 by the other");
	}
	assert_ok(c->ctx, c->be->gradients->difference(c->be, 0.5f, X.view, Y.view, wide.view, NULL));
	assert_ok(c->ctx, c->be->gradients->difference(c->be, 0.5f, x, y, out, NULL));
	expect_rounded(c, &wide, out, "difference of bf16");
	assert_ok(c->ctx, c->be->gradients->difference(c->be, 0.5f, X.view, Y.view, out, NULL));
	expect_rounded(c, &wide, out, "difference to bf16");
	assert_ok(c->ctx, c->be->transformer->add_bias(c->be, w.view, X.view));
	assert_ok(c->ctx, c->be->transformer->add_bias(c->be, w.view, x));
	expect_rounded(c, &X, x, "add_bias to bf16");
	sample s = sample_normal(c, 1, rows);
	assert_ok(c->ctx, c->be->transformer->gather_rows(c->be, NULL, s.view, Y.view, wide.view));
	assert_ok(c->ctx, c->be->transformer->gather_rows(c->be, NULL, s.view, y, out));
	expect_rounded(c, &wide, out, "gather_rows of bf16");
	assert_ok(c->ctx, c->be->transformer->gather_rows(c->be, NULL, s.view, Y.view, out));
	expect_rounded(c, &wide, out, "gather_rows to bf16");
	sample_free(c, &s);
	sample *all[] = {&X, &Y, &wide, &w, &other, &dots};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
	fp_matrix *narrow[] = {&x, &y, &out, &second};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
}

/* The same for the operations on heads, and for a Gram matrix. */
static void check_bf16_heads(contract *c, fp_attention_shape shape)
{
	int64_t tokens = shape.sequences * shape.length, queries = shape.heads * shape.head_dim;
	int64_t keys = shape.kv_heads * shape.head_dim, half = shape.head_dim / 2;
	int64_t rows = shape.sequences * fp_attention_key_rows(&shape);
	sample Q = sample_normal(c, tokens, queries), K = sample_normal(c, rows, keys), V = sample_normal(c, rows, keys);
	sample cosine = sample_normal(c, shape.length, half), sine = sample_normal(c, shape.length, half);
	sample wide = sample_filled(c, tokens, queries, NAN), got = sample_filled(c, tokens, queries, NAN);
	sample A = sample_filled(c, keys, keys, 0);
	fp_matrix q = rounded_of(c, &Q), k = rounded_of(c, &K), v = rounded_of(c, &V), out;
	FP_PRODUCTS_FOR(c->be, FP_USE_ACTIVATION);
	c->be->precision = FP_PRECISION_BF16;
	assert_ok(c->ctx, fp_matrix_new(c->be, &out, tokens, queries, FP_BF16));
	assert_ok(c->ctx, c->be->transformer->attention(c->be, &shape, Q.view, K.view, V.view, wide.view));
	assert_ok(c->ctx, c->be->transformer->attention(c->be, &shape, q, k, v, out));
	assert_ok(c->ctx, c->be->memory->copy(c->be, got.view, out));
	double *want = sample_read(c, &wide);
	/* strided floats do not take the bf16 kernel, and the two round the weights differently */
	sample_expect(c, &got, want, ldexp(1, -6), ldexp(1, -8), "attention of bf16");
	free(want);
	assert_ok(c->ctx, c->be->linear->gram(c->be, V.view, 0, A.view));
	assert_ok(c->ctx, c->be->linear->mirror(c->be, A.view)); /* the lower triangle is undefined before */
	want = sample_read(c, &A);
	assert_ok(c->ctx, c->be->linear->gram(c->be, v, 0, A.view));
	assert_ok(c->ctx, c->be->linear->mirror(c->be, A.view));
	sample_expect(c, &A, want, 1e-4, 1e-5, "gram of bf16");
	free(want);
	assert_ok(c->ctx, c->be->transformer->rotate(c->be, FP_PAIR_HALVES, cosine.view, sine.view, shape.heads, Q.view));
	assert_ok(c->ctx, c->be->transformer->rotate(c->be, FP_PAIR_HALVES, cosine.view, sine.view, shape.heads, q));
	expect_rounded(c, &Q, q, "rotate of bf16");
	c->be->precision = FP_PRECISION_FP32;
	sample *all[] = {&Q, &K, &V, &cosine, &sine, &wide, &got, &A};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
	fp_matrix *narrow[] = {&q, &k, &v, &out};
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
		fp_matrix_free(c->be, narrow[i]);
}

static void test_bf16_operands(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++)
		check_bf16(c, contract_shapes[i].rows, contract_shapes[i].cols);
	check_bf16_heads(c, (fp_attention_shape)SHAPE(2, 70, 4, 2, 18, 0, 0.2f));
	check_bf16_heads(c, (fp_attention_shape)SHAPE(1, 150, 2, 2, 64, 40, 0.125f));
	check_bf16_heads(c, (fp_attention_shape)SHAPE(1, 200, 4, 1, 128, 0, 0.1f));
	for (int64_t length = 1; length < 50; length += 48) {
		fp_attention_shape shape = SHAPE(3, length, 4, 2, 64, 0, 0.125f);
		shape.past = 90;
		shape.key_rows = 150;
		check_bf16_heads(c, shape);
	}
}

static void test_precision_words(void **state)
{
	contract *c = *state;
	bool rounds = fp_backend_can(c->be, FP_CAN_ROUND), splits = fp_backend_can(c->be, FP_CAN_SPLIT);
	assert_ok(c->ctx, fp_backend_set_precision(c->be, "tf32", 4096));
	assert_int_equal(c->be->precision, splits ? FP_PRECISION_TF32 : FP_PRECISION_FP32);
	assert_ok(c->ctx, fp_backend_set_precision(c->be, "auto", 4096));
	assert_int_equal(c->be->precision, rounds ? FP_PRECISION_BF16 : FP_PRECISION_FP32);
	assert_string_equal(fp_backend_precision_name(c->be), rounds ? "bf16" : "fp32");
	assert_ok(c->ctx, fp_backend_set_figure_precision(c->be, "auto", 4096));
	assert_int_equal(c->be->precision, splits ? FP_PRECISION_TF32 : FP_PRECISION_FP32);
	assert_ok(c->ctx, fp_backend_set_precision(c->be, "auto", 512));
	assert_int_equal(c->be->precision, FP_PRECISION_FP32);
	assert_fails(c->ctx, FP_ERROR_USAGE, "bf16x3", fp_backend_set_precision(c->be, "fp8", 4096));
	assert_ok(c->ctx, fp_backend_set_precision(c->be, "fp32", 4096));
	assert_int_equal(c->be->precision, FP_PRECISION_FP32);
}

CONTRACT_TESTS(precision, cmocka_unit_test(test_relaxed_uses), cmocka_unit_test(test_precision_words));
CONTRACT_TESTS(relaxed_gradients, cmocka_unit_test(test_relaxed_attention_backward));
CONTRACT_TESTS(bf16, cmocka_unit_test(test_narrow_results), cmocka_unit_test(test_bf16_operands),
			   cmocka_unit_test(test_repeated_attention_backward));
