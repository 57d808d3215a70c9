/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_norm(contract *c, fp_norm_kind kind, int64_t rows, int64_t cols, bool weighted, bool biased,
					   bool in_place)
{
	const double epsilon = (double)1e-5f;
	sample X = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols);
	sample w = sample_normal(c, 1, cols), b = sample_normal(c, 1, cols);
	double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	for (int64_t i = 0; i < rows; i++) {
		const double *x = X.value + i * cols;
		double mean = 0, square = 0;
		for (int64_t k = 0; k < cols && kind == FP_LAYER_NORM; k++)
			mean += x[k] / (double)cols;
		for (int64_t k = 0; k < cols; k++)
			square += (x[k] - mean) * (x[k] - mean) / (double)cols;
		double factor = 1 / sqrt(square + epsilon);
		for (int64_t k = 0; k < cols; k++) {
			double scale = weighted ? w.value[k] : 1, shift = biased && kind == FP_LAYER_NORM ? b.value[k] : 0;
			want[i * cols + k] = (x[k] - mean) * factor * scale + shift;
			/* the mean is rounded to float before it is subtracted: an error of ε·|mean|·factor; then a few products */
			bound[i * cols + k] = FLOAT_EPSILON * (4 * fabs(want[i * cols + k]) + 4 * fabs(shift) +
												   2 * (fabs(mean) + fabs(x[k])) * factor * fabs(scale));
		}
	}
	fp_matrix absent = {0};
	sample *out = in_place ? &X : &Y;
	assert_ok(c->ctx, c->be->transformer->norm(c->be, kind, X.view, weighted ? w.view : absent,
											   biased ? b.view : absent, 1e-5f, out->view));
	sample_expect_within(c, out, want, bound, kind == FP_LAYER_NORM ? "layer norm" : "RMS norm");
	free(want);
	free(bound);
	sample_free(c, &X);
	sample_free(c, &Y);
	sample_free(c, &w);
	sample_free(c, &b);
}

static void test_norm(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		for (int options = 0; options < 8; options++) {
			check_norm(c, FP_LAYER_NORM, contract_shapes[i].rows, contract_shapes[i].cols, options & 1, options & 2,
					   options & 4);
			check_norm(c, FP_RMS_NORM, contract_shapes[i].rows, contract_shapes[i].cols, options & 1, options & 2,
					   options & 4);
		}
	}
}

static void test_add_bias(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		sample X = sample_normal(c, rows, cols), b = sample_normal(c, 1, cols);
		for (int64_t k = 0; k < rows * cols; k++)
			X.value[k] += b.value[k % cols];
		assert_ok(c->ctx, c->be->transformer->add_bias(c->be, b.view, X.view));
		sample_expect(c, &X, X.value, 0, FLOAT_EPSILON, "add_bias"); /* one sum */
		sample_free(c, &X);
		sample_free(c, &b);
	}
}

/* exp in float has an error of a few ε plus ε·|argument| from its rounded argument, at most 90. Results close to zero
 * have the absolute error of x/(1 + exp(−x)) with a large exponential, or of 1 + erf. */
static double activation_bound(double x, double want)
{
	return FLOAT_EPSILON * ((8 + 2 * fabs(x)) * fabs(want) + fabs(x)) + 1e-37;
}

static sample sample_wide(contract *c, int64_t rows, int64_t cols)
{
	static const double special[] = {0, -0.0, 1e-30, -1e-30, 20, -20, 87, -87, 90, -90, 300, -300, 1e4, -1e4};
	return sample_mixed(c, rows, cols, 5, special, sizeof special / sizeof *special);
}

static void test_activate(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count * 4; i++) {
		fp_activation kind = (fp_activation)(i % 4);
		int64_t rows = contract_shapes[i / 4].rows, cols = contract_shapes[i / 4].cols;
		sample X = sample_wide(c, rows, cols), Y = sample_normal(c, rows, cols);
		double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			want[k] = plain_activation(kind, X.value[k]);
			bound[k] = kind == FP_RELU ? 0 : activation_bound(X.value[k], want[k]);
		}
		assert_ok(c->ctx, c->be->transformer->activate(c->be, kind, X.view, Y.view));
		sample_expect_within(c, &Y, want, bound, "activate");
		assert_ok(c->ctx, c->be->transformer->activate(c->be, kind, X.view, X.view));
		sample_expect_within(c, &X, want, bound, "activate in place");
		free(want);
		free(bound);
		sample_free(c, &X);
		sample_free(c, &Y);
	}
}

