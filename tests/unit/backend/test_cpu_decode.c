/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of products with held weights, for each instruction set that the processor has: every form gives the same
 * bits as the dense one, and all of them the product in double within rounding.
 */
#include "support.h"

#include "backend/cpu/cpu_backend.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 11, MOST_COLS = 300, BATCH = FP_DECODE_BATCH };

typedef struct numbers {
	float w[MOST_ROWS * MOST_COLS], x[BATCH * MOST_COLS];
} numbers;

/* Weights with at most two nonzeros in a group of four, so that all forms apply. */
static void make_numbers(numbers *n, int64_t rows, int64_t cols, fp_dtype dtype, uint64_t seed)
{
	for (int64_t i = 0; i < rows * cols; i++) {
		uint32_t bits = 0;
		float number = random_normal(&seed);
		fp_from_float(&bits, dtype, &number, 1);
		fp_to_float(&n->w[i], &bits, dtype, 1);
	}
	for (int64_t i = 0; i + 4 <= rows * cols; i += 4) {
		int64_t one = (int64_t)(2 + 2 * random_uniform(&seed)) & 3,
				other = (int64_t)(2 + 2 * random_uniform(&seed)) & 3;
		for (int64_t j = 0; j < 4; j++)
			n->w[i + j] = j == one || j == other ? n->w[i + j] : 0;
	}
	for (int64_t i = 0; i < BATCH * cols; i++)
		n->x[i] = random_normal(&seed);
}

static void multiply(fp_backend *be, const numbers *n, int64_t rows, int64_t cols, int64_t batch, fp_dtype dtype,
					 fp_held_form form, float *y)
{
	fp_matrix W, X, Y;
	fp_held held;
	const fp_held *parts[1] = {&held};
	assert_ok(be->ctx, fp_matrix_new(be, &W, rows, cols, FP_F32));
	assert_ok(be->ctx, fp_matrix_new(be, &X, batch, cols, FP_F32));
	assert_ok(be->ctx, fp_matrix_new(be, &Y, batch, rows, FP_F32));
	assert_ok(be->ctx, be->memory->upload(be, W, n->w, FP_F32, cols));
	assert_ok(be->ctx, be->memory->upload(be, X, n->x, FP_F32, cols));
	assert_ok(be->ctx, be->decode->hold(be, &held, W, dtype, form));
	assert_ok(be->ctx, be->decode->multiply(be, X, 1, parts, false, &Y));
	assert_ok(be->ctx, be->memory->download(be, y, FP_F32, rows, Y));
	fp_held_free(be, &held);
	fp_matrix_free(be, &W);
	fp_matrix_free(be, &X);
	fp_matrix_free(be, &Y);
}

static void check_product(const numbers *n, int64_t rows, int64_t cols, int64_t batch, const float *y)
{
	for (int64_t b = 0; b < batch; b++)
		for (int64_t r = 0; r < rows; r++) {
			double sum = 0, size = 0;
			for (int64_t j = 0; j < cols; j++) {
				double term = (double)n->w[r * cols + j] * (double)n->x[b * cols + j];
				sum += term;
				size += fabs(term);
			}
			assert_true(fabs((double)y[b * rows + r] - sum) <= 1.2e-7 * (double)(cols + 4) / 2 * size);
		}
}

static void check_loops(const char *name)
{
	static const int64_t shapes[][2] = {{1, 4}, {4, 32}, {5, 36}, {11, 300}, {8, 256}};
	static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};
	const fp_cpu_decode_loops *loops = fp_cpu_decode_loops_named(name);
	if (!loops)
		skip_because("the processor has no %s", name);
	fp_context *ctx = fp_context_new();
	fp_backend *be = NULL;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 2));
	((fp_cpu_state *)be->state)->decode = loops;
	numbers *n = malloc(sizeof *n);
	assert_non_null(n);
	for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
		for (int t = 0; t < 3; t++)
			for (int64_t batch = 1; batch <= BATCH; batch++) {
				float dense[BATCH * MOST_ROWS], other[BATCH * MOST_ROWS];
				int64_t rows = shapes[s][0], cols = shapes[s][1];
				make_numbers(n, rows, cols, types[t], (uint64_t)batch + 17 * s);
				multiply(be, n, rows, cols, batch, types[t], FP_HELD_DENSE, dense);
				check_product(n, rows, cols, batch, dense);
				for (int form = FP_HELD_MASK; form < FP_HELD_FORMS; form++) {
					multiply(be, n, rows, cols, batch, types[t], (fp_held_form)form, other);
					assert_memory_equal(other, dense, (size_t)(batch * rows) * sizeof *dense);
				}
			}
	free(n);
	fp_backend_close(be);
	fp_context_free(ctx);
}

static void test_loops(void **state)
{
	check_loops(*state);
}

static void test_choice(void **state)
{
	(void)state;
	assert_null(fp_cpu_decode_loops_named("neon-next"));
	assert_non_null(fp_cpu_decode_loops_best());
	assert_string_equal(fp_held_form_name(FP_HELD_TWO_OF_FOUR), "2:4");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(test_loops, (void *)"plain"),
		cmocka_unit_test(test_choice),
	};
	const struct CMUnitTest avx2[] = {cmocka_unit_test_prestate(test_loops, (void *)"avx2")};
	const struct CMUnitTest avx512[] = {cmocka_unit_test_prestate(test_loops, (void *)"avx512")};
	TEST_PART(avx2);
	TEST_PART(avx512);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
