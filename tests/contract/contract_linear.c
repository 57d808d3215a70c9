/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double at(const sample *s, fp_transpose t, int64_t i, int64_t j)
{
	return t == FP_PLAIN ? s->value[i * s->view.cols + j] : s->value[j * s->view.cols + i];
}

static void check_gemm(contract *c, int64_t m, int64_t n, int64_t k, fp_transpose ta, fp_transpose tb, float alpha,
					   float beta)
{
	sample A = ta == FP_PLAIN ? sample_normal(c, m, k) : sample_normal(c, k, m);
	sample B = tb == FP_PLAIN ? sample_normal(c, k, n) : sample_normal(c, n, k);
	/* β = 0 must not read C */
	sample C = beta == 0 ? sample_filled(c, m, n, NAN) : sample_normal(c, m, n);
	double *want = new_doubles(m * n), *bound = new_doubles(m * n);
	for (int64_t i = 0; i < m; i++) {
		for (int64_t j = 0; j < n; j++) {
			double old = beta == 0 ? 0 : (double)beta * C.value[i * n + j], sum = 0, size = fabs(old);
			for (int64_t p = 0; p < k; p++) {
				double term = (double)alpha * at(&A, ta, i, p) * at(&B, tb, p, j);
				sum += term;
				size += fabs(term);
			}
			want[i * n + j] = sum + old;
			/* k products and sums in float, in any order: each adds at most ε/2 of the sum of sizes */
			bound[i * n + j] = FLOAT_EPSILON * (double)(k + 4) / 2 * size;
		}
	}
	assert_ok(c->ctx, c->be->linear->gemm(c->be, alpha, A.view, ta, B.view, tb, beta, C.view));
	sample_expect_within(c, &C, want, bound, "gemm");
	free(want);
	free(bound);
	sample_free(c, &A);
	sample_free(c, &B);
	sample_free(c, &C);
}

static void test_gemm(void **state)
{
	contract *c = *state;
	static const int64_t sizes[][3] = {{0, 3, 4},    {3, 0, 4},     {3, 4, 0},    {1, 1, 1},
									   {1, 9, 5},    {7, 1, 3},     {2, 3, 129},  {33, 17, 65},
									   {64, 64, 64}, {130, 70, 33}, {5, 300, 40}, {257, 129, 190}};
	static const float factors[][2] = {{1, 0}, {1, 1}, {-0.5f, 2}, {0, 0.5f}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		for (int t = 0; t < 4; t++) {
			for (int f = 0; f < 4; f++)
				check_gemm(c, sizes[i][0], sizes[i][1], sizes[i][2], t & 1 ? FP_TRANSPOSED : FP_PLAIN,
						   t & 2 ? FP_TRANSPOSED : FP_PLAIN, factors[f][0], factors[f][1]);
		}
	}
}

/* `count` products of n × n blocks: of A they lie one below the other, of B and C side by side. */
static void check_gemm_blocks(contract *c, int64_t count, int64_t n, fp_transpose ta, fp_transpose tb, float beta)
{
	sample A = sample_normal(c, count * n, n), B = sample_normal(c, n, count * n), C = sample_normal(c, n, count * n);
	int64_t cols = count * n;
	double *want = new_doubles(n * cols), *bound = new_doubles(n * cols);
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < cols; j++) {
			int64_t block = j / n, at = i * cols + j;
			double sum = (double)beta * C.value[at], size = fabs(sum);
			for (int64_t k = 0; k < n; k++) {
				double a = ta == FP_PLAIN ? A.value[(block * n + i) * n + k] : A.value[(block * n + k) * n + i];
				double b = tb == FP_PLAIN ? B.value[k * cols + j] : B.value[(j % n) * cols + block * n + k];
				sum += 0.5 * a * b;
				size += fabs(a * b);
			}
			want[at] = sum;
			bound[at] = FLOAT_EPSILON * (double)(n + 4) * size; /* as for gemm */
		}
	fp_blocks blocks = {count, n * A.view.stride, n, n};
	assert_ok(c->ctx,
			  c->be->linear->gemm_blocks(c->be, 0.5F, fp_matrix_rows(A.view, 0, n), ta, fp_matrix_cols(B.view, 0, n),
										 tb, beta, fp_matrix_cols(C.view, 0, n), blocks));
	sample_expect_within(c, &C, want, bound, "gemm_blocks");
	free(want);
	free(bound);
	sample_free(c, &A);
	sample_free(c, &B);
	sample_free(c, &C);
}