static void test_activate_gated(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count * 12; i++) {
		fp_activation kind = (fp_activation)(i % 4);
		int where = i / 4 % 3;
		int64_t rows = contract_shapes[i / 12].rows, cols = contract_shapes[i / 12].cols;
		sample G = sample_wide(c, rows, cols), U = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols);
		double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			double f = plain_activation(kind, G.value[k]);
			want[k] = f * U.value[k];
			bound[k] = activation_bound(G.value[k], f) * fabs(U.value[k]) + FLOAT_EPSILON * fabs(want[k]);
		}
		sample *out = where == 0 ? &Y : where == 1 ? &G : &U;
		assert_ok(c->ctx, c->be->transformer->activate_gated(c->be, kind, G.view, U.view, out->view));
		sample_expect_within(c, out, want, bound, "activate_gated");
		free(want);
		free(bound);
		sample_free(c, &G);
		sample_free(c, &U);
		sample_free(c, &Y);
	}
}

/* `kept` entries at the end of each head are not rotated. */
static void check_rotate(contract *c, fp_pairing pairing, int64_t sequences, int64_t length, int64_t heads,
						 int64_t half, int64_t kept)
{
	int64_t rows = sequences * length, width = 2 * half + kept, cols = heads * width;
	sample X = sample_normal(c, rows, cols), cosine = sample_normal(c, length, half),
		   sine = sample_normal(c, length, half);
	double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	memcpy(want, X.value, (size_t)(rows * cols) * sizeof *want);
	for (int64_t t = 0; t < rows; t++) {
		for (int64_t h = 0; h < heads; h++) {
			for (int64_t i = 0; i < half; i++) {
				bool halves = pairing == FP_PAIR_HALVES;
				int64_t a = t * cols + h * width + (halves ? i : 2 * i), b = a + (halves ? half : 1);
				double co = cosine.value[t % length * half + i], si = sine.value[t % length * half + i];
				want[a] = X.value[a] * co - X.value[b] * si;
				want[b] = X.value[b] * co + X.value[a] * si;
				/* two products and a sum */
				bound[a] = bound[b] = FLOAT_EPSILON * (fabs(X.value[a]) + fabs(X.value[b])) * (fabs(co) + fabs(si));
			}
		}
	}
	assert_ok(c->ctx, c->be->transformer->rotate(c->be, pairing, cosine.view, sine.view, heads, X.view));
	sample_expect_within(c, &X, want, bound, "rotate");
	free(want);
	free(bound);
	sample_free(c, &X);
	sample_free(c, &cosine);
	sample_free(c, &sine);
}

static void test_rotate(void **state)
{
	contract *c = *state;
	static const fp_pairing pairings[] = {FP_PAIR_HALVES, FP_PAIR_NEIGHBOURS};
	for (int i = 0; i < 2; i++) {
		check_rotate(c, pairings[i], 0, 4, 2, 3, 0);
		check_rotate(c, pairings[i], 1, 1, 1, 1, 0);
		check_rotate(c, pairings[i], 3, 5, 2, 3, 0);
		check_rotate(c, pairings[i], 2, 7, 4, 32, 0);
		check_rotate(c, pairings[i], 2, 65, 12, 32, 0);
		check_rotate(c, pairings[i], 2, 65, 12, 32, 32);
		check_rotate(c, pairings[i], 3, 5, 2, 3, 7);
		check_rotate(c, pairings[i], 2, 9, 8, 8, 48);
	}
}

static void test_soft_cap(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		sample X = sample_normal(c, rows, cols);
		double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			want[k] = 1.5 * tanh(X.value[k] / 1.5);
			bound[k] = 8 * FLOAT_EPSILON * fabs(want[k]) + 1e-30;
		}
		assert_ok(c->ctx, c->be->transformer->soft_cap(c->be, 1.5f, X.view));
		sample_expect_within(c, &X, want, bound, "soft_cap");
		free(want);
		free(bound);
		sample_free(c, &X);
	}
}

