/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract_gradients.c: compares gradients with central differences of plain functions in double.
 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Σ dy·norm(x) for one row. */
static double norm_loss(fp_norm_kind kind, const double *x, const double *w, const double *dy, int64_t n)
{
	double mean = 0, square = 0, loss = 0;
	for (int64_t k = 0; k < n && kind == FP_LAYER_NORM; k++)
		mean += x[k] / (double)n;
	for (int64_t k = 0; k < n; k++)
		square += (x[k] - mean) * (x[k] - mean) / (double)n;
	for (int64_t k = 0; k < n; k++)
		loss += dy[k] * (w ? w[k] : 1) * (x[k] - mean) / sqrt(square + (double)1e-5f);
	return loss;
}

static void check_norm_backward(contract *c, fp_norm_kind kind, int64_t rows, int64_t cols, bool weighted,
								bool in_place)
{
	const double h = 1e-5;
	sample X = sample_normal(c, rows, cols), dY = sample_normal(c, rows, cols), dX = sample_normal(c, rows, cols);
	sample w = sample_normal(c, 1, cols);
	double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	for (int64_t i = 0; i < rows; i++) {
		double *x = X.value + i * cols, largest = 0;
		for (int64_t k = 0; k < cols; k++) {
			double at = x[k];
			x[k] = at + h;
			double up = norm_loss(kind, x, weighted ? w.value : NULL, dY.value + i * cols, cols);
			x[k] = at - h;
			double down = norm_loss(kind, x, weighted ? w.value : NULL, dY.value + i * cols, cols);
			x[k] = at;
			want[i * cols + k] = (up - down) / (2 * h);
		}
		/* the terms of a row cancel, so the error is that of the largest one: s·|w·dy|, or with few columns about s³/ε */
		double spread = 0, mean = 0;
		for (int64_t k = 0; k < cols && kind == FP_LAYER_NORM; k++)
			mean += x[k] / (double)cols;
		for (int64_t k = 0; k < cols; k++) {
			spread += (x[k] - mean) * (x[k] - mean) / (double)cols;
			largest = fmax(largest, fabs(dY.value[i * cols + k] * (weighted ? w.value[k] : 1)));
		}
		for (int64_t k = 0; k < cols; k++)
			bound[i * cols + k] =
				1e-6 * fabs(want[i * cols + k]) + (16 * FLOAT_EPSILON + 1e-8) * largest / sqrt(spread + 1e-5) + 1e-7;
	}
	sample *out = in_place ? &dY : &dX;
	assert_ok(c->ctx, c->be->gradients->norm_backward(c->be, kind, X.view, weighted ? w.view : (fp_matrix){0}, 1e-5f,
													  dY.view, out->view));
	sample_expect_within(c, out, want, bound, kind == FP_LAYER_NORM ? "layer norm backward" : "RMS norm backward");
	free(want);
	free(bound);
	sample_free(c, &X);
	sample_free(c, &dY);
	sample_free(c, &dX);
	sample_free(c, &w);
}

/* The reference is softmax minus one at the target, in double. */
static void check_cross_entropy_backward(contract *c, int64_t rows, int64_t cols, double scale)
{
	double *values = new_doubles(rows * cols), *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	int32_t *targets = calloc((size_t)rows + 1, sizeof *targets);
	for (int64_t k = 0; k < rows * cols; k++)
		values[k] = scale * (double)random_normal(&c->seed);
	sample X = sample_from(c, rows, cols, values);
	for (int64_t i = 0; i < rows; i++) {
		const double *x = X.value + i * cols;
		double sum = 0;
		targets[i] = (int32_t)(i % 4 == 3 ? -1 : contract_random(c, 0, cols - 1));
		for (int64_t k = 0; k < cols; k++)
			sum += exp(x[k] - x[0]);
		for (int64_t k = 0; k < cols && targets[i] >= 0; k++) {
			double share = exp(x[k] - x[0]) / sum;
			want[i * cols + k] = share - (k == targets[i]);
			/* ε·90 from the arguments of the exponentials, and the error of the subtraction */
			bound[i * cols + k] = FLOAT_EPSILON * (100 * share + (k == targets[i])) + 1e-37;
		}
	}
	assert_ok(c->ctx, c->be->gradients->cross_entropy_backward(c->be, targets, X.view));
	sample_expect_within(c, &X, want, bound, "cross_entropy backward");
	free(targets);
	free(values);
	free(want);
	free(bound);
	sample_free(c, &X);
}