static void test_gemm_blocks(void **state)
{
	contract *c = *state;
	static const int64_t sizes[][2] = {{1, 1}, {1, 33}, {2, 7}, {5, 64}, {3, 128}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int t = 0; t < 4; t++)
			for (int keep = 0; keep < 2; keep++)
				check_gemm_blocks(c, sizes[i][0], sizes[i][1], t & 1 ? FP_TRANSPOSED : FP_PLAIN,
								  t & 2 ? FP_TRANSPOSED : FP_PLAIN, keep ? 1.0F : 0.0F);
}

static void test_gram_and_mirror(void **state)
{
	contract *c = *state;
	static const int64_t sizes[][2] = {{0, 3},  {3, 0},   {1, 1},     {1, 9},    {9, 1},
									   {5, 17}, {40, 33}, {300, 130}, {70, 257}, {2, 3000}}; /* the last: two panels */
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int64_t p = sizes[i][0], n = sizes[i][1];
		for (int keep = 0; keep < 2; keep++) {
			sample X = sample_normal(c, p, n), A = keep ? sample_normal(c, n, n) : sample_filled(c, n, n, NAN);
			double *want = new_doubles(n * n), *bound = new_doubles(n * n);
			for (int64_t a = 0; a < n; a++) {
				for (int64_t b = a; b < n; b++) {
					double sum = keep ? 0.75 * A.value[a * n + b] : 0, size = fabs(sum);
					for (int64_t t = 0; t < p; t++) {
						sum += X.value[t * n + a] * X.value[t * n + b];
						size += fabs(X.value[t * n + a] * X.value[t * n + b]);
					}
					want[a * n + b] = want[b * n + a] = sum;
					/* as for gemm */
					bound[a * n + b] = bound[b * n + a] = FLOAT_EPSILON * (double)(p + 4) / 2 * size;
				}
			}
			assert_ok(c->ctx, c->be->linear->gram(c->be, X.view, keep ? 0.75f : 0.0f, A.view));
			assert_ok(c->ctx, c->be->linear->mirror(c->be, A.view));
			sample_expect_within(c, &A, want, bound, "gram and mirror");
			double *got = sample_read(c, &A); /* mirror copies: symmetric to the bit */
			for (int64_t a = 0; a < n; a++) {
				for (int64_t b = 0; b < a; b++)
					assert_true(got[a * n + b] == got[b * n + a]);
			}
			free(got);
			free(want);
			free(bound);
			sample_free(c, &X);
			sample_free(c, &A);
		}
	}
}

static void check_axpby(contract *c, int64_t rows, int64_t cols, float alpha, float beta)
{
	sample X = sample_normal(c, rows, cols),
		   Y = beta == 0 ? sample_filled(c, rows, cols, NAN) : sample_normal(c, rows, cols);
	double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	for (int64_t i = 0; i < rows * cols; i++) {
		double old = beta == 0 ? 0 : (double)beta * Y.value[i];
		want[i] = (double)alpha * X.value[i] + old;
		/* two products and one sum, fused or not */
		bound[i] = FLOAT_EPSILON * (fabs((double)alpha * X.value[i]) + fabs(old));
	}
	assert_ok(c->ctx, c->be->linear->axpby(c->be, alpha, X.view, beta, Y.view));
	sample_expect_within(c, &Y, want, bound, "axpby");
	free(want);
	free(bound);
	sample_free(c, &X);
	sample_free(c, &Y);
}

