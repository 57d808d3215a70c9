/* SPDX-License-Identifier: Apache-2.0 */
/* The costs of inputs: inverses and factors against Gaussian elimination in double. */
#include "model_fixture.h"
#include "verify.h"

#include "basis/input_cost.h"

#include <math.h>
#include <stdlib.h>

enum { N = 29 };
static const fp_layer layer = {.index = 3}; /* for messages only */

/* A ← XᵀX/tokens of correlated inputs of different scale, and B ← the same, damped. */
static void make_gram(double *A, double *B)
{
	enum { TOKENS = 40 };
	double X[TOKENS][N], mean = 0;
	uint64_t seed = 9;
	for (int64_t t = 0; t < TOKENS; t++)
		for (int64_t j = 0; j < N; j++)
			X[t][j] = (double)random_normal(&seed) * (0.1 + (double)j / 5) + (j > 0 ? 0.7 * X[t][j - 1] : 0);
	for (int64_t i = 0; i < N; i++)
		for (int64_t j = 0; j < N; j++) {
			A[i * N + j] = 0;
			for (int64_t t = 0; t < TOKENS; t++)
				A[i * N + j] += X[t][i] * X[t][j] / TOKENS;
			A[i * N + j] = (double)(float)A[i * N + j];
		}
	for (int64_t i = 0; i < N; i++)
		mean += A[i * N + i] / N;
	for (int64_t i = 0; i < N * N; i++)
		B[i] = A[i] + (i % (N + 1) == 0 ? 0.01 * mean : 0);
}

/* K ← B⁻¹ */
static void invert(double *K, const double *B)
{
	for (int64_t j = 0; j < N; j++) {
		double copy[N * N], right[N] = {0}, column[N];
		memcpy(copy, B, sizeof copy);
		right[j] = 1;
		verify_solve(copy, right, column, N);
		for (int64_t i = 0; i < N; i++)
			K[i * N + j] = column[i];
	}
}

static void upload(fp_backend *be, fp_matrix H, const double *values)
{
	float *floats = to_float(values, fp_matrix_size(H));
	assert_ok(be->ctx, be->memory->upload(be, H, floats, FP_F32, H.cols));
	assert_ok(be->ctx, be->memory->synchronize(be));
	free(floats);
}

static void download(fp_backend *be, float *out, fp_matrix H)
{
	assert_ok(be->ctx, be->memory->download(be, out, FP_F32, H.cols, H));
	assert_ok(be->ctx, be->memory->synchronize(be));
}

static void inverses_and_factors_are_plain_ones(void **state)
{
	static double A[N * N], B[N * N], K[N * N];
	static float got[N * N];
	fp_backend *be;
	fp_matrix H;
	assert_ok(*state, fp_backend_open(&be, *state, "cpu", 2));
	assert_ok(*state, fp_matrix_new(be, &H, N, N, FP_F32));
	make_gram(A, B);
	invert(K, B);
	double largest = 0;
	for (int64_t i = 0; i < N * N; i++)
		largest = fmax(largest, fabs(K[i]));
	upload(be, H, A);
	assert_ok(*state, fp_input_cost_inverse(be, &layer, H));
	download(be, got, H);
	for (int64_t i = 0; i < N * N; i++)
		assert_true(fabs((double)got[i] - K[i]) < 1e-4 * largest);
	for (int64_t i = 0; i < N; i++) /* diagonals are what is used */
		assert_true(fabs((double)got[i * N + i] / K[i * N + i] - 1) < 1e-3);
	upload(be, H, A);
	assert_ok(*state, fp_input_cost_factor(be, &layer, H));
	download(be, got, H);
	for (int64_t i = 0; i < N; i++)
		for (int64_t j = 0; j < N; j++) {
			double sum = 0;
			for (int64_t k = 0; k < N; k++)
				sum += (double)got[k * N + i] * (double)got[k * N + j];
			assert_true(fabs(sum - K[i * N + j]) < 1e-4 * largest);
			assert_true(i <= j || got[i * N + j] == 0);
		}
	fp_matrix_free(be, &H);
	fp_backend_close(be);
}

/* Inputs that are always zero: δ alone decides. */
static void zeros_give_finite_costs(void **state)
{
	static const double zeros[N * N];
	static float got[N * N];
	fp_backend *be;
	fp_matrix H, x;
	assert_ok(*state, fp_backend_open(&be, *state, "cpu", 1));
	assert_ok(*state, fp_matrix_new(be, &H, N, N, FP_F32));
	assert_ok(*state, fp_matrix_new(be, &x, 1, N, FP_F32));
	upload(be, H, zeros);
	assert_ok(*state, fp_input_cost_inverse(be, &layer, H));
	assert_ok(*state, be->linear->diagonal(be, H, x));
	assert_ok(*state, fp_input_cost_reciprocal(be, x));
	download(be, got, x);
	for (int64_t i = 0; i < N; i++)
		assert_true(isfinite(got[i]) && got[i] > 0);
	fp_matrix_free(be, &H);
	fp_matrix_free(be, &x);
	fp_backend_close(be);
}

static void what_is_no_gram_matrix_names_the_layer(void **state)
{
	static double A[N * N], B[N * N];
	fp_backend *be;
	fp_matrix H;
	assert_ok(*state, fp_backend_open(&be, *state, "cpu", 1));
	assert_ok(*state, fp_matrix_new(be, &H, N, N, FP_F32));
	make_gram(A, B);
	A[4 * N + 4] = -A[4 * N + 4];
	upload(be, H, A);
	assert_fails(*state, FP_ERROR_NUMERIC, "layer 3: the Gram matrix", fp_input_cost_inverse(be, &layer, H));
	upload(be, H, A);
	assert_fails(*state, FP_ERROR_NUMERIC, "layer 3: the Gram matrix", fp_input_cost_factor(be, &layer, H));
	fp_matrix_free(be, &H);
	fp_backend_close(be);
}

static void reciprocals_are_exact(void **state)
{
	enum { COUNT = 5 };
	static const float values[COUNT] = {1, 2, 0.25F, 3, 1e-3F};
	float got[COUNT];
	fp_backend *be;
	fp_matrix x;
	assert_ok(*state, fp_backend_open(&be, *state, "cpu", 1));
	assert_ok(*state, fp_matrix_new(be, &x, 1, COUNT, FP_F32));
	assert_ok(*state, be->memory->upload(be, x, values, FP_F32, COUNT));
	assert_ok(*state, fp_input_cost_reciprocal(be, x));
	download(be, got, x);
	for (int i = 0; i < COUNT; i++)
		assert_true(got[i] == 1 / values[i]);
	fp_matrix_free(be, &x);
	fp_backend_close(be);
}

int main(void)
{
#define COST_TEST(test) cmocka_unit_test_setup_teardown(test, context_set_up, context_tear_down)
	const struct CMUnitTest tests[] = {
		COST_TEST(inverses_and_factors_are_plain_ones),
		COST_TEST(zeros_give_finite_costs),
		COST_TEST(what_is_no_gram_matrix_names_the_layer),
		COST_TEST(reciprocals_are_exact),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