static void test_cross_entropy_backward(void **state)
{
	contract *c = *state;
	check_cross_entropy_backward(c, 0, 5, 1);
	check_cross_entropy_backward(c, 3, 1, 1);
	check_cross_entropy_backward(c, 9, 7, 1);
	check_cross_entropy_backward(c, 5, 33, 20);
	check_cross_entropy_backward(c, 13, 1000, 3);
	check_cross_entropy_backward(c, 6, 50272, 5);
}

static void test_norm_backward(void **state)
{
	contract *c = *state;
	static const contract_shape shapes[] = {{0, 5}, {3, 2}, {2, 16}, {5, 13}, {17, 33}, {200, 170}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int options = 0; options < 8; options++)
			check_norm_backward(c, options & 1 ? FP_LAYER_NORM : FP_RMS_NORM, shapes[i].rows, shapes[i].cols,
								options & 2, options & 4);
}

static double slope(fp_activation kind, double x)
{
	const double h = 1e-5;
	if (kind == FP_RELU)
		return x > 0 ? 1 : 0;
	return (plain_activation(kind, x + h) - plain_activation(kind, x - h)) / (2 * h);
}

/* Normal numbers and a few large ones, for which exponentials overflow or vanish. */
static sample sample_large(contract *c, int64_t rows, int64_t cols)
{
	static const double special[] = {0, -0.0, 20, -20, 87, -87, 90, -90, 300, -300};
	return sample_mixed(c, rows, cols, 3, special, sizeof special / sizeof *special);
}

/* 1/(1 + exp) and its product with x have an error of a few ε, and ε·|x| from the exponent. */
static double slope_bound(fp_activation kind, double x)
{
	return kind == FP_RELU ? 0 : (8 + 4 * fmin(fabs(x), 100)) * FLOAT_EPSILON + 1e-9;
}

static void test_activate_backward(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count * 12; i++) {
		fp_activation kind = (fp_activation)(i % 4);
		int where = i / 4 % 3;
		int64_t rows = contract_shapes[i / 12].rows, cols = contract_shapes[i / 12].cols;
		sample X = sample_large(c, rows, cols), dY = sample_normal(c, rows, cols), dX = sample_normal(c, rows, cols);
		double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			want[k] = dY.value[k] * slope(kind, X.value[k]);
			bound[k] = fabs(dY.value[k]) * slope_bound(kind, X.value[k]);
		}
		sample *out = where == 0 ? &dX : where == 1 ? &dY : &X;
		assert_ok(c->ctx, c->be->gradients->activate_backward(c->be, kind, X.view, dY.view, out->view));
		sample_expect_within(c, out, want, bound, "activate_backward");
		free(want);
		free(bound);
		sample_free(c, &X);
		sample_free(c, &dY);
		sample_free(c, &dX);
	}
}

static void test_activate_gated_backward(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count * 8; i++) {
		fp_activation kind = (fp_activation)(i % 4);
		bool in_place = i / 4 % 2;
		int64_t rows = contract_shapes[i / 8].rows, cols = contract_shapes[i / 8].cols, size = rows * cols;
		sample G = sample_large(c, rows, cols), U = sample_normal(c, rows, cols), dY = sample_normal(c, rows, cols);
		sample dG = sample_normal(c, rows, cols), dU = sample_normal(c, rows, cols);
		double *want[2] = {new_doubles(size), new_doubles(size)}, *bound[2] = {new_doubles(size), new_doubles(size)};
		for (int64_t k = 0; k < size; k++) {
			double f = plain_activation(kind, G.value[k]), dy = dY.value[k], u = U.value[k];
			want[0][k] = dy * u * slope(kind, G.value[k]);
			want[1][k] = dy * f;
			bound[0][k] = fabs(dy * u) * (slope_bound(kind, G.value[k]) + 2 * FLOAT_EPSILON);
			bound[1][k] = FLOAT_EPSILON * fabs(dy) * ((10 + 2 * fabs(G.value[k])) * fabs(f) + fabs(G.value[k])) + 1e-37;
		}
		assert_ok(c->ctx,
				  c->be->gradients->activate_gated_backward(c->be, kind, G.view, U.view, dY.view,
															in_place ? G.view : dG.view, in_place ? U.view : dU.view));
		sample_expect_within(c, in_place ? &G : &dG, want[0], bound[0], "activate_gated_backward by the gate");
		sample_expect_within(c, in_place ? &U : &dU, want[1], bound[1], "activate_gated_backward by the other");
		for (int k = 0; k < 2; k++) {
			free(want[k]);
			free(bound[k]);
		}
		sample *all[] = {&G, &U, &dY, &dG, &dU};
		for (int k = 0; k < 5; k++)
			sample_free(c, all[k]);
	}
}