static void test_axpby(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		check_axpby(c, contract_shapes[i].rows, contract_shapes[i].cols, 0.3f, -1.7f);
		check_axpby(c, contract_shapes[i].rows, contract_shapes[i].cols, -1, 1);
		check_axpby(c, contract_shapes[i].rows, contract_shapes[i].cols, 2.5f, 0);
	}
}

/* Where products take narrow operands, the result may be one: the number in float, rounded. */
static void check_combine_narrow(contract *c, const sample *X, const sample *Y, fp_dtype type, const double *want)
{
	int64_t rows = X->view.rows, cols = X->view.cols;
	double unit = type == FP_F16 ? 0x1p-11 : 0x1p-8, smallest = type == FP_F16 ? 0x1p-25 : 0;
	sample Z = sample_normal(c, rows, cols);
	double *bound = new_doubles(rows * cols);
	fp_matrix narrow;
	for (int64_t k = 0; k < rows * cols; k++)
		bound[k] = unit * fabs(want[k]) + smallest + 4 * FLOAT_EPSILON * (fabs(X->value[k]) + fabs(Y->value[k]));
	assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, rows, cols, type));
	assert_ok(c->ctx, c->be->linear->combine(c->be, 0.3f, X->view, -1.7f, Y->view, narrow));
	assert_ok(c->ctx, c->be->memory->copy(c->be, Z.view, narrow));
	sample_expect_within(c, &Z, want, bound, "combine, narrow");
	fp_matrix_free(c->be, &narrow);
	sample_free(c, &Z);
	free(bound);
}

static void test_combine(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols, size = rows * cols;
		sample X = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), Z = sample_normal(c, rows, cols);
		double *want = new_doubles(size), *bound = new_doubles(size);
		for (int64_t k = 0; k < size; k++) {
			double x = (double)0.3f * X.value[k], y = (double)-1.7f * Y.value[k];
			want[k] = x + y;
			bound[k] = FLOAT_EPSILON * (fabs(x) + fabs(y));
		}
		assert_ok(c->ctx, c->be->linear->combine(c->be, 0.3f, X.view, -1.7f, Y.view, Z.view));
		sample_expect_within(c, &Z, want, bound, "combine");
		if (fp_backend_can(c->be, FP_CAN_MULTIPLY_NARROW)) {
			check_combine_narrow(c, &X, &Y, FP_F16, want);
			check_combine_narrow(c, &X, &Y, FP_BF16, want);
		}
		assert_ok(c->ctx, c->be->linear->combine(c->be, 0.3f, X.view, -1.7f, Y.view, X.view));
		sample_expect_within(c, &X, want, bound, "combine in the place of X");
		sample_free(c, &X);
		sample_free(c, &Y);
		sample_free(c, &Z);
		free(want);
		free(bound);
	}
}

static void test_dots(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		sample X = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), out = sample_normal(c, 1, rows);
		double *want = new_doubles(rows), sum = 0, size = 0, got = -1, again = -2;
		for (int64_t r = 0; r < rows; r++) {
			for (int64_t k = 0; k < cols; k++) {
				double term = X.value[r * cols + k] * Y.value[r * cols + k];
				want[r] += term;
				size += fabs(term);
			}
			sum += want[r];
		}
		assert_ok(c->ctx, c->be->linear->dot(c->be, X.view, Y.view, &got));
		assert_ok(c->ctx, c->be->linear->dot(c->be, X.view, Y.view, &again));
		assert_true(fabs(got - sum) <= 1e-13 * size); /* sums in double */
		assert_true(got == again);                    /* and in a fixed order */
		assert_ok(c->ctx, c->be->linear->row_dot(c->be, X.view, Y.view, out.view));
		/* summed in double, then rounded once to float */
		sample_expect(c, &out, want, 1e-12, FLOAT_EPSILON, "row_dot");
		free(want);
		sample_free(c, &X);
		sample_free(c, &Y);
		sample_free(c, &out);
	}
}