static void check_cross_entropy(contract *c, int64_t rows, int64_t cols, double scale)
{
	double *values = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++)
		values[k] = floor(scale * (double)random_normal(&c->seed) * 8) / 8; /* many ties for the argmax */
	sample X = sample_from(c, rows, cols, values), out = sample_normal(c, 1, rows);
	int32_t *targets = calloc((size_t)rows + 1, sizeof *targets), *argmax = calloc((size_t)rows + 1, sizeof *argmax);
	double *want = new_doubles(rows), *bound = new_doubles(rows);
	for (int64_t i = 0; i < rows; i++) {
		const double *x = X.value + i * cols;
		int64_t best = 0;
		double sum = 0;
		for (int64_t k = 1; k < cols; k++)
			best = x[k] > x[best] ? k : best;
		for (int64_t k = 0; k < cols; k++)
			sum += exp(x[k] - x[best]);
		targets[i] = (int32_t)(i % 4 == 3 ? -1 : i % 4 == 2 ? best : contract_random(c, 0, cols - 1));
		want[i] = targets[i] < 0 ? 0 : log(sum) + x[best] - x[targets[i]];
		/* relative errors of the exponentials (a few ε, and ε·90 from their arguments) become an absolute error of the
		 * logarithm; the result is rounded to float */
		bound[i] = targets[i] < 0 ? 0 : FLOAT_EPSILON * (100 + want[i]);
		argmax[i] = (int32_t)best;
	}
	int32_t *got = calloc((size_t)rows + 1, sizeof *got);
	assert_ok(c->ctx, c->be->transformer->cross_entropy(c->be, X.view, targets, out.view, got));
	sample_expect_within(c, &out, want, bound, "cross_entropy");
	assert_memory_equal(got, argmax, (size_t)rows * sizeof *got);
	assert_ok(c->ctx, c->be->memory->fill(c->be, out.view, 9));
	assert_ok(c->ctx, c->be->transformer->cross_entropy(c->be, X.view, targets, out.view, NULL));
	sample_expect_within(c, &out, want, bound, "cross_entropy without argmax");
	free(got);
	free(want);
	free(bound);
	free(targets);
	free(argmax);
	free(values);
	sample_free(c, &X);
	sample_free(c, &out);
}

static void test_cross_entropy(void **state)
{
	contract *c = *state;
	check_cross_entropy(c, 0, 5, 1);
	check_cross_entropy(c, 3, 1, 1);
	check_cross_entropy(c, 9, 7, 1);
	check_cross_entropy(c, 5, 33, 30);
	check_cross_entropy(c, 13, 1000, 3);
	check_cross_entropy(c, 6, 50272, 5);
}

/* log Σ exp(x) */
static double log_sum_exp(const double *x, int64_t count)
{
	double largest = x[0], sum = 0;
	for (int64_t k = 1; k < count; k++)
		largest = fmax(largest, x[k]);
	for (int64_t k = 0; k < count; k++)
		sum += exp(x[k] - largest);
	return largest + log(sum);
}

/* Q = P + noise·normal; with noise 0 the divergence is exactly 0 */
static void check_divergence(contract *c, int64_t rows, int64_t cols, double scale, double noise)
{
	double *values = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++)
		values[k] = scale * (double)random_normal(&c->seed);
	sample P = sample_from(c, rows, cols, values), out = sample_normal(c, 1, rows);
	for (int64_t k = 0; k < rows * cols; k++)
		values[k] = P.value[k] + noise * (double)random_normal(&c->seed);
	sample Q = sample_from(c, rows, cols, values);
	double *want = new_doubles(rows), *bound = new_doubles(rows);
	for (int64_t i = 0; i < rows; i++) {
		const double *x = P.value + i * cols, *y = Q.value + i * cols;
		double p_sum = log_sum_exp(x, cols), q_sum = log_sum_exp(y, cols), spread = 0;
		for (int64_t k = 0; k < cols; k++) {
			double difference = (x[k] - p_sum) - (y[k] - q_sum);
			want[i] += exp(x[k] - p_sum) * difference;
			spread += exp(x[k] - p_sum) * fabs(difference);
		}
		/* the relative errors of cross_entropy()'s exponentials, in the two logarithms and in the sum */
		bound[i] = noise == 0 ? 0 : FLOAT_EPSILON * (100 + 100 * spread);
		want[i] = noise == 0 ? 0 : want[i];
	}
	assert_ok(c->ctx, c->be->transformer->divergence(c->be, P.view, Q.view, out.view));
	sample_expect_within(c, &out, want, bound, "divergence");
	double *got = sample_read(c, &out);
	for (int64_t i = 0; i < rows; i++)
		assert_true(got[i] >= 0);
	free(got);
	free(want);
	free(bound);
	free(values);
	sample_free(c, &P);
	sample_free(c, &Q);
	sample_free(c, &out);
}

