/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};
enum { TYPES = 3 };

/* W with about `density` of its entries, at most two in a group of four if `pairs`, as numbers of the type. */
static sample sparse(contract *c, int64_t rows, int64_t cols, double density, bool pairs, fp_dtype dtype)
{
	double *value = new_doubles(rows * cols);
	for (int64_t i = 0; i < rows * cols; i++) {
		float number = (float)random_normal(&c->seed), rounded;
		uint32_t bits = 0;
		fp_from_float(&bits, dtype, &number, 1);
		fp_to_float(&rounded, &bits, dtype, 1);
		value[i] = ((double)random_uniform(&c->seed) + 1) / 2 < density ? (double)rounded : 0;
	}
	for (int64_t i = 0; pairs && i + 4 <= rows * cols; i += 4) {
		int64_t first = contract_random(c, 0, 3), second = contract_random(c, 0, 3);
		for (int64_t j = 0; j < 4; j++)
			value[i + j] = j == first || j == second ? value[i + j] : 0; /* never −0.0, which is an entry */
	}
	sample W = sample_from(c, rows, cols, value);
	free(value);
	return W;
}

/* Whether the device holds the entries of W, read back as floats. */
static void expect_expanded(contract *c, const fp_held *held, const sample *W, const char *what)
{
	sample out = sample_filled(c, W->view.rows, W->view.cols, NAN);
	assert_ok(c->ctx, c->be->decode->expand(c->be, held, out.view));
	sample_expect(c, &out, W->value, 0, 0, what);
	sample_free(c, &out);
}

static void expect_product(contract *c, const sample *X, const sample *W, const sample *Y, const char *what)
{
	int64_t b = X->view.rows, n = X->view.cols, m = W->view.rows;
	double *want = new_doubles(b * m), *bound = new_doubles(b * m);
	for (int64_t i = 0; i < b; i++)
		for (int64_t k = 0; k < m; k++) {
			double sum = 0, size = 0;
			for (int64_t j = 0; j < n; j++) {
				double term = X->value[i * n + j] * W->value[k * n + j];
				sum += term;
				size += fabs(term);
			}
			want[i * m + k] = sum;
			bound[i * m + k] = FLOAT_EPSILON * (double)(n + 4) / 2 * size; /* as for gemm */
		}
	sample_expect_within(c, Y, want, bound, what);
	free(want);
	free(bound);
}

static void check_form(contract *c, int64_t m, int64_t n, int64_t batch, fp_held_form form, fp_dtype dtype,
					   double density)
{
	char what[128];
	snprintf(what, sizeof what, "%lld rows with %s %s, %.2f dense", (long long)batch, fp_held_form_name(form),
			 fp_dtype_name(dtype), density);
	sample W = sparse(c, m, n, density, form == FP_HELD_TWO_OF_FOUR, dtype);
	sample X = sample_normal(c, batch, n), Y = sample_filled(c, batch, m, NAN);
	fp_held held;
	const fp_held *parts[1] = {&held};
	assert_ok(c->ctx, c->be->decode->hold(c->be, &held, W.view, dtype, form));
	assert_int_equal(held.form, form);
	assert_int_equal(held.rows, m);
	assert_int_equal(held.cols, n);
	expect_expanded(c, &held, &W, what);
	assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, 1, parts, false, &Y.view));
	expect_product(c, &X, &W, &Y, what);
	fp_held_free(c->be, &held);
	sample_free(c, &W);
	sample_free(c, &X);
	sample_free(c, &Y);
}

static const double densities[] = {0, 0.02, 0.3, 0.5, 1};

static void test_forms(void **state)
{
	contract *c = *state;
	/* columns: fewer than a piece, whole ones, odd ones, more than a chunk of a GPU's rows */
	static const int64_t shapes[][2] = {{1, 1},    {3, 5},    {4, 32},    {5, 31},   {7, 36},   {2, 100},
										{33, 257}, {16, 512}, {130, 768}, {9, 1023}, {6, 4096}, {5, 4100}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int t = 0; t < TYPES; t++)
			for (int form = 0; form < FP_HELD_FORMS; form++) {
				int64_t m = shapes[i][0], n = shapes[i][1];
				if (form == FP_HELD_TWO_OF_FOUR && n % 4 != 0)
					continue;
				for (size_t d = 0; d < sizeof densities / sizeof *densities; d++)
					check_form(c, m, n, contract_random(c, 1, FP_DECODE_BATCH), (fp_held_form)form, types[t],
							   densities[d]);
			}
}