static void test_rows_and_columns(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		sample X = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols);
		sample a = sample_normal(c, 1, rows), b = sample_normal(c, 1, rows), s = sample_normal(c, 1, cols);
		double *want = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			double x = a.value[k / cols] * X.value[k], y = b.value[k / cols] * Y.value[k];
			want[k] = x + y;
			bound[k] = FLOAT_EPSILON * (fabs(x) + fabs(y)); /* as for axpby */
		}
		assert_ok(c->ctx, c->be->linear->row_axpby(c->be, a.view, X.view, b.view, Y.view));
		sample_expect_within(c, &Y, want, bound, "row_axpby");
		for (int64_t k = 0; k < rows * cols; k++) {
			double x = X.value[k];
			want[k] = (a.value[k / cols] + b.value[k / cols]) * x;
			bound[k] = 2 * FLOAT_EPSILON * (fabs(a.value[k / cols] * x) + fabs(b.value[k / cols] * x));
		}
		sample same = sample_from(c, rows, cols, X.value);
		assert_ok(c->ctx, c->be->linear->row_axpby(c->be, a.view, same.view, b.view, same.view));
		sample_expect_within(c, &same, want, bound, "row_axpby in place");
		sample_free(c, &same);
		for (int64_t k = 0; k < rows * cols; k++)
			want[k] = s.value[k % cols] * X.value[k];
		assert_ok(c->ctx, c->be->linear->scale_columns(c->be, s.view, X.view, Y.view));
		sample_expect(c, &Y, want, 0, FLOAT_EPSILON, "scale_columns"); /* one product */
		assert_ok(c->ctx, c->be->linear->scale_columns(c->be, s.view, X.view, X.view));
		sample_expect(c, &X, want, 0, FLOAT_EPSILON, "scale_columns in place");
		free(want);
		free(bound);
		sample_free(c, &X);
		sample_free(c, &Y);
		sample_free(c, &a);
		sample_free(c, &b);
		sample_free(c, &s);
	}
}

static void test_diagonals(void **state)
{
	contract *c = *state;
	static const int64_t sizes[] = {0, 1, 5, 64, 131};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int64_t n = sizes[i];
		sample A = sample_normal(c, n, n), d = sample_normal(c, 1, n), out = sample_normal(c, 1, n);
		double *want = new_doubles(n);
		for (int64_t k = 0; k < n; k++)
			want[k] = A.value[k * n + k];
		assert_ok(c->ctx, c->be->linear->diagonal(c->be, A.view, out.view));
		sample_expect(c, &out, want, 0, 0, "diagonal"); /* a copy */
		for (int64_t k = 0; k < n; k++)
			A.value[k * n + k] += d.value[k];
		assert_ok(c->ctx, c->be->linear->add_diagonal(c->be, A.view, d.view));
		sample_expect(c, &A, A.value, 0, FLOAT_EPSILON, "add_diagonal"); /* one sum */
		free(want);
		sample_free(c, &A);
		sample_free(c, &d);
		sample_free(c, &out);
	}
}

/* A random order of the numbers below count, by exchanges. The caller frees it with free(). */
static int32_t *random_order(contract *c, int64_t count)
{
	int32_t *order = malloc((size_t)count * sizeof *order + 1);
	for (int64_t i = 0; i < count; i++)
		order[i] = (int32_t)i;
	for (int64_t i = count - 1; i > 0; i--) {
		int64_t other = contract_random(c, 0, i);
		int32_t kept = order[i];
		order[i] = order[other];
		order[other] = kept;
	}
	return order;
}

static void check_permutation(contract *c, int64_t rows, int64_t cols, bool by_rows)
{
	sample X = sample_normal(c, rows, cols), Y = sample_filled(c, rows, cols, NAN);
	int64_t count = by_rows ? rows : cols;
	int32_t *order = random_order(c, count);
	double *want = new_doubles(rows * cols);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++)
			want[i * cols + j] = by_rows ? X.value[order[i] * cols + j] : X.value[i * cols + order[j]];
	assert_ok(c->ctx,
			  (by_rows ? c->be->linear->permute_rows : c->be->linear->permute_columns)(c->be, order, X.view, Y.view));
	for (int64_t i = 0; i < count; i++)
		order[i] = 0; /* it is the caller's again */
	sample_expect(c, &Y, want, 0, 0, by_rows ? "permute_rows" : "permute_columns");
	sample_expect(c, &X, X.value, 0, 0, "what is permuted");
	free(order);
	free(want);
	sample_free(c, &X);
	sample_free(c, &Y);
}