static void test_column_sums(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count * 2; i++) {
		int64_t rows = contract_shapes[i / 2].rows, cols = contract_shapes[i / 2].cols;
		float beta = i % 2 ? 0.5f : 0.0f;
		sample X = sample_normal(c, rows, cols), out = sample_filled(c, 1, cols, i % 2 ? 3 : NAN);
		sample squares = sample_filled(c, 1, cols, i % 2 ? 3 : NAN);
		double *want = new_doubles(cols), *want_squares = new_doubles(cols);
		for (int64_t j = 0; j < cols; j++)
			want[j] = want_squares[j] = i % 2 ? 1.5 : 0;
		for (int64_t k = 0; k < rows * cols; k++) {
			want[k % cols] += X.value[k];
			want_squares[k % cols] += X.value[k] * X.value[k];
		}
		assert_ok(c->ctx, c->be->gradients->column_sums(c->be, X.view, beta, out.view));
		assert_ok(c->ctx, c->be->gradients->column_squares(c->be, X.view, beta, squares.view));
		/* summed in double, rounded once */
		sample_expect(c, &out, want, 1e-12, FLOAT_EPSILON, "column_sums");
		sample_expect(c, &squares, want_squares, 1e-12, FLOAT_EPSILON, "column_squares");
		free(want);
		free(want_squares);
		sample_free(c, &X);
		sample_free(c, &out);
		sample_free(c, &squares);
	}
}

static void test_difference(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count * 4; i++) {
		int64_t rows = contract_shapes[i / 4].rows, cols = contract_shapes[i / 4].cols;
		float scale = i % 4 < 2 ? -0.3f : 1.0f;
		sample Y = sample_normal(c, rows, cols), T = sample_normal(c, rows, cols), D = sample_normal(c, rows, cols);
		double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols), squares = 0, got = NAN;
		for (int64_t k = 0; k < rows * cols; k++) {
			double off = Y.value[k] - T.value[k];
			want[k] = (double)scale * off;
			bound[k] = 2 * FLOAT_EPSILON * fabs(want[k]);
			squares += off * off;
		}
		sample *out = i % 2 ? &Y : &D;
		bool counted = i % 8 < 4;
		assert_ok(c->ctx, c->be->gradients->difference(c->be, scale, Y.view, T.view, out->view, counted ? &got : NULL));
		sample_expect_within(c, out, want, bound, "difference");
		assert_true(!counted || fabs(got - squares) <= 2 * FLOAT_EPSILON * squares);
		free(want);
		free(bound);
		sample_free(c, &Y);
		sample_free(c, &T);
		sample_free(c, &D);
	}
}