static void test_batches(void **state)
{
	contract *c = *state;
	for (int64_t batch = 1; batch <= FP_DECODE_BATCH; batch++)
		for (int t = 0; t < TYPES; t++)
			for (int form = 0; form < FP_HELD_FORMS; form++) {
				check_form(c, 37, 612, batch, (fp_held_form)form, types[t], 0.5);
				check_form(c, 21, 5632, batch, (fp_held_form)form, types[t], 0.3);
			}
}

static void test_empty(void **state)
{
	contract *c = *state;
	for (int form = 0; form < FP_HELD_FORMS; form++) {
		check_form(c, 5, 0, 2, (fp_held_form)form, FP_BF16, 0.5);
		check_form(c, 0, 8, 2, (fp_held_form)form, FP_BF16, 0.5);
	}
}

/* A row whose nonzeros stand in one place only, far from each other, or at both ends: gaps of every length. */
static void test_gaps(void **state)
{
	contract *c = *state;
	enum { ROWS = 40, COLS = 9000 };
	double *value = new_doubles(ROWS * COLS);
	for (int64_t r = 0; r < ROWS; r++)
		for (int64_t j = r; j < COLS; j += 1 + r * r)
			value[r * COLS + j] = 1 + (double)(j % 5);
	for (int64_t j = 0; j < COLS; j++)
		value[(ROWS - 1) * COLS + j] = j < 700 || j >= COLS - 3 ? 2 : 0;
	sample W = sample_from(c, ROWS, COLS, value), X = sample_normal(c, 3, COLS), Y = sample_filled(c, 3, ROWS, NAN);
	fp_held held;
	const fp_held *parts[1] = {&held};
	assert_ok(c->ctx, c->be->decode->hold(c->be, &held, W.view, FP_BF16, FP_HELD_MASK));
	expect_expanded(c, &held, &W, "mask with gaps");
	assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, 1, parts, false, &Y.view));
	expect_product(c, &X, &W, &Y, "mask with gaps");
	fp_held_free(c->be, &held);
	sample_free(c, &W);
	sample_free(c, &X);
	sample_free(c, &Y);
	free(value);
}

/* Several matrices with one input, of different forms and types. */
static void test_parts(void **state)
{
	contract *c = *state;
	static const int64_t rows[FP_DECODE_PARTS] = {96, 17, 17, 200};
	static const fp_held_form forms[FP_DECODE_PARTS] = {FP_HELD_MASK, FP_HELD_MASK, FP_HELD_TWO_OF_FOUR, FP_HELD_DENSE};
	static const fp_dtype held_types[FP_DECODE_PARTS] = {FP_BF16, FP_BF16, FP_F16, FP_F32};
	sample X = sample_normal(c, 5, 640), W[FP_DECODE_PARTS], Y[FP_DECODE_PARTS];
	fp_held held[FP_DECODE_PARTS];
	const fp_held *parts[FP_DECODE_PARTS];
	fp_matrix out[FP_DECODE_PARTS];
	for (int i = 0; i < FP_DECODE_PARTS; i++) {
		/* a GPU may want x differently for the second mask, which is sparser */
		W[i] = sparse(c, rows[i], 640, i == 1 ? 0.04 : 0.5, forms[i] == FP_HELD_TWO_OF_FOUR, held_types[i]);
		Y[i] = sample_filled(c, 5, rows[i], NAN);
		out[i] = Y[i].view;
		parts[i] = &held[i];
		assert_ok(c->ctx, c->be->decode->hold(c->be, &held[i], W[i].view, held_types[i], forms[i]));
	}
	for (int count = 1; count <= FP_DECODE_PARTS; count++)
		assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, count, parts, false, out));
	for (int i = 0; i < FP_DECODE_PARTS; i++) {
		expect_product(c, &X, &W[i], &Y[i], "one of several");
		fp_held_free(c->be, &held[i]);
		sample_free(c, &W[i]);
		sample_free(c, &Y[i]);
	}
	sample_free(c, &X);
}

/* More rows than a GPU takes at once, so that it goes on from row to row and from one matrix to the next. */
static void test_many_rows(void **state)
{
	contract *c = *state;
	enum { PARTS = 3, N = 200, B = 2 };
	static const int64_t rows[PARTS] = {5000, 3001, 2507};
	for (int form = 0; form < FP_HELD_FORMS; form++) {
		sample X = sample_normal(c, B, N), W[PARTS], Y[PARTS];
		fp_held held[PARTS];
		const fp_held *parts[PARTS];
		fp_matrix out[PARTS];
		for (int i = 0; i < PARTS; i++) {
			W[i] = sparse(c, rows[i], N, 0.5, form == FP_HELD_TWO_OF_FOUR, FP_BF16);
			Y[i] = sample_filled(c, B, rows[i], NAN);
			out[i] = Y[i].view;
			parts[i] = &held[i];
			assert_ok(c->ctx, c->be->decode->hold(c->be, &held[i], W[i].view, FP_BF16, (fp_held_form)form));
		}
		assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, PARTS, parts, false, out));
		for (int i = 0; i < PARTS; i++) {
			expect_product(c, &X, &W[i], &Y[i], "many rows");
			fp_held_free(c->be, &held[i]);
			sample_free(c, &W[i]);
			sample_free(c, &Y[i]);
		}
		sample_free(c, &X);
	}
}