static void test_permutations(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++)
		for (int by_rows = 0; by_rows < 2; by_rows++)
			check_permutation(c, contract_shapes[i].rows, contract_shapes[i].cols, by_rows);
}

/* Y may not have another shape than X. */
static void test_permutations_refuse_other_shapes(void **state)
{
	contract *c = *state;
	sample X = sample_normal(c, 3, 4), Y = sample_normal(c, 4, 3);
	const int32_t order[4] = {0, 1, 2, 3};
	assert_int_not_equal(c->be->linear->permute_rows(c->be, order, X.view, Y.view), FP_OK);
	assert_int_not_equal(c->be->linear->permute_columns(c->be, order, X.view, Y.view), FP_OK);
	sample_expect(c, &Y, Y.value, 0, 0, "a result that was refused");
	sample_free(c, &X);
	sample_free(c, &Y);
}

/* The answer for the numbers of `s` in each type that weights come in. */
static void expect_finite(contract *c, const sample *s, int want)
{
	static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};
	for (int t = 0; t < 3; t++) {
		int finite = -1;
		fp_matrix X;
		assert_ok(c->ctx, fp_matrix_new(c->be, &X, s->view.rows, s->view.cols, types[t]));
		assert_ok(c->ctx, c->be->memory->copy(c->be, X, s->view));
		assert_ok(c->ctx, c->be->linear->finite(c->be, X, &finite));
		assert_int_equal(finite, want);
		fp_matrix_free(c->be, &X);
	}
}

static void test_finite(void **state)
{
	contract *c = *state;
	static const double bad[] = {NAN, INFINITY, -INFINITY};
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		int finite = -1;
		sample X = sample_filled(c, rows, cols, 3.4e38);
		assert_ok(c->ctx, c->be->linear->finite(c->be, X.view, &finite));
		assert_int_equal(finite, 1);
		for (int k = 0; k < 3 && rows * cols > 0; k++) {
			double *values = new_doubles(rows * cols);
			values[contract_random(c, 0, rows * cols - 1)] = bad[k];
			sample Z = sample_from(c, rows, cols, values);
			assert_ok(c->ctx, c->be->linear->finite(c->be, Z.view, &finite));
			assert_int_equal(finite, 0);
			expect_finite(c, &Z, 0);
			free(values);
			sample_free(c, &Z);
		}
		sample_free(c, &X);
		X = sample_filled(c, rows, cols, 65504); /* the largest of f16 */
		expect_finite(c, &X, 1);
		sample_free(c, &X);
	}
}

static void test_max_abs(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		sample X = sample_normal(c, contract_shapes[i].rows, contract_shapes[i].cols);
		double want = 0, got = -1;
		for (int64_t k = 0; k < fp_matrix_size(X.view); k++)
			want = fmax(want, fabs(X.value[k]));
		assert_ok(c->ctx, c->be->linear->max_abs(c->be, X.view, &got));
		assert_true(got == want); /* one of the numbers: exact */
		sample_free(c, &X);
	}
}

CONTRACT_TESTS(linear, cmocka_unit_test(test_max_abs), cmocka_unit_test(test_gemm),
			   cmocka_unit_test(test_gram_and_mirror), cmocka_unit_test(test_axpby), cmocka_unit_test(test_combine),
			   cmocka_unit_test(test_dots), cmocka_unit_test(test_rows_and_columns), cmocka_unit_test(test_diagonals),
			   cmocka_unit_test(test_gemm_blocks), cmocka_unit_test(test_permutations),
			   cmocka_unit_test(test_permutations_refuse_other_shapes), cmocka_unit_test(test_finite));