/* Three steps in double; with keep_zeros, zeros of W must become +0.0 with unchanged moments. */
static void check_adam(contract *c, int64_t rows, int64_t cols, bool keep_zeros)
{
	int64_t size = rows * cols;
	sample W = sample_normal(c, rows, cols), M = sample_filled(c, rows, cols, 0), V = sample_filled(c, rows, cols, 0);
	double *start = new_doubles(size);
	for (int64_t k = 0; k < size; k++)
		start[k] = k % 3 == 1 ? 0.0 : k % 3 == 2 && k % 2 ? -0.0 : W.value[k];
	sample_free(c, &W);
	W = sample_from(c, rows, cols, start);
	fp_adam rule = {.rate = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .keep_zeros = keep_zeros};
	double b1 = (double)rule.beta1, b2 = (double)rule.beta2;
	for (rule.step = 1; rule.step <= 3; rule.step++) {
		sample G = sample_normal(c, rows, cols);
		for (int64_t k = 0; k < size; k++) {
			double g = G.value[k];
			if (keep_zeros && W.value[k] == 0)
				continue;
			M.value[k] = b1 * M.value[k] + (1 - b1) * g;
			V.value[k] = b2 * V.value[k] + (1 - b2) * g * g;
			W.value[k] -= (double)rule.rate * M.value[k] / (1 - pow(b1, (double)rule.step)) /
						  (sqrt(V.value[k] / (1 - pow(b2, (double)rule.step))) + (double)rule.epsilon);
		}
		assert_ok(c->ctx, c->be->gradients->adam_step(c->be, &rule, G.view, M.view, V.view, W.view));
		sample_free(c, &G);
	}
	/* 1 − β₂ in float has a relative error of ε/(1 − β₂), of which the root takes half; sums of moments can cancel */
	sample_expect(c, &M, M.value, 1e-6, 1e-5, "Adam's first moment");
	sample_expect(c, &V, V.value, 1e-7, 2e-4, "Adam's second moment");
	sample_expect(c, &W, W.value, 3e-6, 1e-5, "Adam's weights");
	double *got = sample_read(c, &W);
	for (int64_t k = 0; k < size && keep_zeros; k++)
		assert_true(start[k] != 0 || (got[k] == 0 && !signbit(got[k])));
	free(got);
	free(start);
	sample_free(c, &W);
	sample_free(c, &M);
	sample_free(c, &V);
}

static void test_adam(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count * 2; i++)
		check_adam(c, contract_shapes[i / 2].rows, contract_shapes[i / 2].cols, i % 2);
}

/* Attention and its three gradients in double. */
typedef struct attention_sums {
	double *out, *dQ, *dK, *dV;
} attention_sums;

/* p ← a query's softmax; slope ← the soft cap's derivatives, 1 without; bias: heads × length, or NULL */
static void weigh(const fp_attention_shape *shape, const double *Q, const double *K, const double *bias, int64_t token,
				  int64_t head, double *p, double *slope)
{
	int64_t d = shape->head_dim, query = token % shape->length, start = token - query,
			group = shape->heads / shape->kv_heads;
	double largest = -INFINITY, sum = 0;
	for (int64_t j = 0; j <= query; j++) {
		p[j] = 0;
		slope[j] = 1;
		for (int64_t e = 0; e < d; e++)
			p[j] += (double)shape->scale * Q[(token * shape->heads + head) * d + e] *
					K[((start + j) * shape->kv_heads + head / group) * d + e];
		if (shape->soft_cap > 0) {
			double share = tanh(p[j] / (double)shape->soft_cap);
			slope[j] = 1 - share * share;
			p[j] = (double)shape->soft_cap * share;
		}
		p[j] += bias ? bias[head * shape->length + j] : 0;
		if (shape->window > 0 && j <= query - shape->window)
			p[j] = -INFINITY;
		largest = fmax(largest, p[j]);
	}
	for (int64_t j = 0; j <= query; j++)
		sum += p[j] = exp(p[j] - largest);
	for (int64_t j = 0; j <= query; j++)
		p[j] /= sum;
}

/* Σ dO∘attention(Q, K, V) */
static double attention_loss(const fp_attention_shape *shape, const double *Q, const double *K, const double *V,
							 const double *bias, const double *dO)
{
	int64_t d = shape->head_dim, group = shape->heads / shape->kv_heads;
	double *p = new_doubles(shape->length), *slope = new_doubles(shape->length), loss = 0;
	for (int64_t t = 0; t < shape->sequences * shape->length; t++) {
		for (int64_t h = 0; h < shape->heads; h++) {
			int64_t query = t % shape->length, start = t - query;
			weigh(shape, Q, K, bias, t, h, p, slope);
			for (int64_t j = 0; j <= query; j++)
				for (int64_t e = 0; e < d; e++)
					loss += dO[(t * shape->heads + h) * d + e] * p[j] *
							V[((start + j) * shape->kv_heads + h / group) * d + e];
		}
	}
	free(p);
	free(slope);
	return loss;
}