/* Y + X Wᵀ. */
static void test_adding(void **state)
{
	contract *c = *state;
	for (int form = 0; form < FP_HELD_FORMS; form++) {
		sample W = sparse(c, 50, 300, 0.5, form == FP_HELD_TWO_OF_FOUR, FP_BF16);
		sample X = sample_normal(c, 3, 300), Y = sample_filled(c, 3, 50, NAN), sum = sample_normal(c, 3, 50);
		fp_held held;
		const fp_held *parts[1] = {&held};
		assert_ok(c->ctx, c->be->decode->hold(c->be, &held, W.view, FP_BF16, (fp_held_form)form));
		assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, 1, parts, false, &Y.view));
		assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, 1, parts, true, &sum.view));
		double *product = sample_read(c, &Y);
		for (int64_t i = 0; i < 3 * 50; i++)
			product[i] += sum.value[i];
		sample_expect(c, &sum, product, 1e-6, 2e-7, "a sum");
		free(product);
		fp_held_free(c->be, &held);
		sample_free(c, &W);
		sample_free(c, &X);
		sample_free(c, &Y);
		sample_free(c, &sum);
	}
}

/* BF16 in and out gives the rounded product of the rounded X. */
static void test_narrow(void **state)
{
	contract *c = *state;
	enum { B = 5, M = 70, N = 333 };
	if (!fp_backend_can(c->be, FP_CAN_MULTIPLY_NARROW))
		return;
	for (int form = 0; form < FP_HELD_TWO_OF_FOUR; form++) {
		sample W = sparse(c, M, N, 0.5, false, FP_BF16), X = sample_normal(c, B, N), Y = sample_filled(c, B, M, NAN);
		sample wide = sample_filled(c, B, M, NAN), rounded = sample_filled(c, B, N, NAN);
		fp_matrix narrow_X, narrow_Y;
		fp_held held;
		const fp_held *parts[1] = {&held};
		assert_ok(c->ctx, fp_matrix_new(c->be, &narrow_X, B, N, FP_BF16));
		assert_ok(c->ctx, fp_matrix_new(c->be, &narrow_Y, B, M, FP_BF16));
		assert_ok(c->ctx, c->be->memory->copy(c->be, narrow_X, X.view));
		assert_ok(c->ctx, c->be->memory->copy(c->be, rounded.view, narrow_X));
		assert_ok(c->ctx, c->be->decode->hold(c->be, &held, W.view, FP_BF16, (fp_held_form)form));
		assert_ok(c->ctx, c->be->decode->multiply(c->be, narrow_X, 1, parts, false, &narrow_Y));
		assert_ok(c->ctx, c->be->decode->multiply(c->be, rounded.view, 1, parts, false, &wide.view));
		assert_ok(c->ctx, c->be->memory->copy(c->be, Y.view, narrow_Y));
		double *want = sample_read(c, &wide);
		sample_expect(c, &Y, want, 1e-30, 0.004, "a product in BF16"); /* half of the last of eight bits */
		free(want);
		fp_held_free(c->be, &held);
		fp_matrix_free(c->be, &narrow_X);
		fp_matrix_free(c->be, &narrow_Y);
		sample_free(c, &W);
		sample_free(c, &X);
		sample_free(c, &Y);
		sample_free(c, &wide);
		sample_free(c, &rounded);
	}
}