static void test_divergence(void **state)
{
	contract *c = *state;
	static const double noises[] = {0, 1e-4, 0.3, 4};
	for (int i = 0; i < 4; i++) {
		check_divergence(c, 0, 5, 1, noises[i]);
		check_divergence(c, 3, 1, 1, noises[i]);
		check_divergence(c, 9, 7, 1, noises[i]);
		check_divergence(c, 5, 33, 30, noises[i]);
		check_divergence(c, 13, 1000, 3, noises[i]);
		check_divergence(c, 6, 50272, 5, noises[i]);
	}
}

/* Row numbers below `limit`, some of them more than once. */
static int32_t *random_rows(contract *c, int64_t count, int64_t limit)
{
	int32_t *rows = malloc((size_t)(count + 1) * sizeof *rows);
	for (int64_t i = 0; i < count; i++)
		rows[i] = (int32_t)contract_random(c, 0, limit - 1);
	return rows;
}

static void check_gather(contract *c, int64_t rows, int64_t cols, bool scaled)
{
	int64_t taken = rows > 0 ? 2 * rows + 1 : 0;
	int32_t *from = random_rows(c, taken, rows);
	sample X = sample_normal(c, rows, cols), Y = sample_normal(c, taken, cols), s = sample_normal(c, 1, taken);
	double *want = new_doubles(taken * cols);
	for (int64_t i = 0; i < taken * cols; i++)
		want[i] = (scaled ? s.value[i / cols] : 1) * X.value[from[i / cols] * cols + i % cols];
	assert_ok(c->ctx, c->be->transformer->gather_rows(c->be, from, scaled ? s.view : (fp_matrix){0}, X.view, Y.view));
	sample_expect(c, &Y, want, 0, FLOAT_EPSILON, "gather_rows");
	sample_expect(c, &X, X.value, 0, 0, "what is gathered");
	sample_free(c, &s);
	if (scaled) { /* each row stays where it is */
		s = sample_normal(c, 1, rows);
		for (int64_t i = 0; i < rows * cols; i++)
			X.value[i] *= s.value[i / cols];
		assert_ok(c->ctx, c->be->transformer->gather_rows(c->be, NULL, s.view, X.view, X.view));
		sample_expect(c, &X, X.value, 0, FLOAT_EPSILON, "gather_rows in place");
		sample_free(c, &s);
	}
	sample_free(c, &X);
	sample_free(c, &Y);
	free(want);
	free(from);
}

static void check_add_rows(contract *c, int64_t rows, int64_t cols, int64_t count, bool adds)
{
	int32_t *from = random_rows(c, rows * count, rows);
	sample X = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols);
	double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	for (int64_t i = 0; i < rows * cols; i++) {
		double sizes = want[i] = adds ? 0.5 * Y.value[i] : 0;
		sizes = fabs(sizes);
		for (int64_t k = 0; k < count; k++) {
			double value = X.value[from[i / cols * count + k] * cols + i % cols];
			want[i] += value;
			sizes += fabs(value);
		}
		bound[i] = (double)(count + 1) * FLOAT_EPSILON * sizes;
	}
	assert_ok(c->ctx, c->be->transformer->add_rows(c->be, from, count, X.view, adds ? 0.5F : 0.0F, Y.view));
	sample_expect_within(c, &Y, want, bound, "add_rows");
	sample_free(c, &X);
	sample_free(c, &Y);
	free(want);
	free(bound);
	free(from);
}

static void test_gather_rows(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++)
		for (int scaled = 0; scaled < 2; scaled++)
			check_gather(c, contract_shapes[i].rows, contract_shapes[i].cols, scaled);
	sample X = sample_normal(c, 3, 4), Y = sample_normal(c, 3, 5);
	const int32_t rows[] = {0, 1, 2};
	assert_int_not_equal(c->be->transformer->gather_rows(c->be, rows, (fp_matrix){0}, X.view, Y.view), FP_OK);
	sample_free(c, &X);
	sample_free(c, &Y);
}

static void test_add_rows(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++)
		for (int64_t count = 1; count < 4; count++)
			check_add_rows(c, contract_shapes[i].rows, contract_shapes[i].cols, count, count % 2);
}

CONTRACT_TESTS(transformer, cmocka_unit_test(test_norm), cmocka_unit_test(test_add_bias),
			   cmocka_unit_test(test_activate), cmocka_unit_test(test_activate_gated), cmocka_unit_test(test_rotate),
			   cmocka_unit_test(test_soft_cap), cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_divergence),
			   cmocka_unit_test(test_gather_rows), cmocka_unit_test(test_add_rows));