static void attention_gradients(const fp_attention_shape *shape, const double *Q, const double *K, const double *V,
								const double *bias, const double *dO, attention_sums *sums)
{
	int64_t d = shape->head_dim, group = shape->heads / shape->kv_heads;
	double *p = new_doubles(shape->length), *dp = new_doubles(shape->length), *slope = new_doubles(shape->length);
	for (int64_t t = 0; t < shape->sequences * shape->length; t++) {
		for (int64_t h = 0; h < shape->heads; h++) {
			int64_t query = t % shape->length, start = t - query, q = (t * shape->heads + h) * d;
			double centre = 0;
			weigh(shape, Q, K, bias, t, h, p, slope);
			for (int64_t j = 0; j <= query; j++) {
				int64_t k = ((start + j) * shape->kv_heads + h / group) * d;
				dp[j] = 0;
				for (int64_t e = 0; e < d; e++) {
					sums->out[q + e] += p[j] * V[k + e];
					sums->dV[k + e] += p[j] * dO[q + e];
					dp[j] += dO[q + e] * V[k + e];
				}
				centre += p[j] * dp[j];
			}
			for (int64_t j = 0; j <= query; j++) {
				int64_t k = ((start + j) * shape->kv_heads + h / group) * d;
				for (int64_t e = 0; e < d; e++) {
					sums->dQ[q + e] += slope[j] * (double)shape->scale * p[j] * (dp[j] - centre) * K[k + e];
					sums->dK[k + e] += slope[j] * (double)shape->scale * p[j] * (dp[j] - centre) * Q[q + e];
				}
			}
		}
	}
	free(p);
	free(dp);
	free(slope);
}

static double root_mean_square(const double *x, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += x[i] * x[i] / (double)n;
	return sqrt(sum);
}

/* Compares the reference gradients with central differences along random directions. */
static void check_reference(contract *c, const fp_attention_shape *shape, double *const x[3], const double *bias,
							const double *dO, double *const gradient[3], const int64_t size[3])
{
	for (int k = 0; k < 3; k++) {
		double *direction = new_doubles(size[k]), expected = 0, loss[2];
		const double h = 1e-5;
		for (int64_t i = 0; i < size[k]; i++) {
			direction[i] = (double)random_normal(&c->seed);
			expected += direction[i] * gradient[k][i];
		}
		for (int side = 0; side < 2; side++) {
			for (int64_t i = 0; i < size[k]; i++)
				x[k][i] += (side ? -2 : 1) * h * direction[i];
			loss[side] = attention_loss(shape, x[0], x[1], x[2], bias, dO);
		}
		for (int64_t i = 0; i < size[k]; i++)
			x[k][i] += h * direction[i];
		assert_true(fabs((loss[0] - loss[1]) / (2 * h) - expected) <= 1e-5 * (1 + fabs(expected)));
		free(direction);
	}
}