/* The same row of X gives the same bits alone, among others, and again. */
static void test_determinism(void **state)
{
	contract *c = *state;
	for (int form = 0; form < FP_HELD_FORMS; form++) {
		sample W = sparse(c, 150, 1100, 0.5, form == FP_HELD_TWO_OF_FOUR, FP_BF16);
		sample X = sample_normal(c, FP_DECODE_BATCH, 1100), Y = sample_filled(c, FP_DECODE_BATCH, 150, NAN);
		sample alone = sample_filled(c, 1, 150, NAN);
		fp_held held;
		const fp_held *parts[1] = {&held};
		assert_ok(c->ctx, c->be->decode->hold(c->be, &held, W.view, FP_BF16, (fp_held_form)form));
		assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, 1, parts, false, &Y.view));
		double *first = sample_read(c, &Y);
		assert_ok(c->ctx, c->be->decode->multiply(c->be, X.view, 1, parts, false, &Y.view));
		sample_expect(c, &Y, first, 0, 0, "the second time");
		for (int64_t b = 0; b < FP_DECODE_BATCH; b++) {
			assert_ok(c->ctx,
					  c->be->decode->multiply(c->be, fp_matrix_rows(X.view, b, 1), 1, parts, false, &alone.view));
			sample_expect(c, &alone, first + b * 150, 0, 0, "alone");
		}
		free(first);
		fp_held_free(c->be, &held);
		sample_free(c, &W);
		sample_free(c, &X);
		sample_free(c, &Y);
		sample_free(c, &alone);
	}
}

/* The form of the fewest bytes; dense if nothing is gained. −0.0 is an entry. */
static void test_choice(void **state)
{
	contract *c = *state;
	static const struct {
		double density;
		bool pairs;
		fp_held_form form;
	} cases[] = {{1, false, FP_HELD_DENSE},
				 {0.9, false, FP_HELD_DENSE},
				 {0.5, false, FP_HELD_MASK},
				 {1, true, FP_HELD_TWO_OF_FOUR},
				 {0.2, true, FP_HELD_MASK}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		sample W = sparse(c, 40, 320, cases[i].density, false, FP_BF16);
		for (int64_t k = 0; cases[i].pairs && k < 40 * 320; k++)
			W.value[k] = k % 4 < 2 ? W.value[k] : 0;
		sample V = sample_from(c, 40, 320, W.value);
		fp_held held;
		assert_ok(c->ctx, c->be->decode->hold(c->be, &held, V.view, FP_BF16, FP_HELD_SMALLEST));
		assert_int_equal(held.form, cases[i].form);
		assert_true(held.bytes > 0 && held.bytes <= 2 * 40 * 512);
		fp_held_free(c->be, &held);
		sample_free(c, &W);
		sample_free(c, &V);
	}
	double zeros[8] = {-0.0, 0, 0, 0, 0, 0, 0, 1};
	sample W = sample_from(c, 1, 8, zeros);
	fp_held held;
	assert_ok(c->ctx, c->be->decode->hold(c->be, &held, W.view, FP_F16, FP_HELD_MASK));
	assert_int_equal(held.nonzeros, 2);
	fp_held_free(c->be, &held);
	sample_free(c, &W);
}

static void test_refusals(void **state)
{
	contract *c = *state;
	sample W = sample_normal(c, 6, 8), X = sample_normal(c, 9, 8), Y = sample_filled(c, 9, 6, 0);
	fp_held held;
	const fp_held *parts[1] = {&held};
	assert_int_equal(c->be->decode->hold(c->be, &held, W.view, FP_BF16, FP_HELD_TWO_OF_FOUR), FP_ERROR_INTERNAL);
	assert_ok(c->ctx, c->be->decode->hold(c->be, &held, W.view, FP_BF16, FP_HELD_SMALLEST));
	assert_int_equal(c->be->decode->multiply(c->be, X.view, 1, parts, false, &Y.view), FP_ERROR_INTERNAL);
	fp_matrix short_row = fp_matrix_cols(fp_matrix_rows(X.view, 0, 1), 0, 7), out = fp_matrix_rows(Y.view, 0, 1);
	assert_int_equal(c->be->decode->multiply(c->be, short_row, 1, parts, false, &out), FP_ERROR_INTERNAL);
	fp_held_free(c->be, &held);
	sample_free(c, &W);
	sample_free(c, &X);
	sample_free(c, &Y);
}

static void test_read_time(void **state)
{
	contract *c = *state;
	double seconds = -1;
	assert_ok(c->ctx, c->be->decode->read_time(c->be, 16 << 20, &seconds));
	assert_true(seconds > 0 && seconds < 10);
}

CONTRACT_TESTS(decode, cmocka_unit_test(test_forms), cmocka_unit_test(test_batches), cmocka_unit_test(test_empty),
			   cmocka_unit_test(test_gaps), cmocka_unit_test(test_parts), cmocka_unit_test(test_many_rows),
			   cmocka_unit_test(test_adding), cmocka_unit_test(test_narrow), cmocka_unit_test(test_determinism),
			   cmocka_unit_test(test_choice), cmocka_unit_test(test_refusals), cmocka_unit_test(test_read_time));
