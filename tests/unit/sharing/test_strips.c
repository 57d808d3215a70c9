/* SPDX-License-Identifier: Apache-2.0 */
/* Products of some strips of rows have the bits of the same rows of the whole product, in every precision. */
#include "support.h"

#include "backend/backend.h"
#include "sharing/row_slices.h"

#include <stdlib.h>

enum { N = FP_STRIP_ORDER, MOST_ROWS = 9 * FP_STRIP_ROWS };

static fp_matrix new_matrix(fp_backend *be, int64_t rows, int64_t cols)
{
	fp_matrix m;
	float *values = malloc((size_t)(rows * cols) * sizeof *values);
	for (int64_t i = 0; i < rows * cols; i++)
		values[i] = (float)((i * 7919 + rows) % 4001 - 2000) / 1999.0F;
	assert_ok(be->ctx, fp_matrix_new(be, &m, rows, cols, FP_F32));
	assert_ok(be->ctx, be->memory->upload(be, m, values, FP_F32, cols));
	free(values);
	return m;
}

static void assert_same_bits(fp_backend *be, fp_matrix a, fp_matrix b)
{
	size_t bytes = (size_t)fp_matrix_size(a) * sizeof(float);
	float *x = malloc(bytes), *y = malloc(bytes);
	assert_ok(be->ctx, be->memory->download(be, x, FP_F32, a.cols, a));
	assert_ok(be->ctx, be->memory->download(be, y, FP_F32, b.cols, b));
	assert_memory_equal(x, y, bytes);
	free(x);
	free(y);
}

/* The rows of op(A)B, two strips and then the rest. */
static void check_rows(fp_backend *be, fp_use use, int64_t rows, fp_transpose ta)
{
	FP_PRODUCTS_FOR(be, use);
	fp_matrix A = ta == FP_PLAIN ? new_matrix(be, rows, N) : new_matrix(be, N, rows), B = new_matrix(be, N, N);
	fp_matrix whole = new_matrix(be, rows, N), parts = new_matrix(be, rows, N);
	assert_ok(be->ctx, be->linear->gemm(be, 1, A, ta, B, FP_PLAIN, 0, whole));
	for (int64_t first = 0, count; first < rows; first += count) {
		count = first < 2 * FP_STRIP_ROWS ? FP_STRIP_ROWS : rows - first;
		fp_matrix own = ta == FP_PLAIN ? fp_matrix_rows(A, first, count) : fp_matrix_cols(A, first, count);
		assert_ok(be->ctx, be->linear->gemm(be, 1, own, ta, B, FP_PLAIN, 0, fp_matrix_rows(parts, first, count)));
	}
	assert_same_bits(be, whole, parts);
	fp_matrix *all[] = {&A, &B, &whole, &parts};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(be, all[i]);
}

static void strips_have_the_bits_of_the_whole(void **unused)
{
	static const char *const precisions[] = {"fp32", "bf16x3", "tf32", "bf16"};
	fp_context *ctx = fp_context_new();
	fp_backend *be = NULL;
	(void)unused;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
		assert_ok(ctx, fp_backend_set_precision(be, precisions[i], 4096)); /* fp32 where the processor cannot round */
		for (int use = 0; use < FP_USE_COUNT; use++) {
			check_rows(be, (fp_use)use, 3 * FP_STRIP_ROWS, FP_PLAIN);
			check_rows(be, (fp_use)use, MOST_ROWS, FP_PLAIN);
			check_rows(be, (fp_use)use, MOST_ROWS, FP_TRANSPOSED);
		}
	}
	fp_backend_close(be);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(strips_have_the_bits_of_the_whole)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