static void check_attention_backward(contract *c, fp_attention_shape shape, double spread, bool biased)
{
	sample bias = sample_normal(c, shape.heads, shape.length);
	int64_t tokens = shape.sequences * shape.length, d = shape.head_dim;
	int64_t size[3] = {tokens * shape.heads * d, tokens * shape.kv_heads * d, tokens * shape.kv_heads * d};
	shape.scale = (float)(spread / sqrt((double)d));
	shape.key_bias = biased ? bias.view : (fp_matrix){0};
	sample in[3], gradient[3];
	attention_sums sums = {new_doubles(size[0]), new_doubles(size[0]), new_doubles(size[1]), new_doubles(size[2])};
	double *want[3] = {sums.dQ, sums.dK, sums.dV};
	for (int k = 0; k < 3; k++) {
		int64_t cols = (k ? shape.kv_heads : shape.heads) * d;
		in[k] = sample_normal(c, tokens, cols);
		gradient[k] = sample_filled(c, tokens, cols, NAN);
	}
	sample dout = sample_normal(c, tokens, shape.heads * d), out = sample_filled(c, tokens, shape.heads * d, NAN);
	double *x[3] = {in[0].value, in[1].value, in[2].value};
	attention_gradients(&shape, x[0], x[1], x[2], biased ? bias.value : NULL, dout.value, &sums);
	if (size[0] <= 4000)
		check_reference(c, &shape, x, biased ? bias.value : NULL, dout.value, want, size);
	assert_ok(c->ctx, c->be->transformer->attention(c->be, &shape, in[0].view, in[1].view, in[2].view, out.view));
	assert_ok(c->ctx,
			  c->be->gradients->attention_backward(c->be, &shape, in[0].view, in[1].view, in[2].view, out.view,
												   dout.view, gradient[0].view, gradient[1].view, gradient[2].view));
	static const char *const names[] = {"attention_backward by Q", "by K", "by V"};
	for (int k = 0; k < 3; k++) {
		/* sums of up to length·group products whose terms cancel: the error is proportional to the size of all terms,
		 * and sharp weights multiply it by the spread of the scores */
		double scale = root_mean_square(want[k], size[k]) + root_mean_square(sums.dV, size[2]);
		sample_expect(c, &gradient[k], want[k], (20 + 20 * spread * spread) * FLOAT_EPSILON * scale, 1e-5, names[k]);
		sample_free(c, &in[k]);
		sample_free(c, &gradient[k]);
		free(want[k]);
	}
	free(sums.out);
	sample_free(c, &bias);
	sample_free(c, &dout);
	sample_free(c, &out);
}

static void test_attention_backward(void **state)
{
	contract *c = *state;
	static const fp_attention_shape shapes[] = {
		SHAPE(0, 5, 2, 1, 4, 0, 0),      SHAPE(1, 1, 1, 1, 1, 0, 0),    SHAPE(3, 1, 4, 2, 8, 0, 0),
		SHAPE(2, 2, 2, 2, 3, 0, 0),      SHAPE(2, 17, 4, 4, 16, 0, 0),  SHAPE(1, 65, 8, 2, 20, 0, 0),
		SHAPE(2, 129, 6, 1, 32, 0, 0),   SHAPE(1, 700, 2, 1, 16, 0, 0), SHAPE(1, 1100, 1, 1, 8, 0, 0),
		SHAPE(3, 40, 9, 3, 33, 0, 0),    SHAPE(1, 40, 300, 2, 2, 0, 0), SHAPE(2, 90, 4, 2, 8, 7, 0),
		SHAPE(1, 650, 1, 1, 16, 129, 0), SHAPE(1, 650, 2, 1, 8, 1, 0),  SHAPE(1, 650, 1, 1, 8, 5000, 0),
	};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		check_attention_backward(c, shapes[i], 1, false);
		check_attention_backward(c, shapes[i], 8, false);
	}
	for (size_t i = 4; i < sizeof shapes / sizeof *shapes; i++) {
		fp_attention_shape capped = shapes[i];
		capped.soft_cap = 2;
		check_attention_backward(c, shapes[i], 2, true);
		check_attention_backward(c, capped, 3, false);
		check_attention_backward(c, capped, 3, true);
	}
}

static void test_soft_cap_backward(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		const float cap = 1.5f;
		sample Y = sample_normal(c, rows, cols), dX = sample_normal(c, rows, cols);
		double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			double square = Y.value[k] * Y.value[k] / (1.5 * 1.5);
			want[k] = dX.value[k] * (1 - square);
			bound[k] = 4 * FLOAT_EPSILON * fabs(dX.value[k]) * (1 + square);
		}
		assert_ok(c->ctx, c->be->gradients->soft_cap_backward(c->be, cap, Y.view, dX.view));
		sample_expect_within(c, &dX, want, bound, "soft_cap_backward");
		free(want);
		free(bound);
		sample_free(c, &Y);
		sample_free(c, &dX);
	}
}

CONTRACT_TESTS(gradients, cmocka_unit_test(test_norm_backward), cmocka_unit_test(test_cross_entropy_backward),
			   cmocka_unit_test(test_activate_backward), cmocka_unit_test(test_activate_gated_backward),
			   cmocka_unit_test(test_column_sums), cmocka_unit_test(test_difference), cmocka_unit_test(test_adam),
			   cmocka_unit_test(test_soft_cap_backward), cmocka_unit_test(test_attention_backward));
