/* SPDX-License-Identifier: Apache-2.0 */
/* Products of slices of rows have the bits of the same rows of the whole product, in every precision, for every number of
 * ranks and threads. */
#include "support.h"

#include "backend/backend.h"
#include "sharing/row_slices.h"

#include <stdlib.h>

enum { N = FP_LEAST_ORDER };

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

/* The rows of op(A)B, slice by slice. */
static void check_rows(fp_backend *be, fp_use use, int64_t rows, fp_transpose ta, int ranks)
{
	FP_PRODUCTS_FOR(be, use);
	fp_comm comm = {.size = ranks};
	fp_share share = {.comm = &comm};
	fp_matrix A = ta == FP_PLAIN ? new_matrix(be, rows, N) : new_matrix(be, N, rows), B = new_matrix(be, N, N);
	fp_matrix whole = new_matrix(be, rows, N), parts = new_matrix(be, rows, N);
	int64_t done = 0;
	assert_ok(be->ctx, be->linear->gemm(be, 1, A, ta, B, FP_PLAIN, 0, whole));
	for (int rank = 0; rank < ranks; rank++) {
		fp_matrix C = fp_row_slice(&share, be, rank, parts);
		fp_matrix own = ta == FP_PLAIN ? fp_matrix_rows(A, done, C.rows) : fp_matrix_cols(A, done, C.rows);
		assert_true(C.rows >= 2 * be->strip_rows);
		assert_ok(be->ctx, be->linear->gemm(be, 1, own, ta, B, FP_PLAIN, 0, C));
		done += C.rows;
	}
	assert_int_equal(done, rows);
	assert_same_bits(be, whole, parts);
	fp_matrix *all[] = {&A, &B, &whole, &parts};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(be, all[i]);
}

static void slices_have_the_bits_of_the_whole(void **unused)
{
	static const char *const precisions[] = {"fp32", "bf16x3", "tf32", "bf16"};
	static const int ranks[] = {2, 3, 5};
	fp_context *ctx = fp_context_new();
	(void)unused;
	for (int threads = 1; threads <= 3; threads++) {
		fp_backend *be = NULL;
		assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", threads));
		int64_t most = 11 * be->strip_rows + 7; /* the last slice has what is left over */
		for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
			/* fp32 where the processor cannot round */
			assert_ok(ctx, fp_backend_set_precision(be, precisions[i], 4096));
			for (int use = 0; use < FP_USE_COUNT; use++)
				for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
					check_rows(be, (fp_use)use, most, FP_PLAIN, ranks[k]);
					check_rows(be, (fp_use)use, most, FP_TRANSPOSED, ranks[k]);
				}
		}
		fp_backend_close(be);
	}
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(slices_have_the_bits_of_the_whole)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
