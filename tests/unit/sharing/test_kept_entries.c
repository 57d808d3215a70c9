/* SPDX-License-Identifier: Apache-2.0 */
/* Kept entries go into a list and come back, of matrices that are copied in several blocks and of some of their rows. */
#include "support.h"

#include "sharing/kept_entries.h"

#include <stdlib.h>

typedef struct shape {
	int64_t rows, cols, first, count; /* of the matrix; of the rows that are copied */
} shape;

/* Some rows have no zero, some only zeros. */
static float entry(int64_t i, int64_t j)
{
	bool kept = i % 5 == 0 || (i % 5 != 1 && (i + j) % 3 != 0);
	return kept ? (float)(1 + (i * 131 + j * 7) % 1009) : 0.0F;
}

static void check(fp_backend *be, shape s, bool all)
{
	size_t size = (size_t)(s.rows * s.cols);
	float *values = malloc(size * sizeof *values), *packed = malloc(size * sizeof *packed);
	fp_matrix m, some;
	fp_kept_entries kept = {0};
	int64_t count = 0;
	for (int64_t i = 0; i < s.rows; i++)
		for (int64_t j = 0; j < s.cols; j++)
			values[i * s.cols + j] = entry(i, j);
	assert_ok(be->ctx, fp_matrix_new(be, &m, s.rows, s.cols, FP_F32));
	assert_ok(be->ctx, be->memory->upload(be, m, values, FP_F32, s.cols));
	assert_ok(be->ctx, fp_kept_entries_add(&kept, be, m, all));
	some = fp_matrix_rows(m, s.first, s.count);
	assert_ok(be->ctx, fp_kept_copy(&kept.list[0], be, s.first, some, packed, true));
	for (int64_t i = s.first; i < s.first + s.count; i++)
		for (int64_t j = 0; j < s.cols; j++)
			if (all || entry(i, j) != 0.0F)
				assert_true(packed[count++] == entry(i, j));
	assert_int_equal(count, fp_kept_count(&kept.list[0], s.first, s.count));
	assert_ok(be->ctx, be->memory->fill(be, m, -1));
	assert_ok(be->ctx, fp_kept_copy(&kept.list[0], be, s.first, some, packed, false));
	assert_ok(be->ctx, be->memory->download(be, values, FP_F32, s.cols, m));
	for (int64_t i = 0; i < s.rows; i++)
		for (int64_t j = 0; j < s.cols; j++) {
			bool copied = i >= s.first && i < s.first + s.count;
			assert_true(values[i * s.cols + j] == (copied ? entry(i, j) : -1.0F));
		}
	fp_kept_entries_free(&kept);
	fp_matrix_free(be, &m);
	free(values);
	free(packed);
}

static void kept_entries_come_back(void **unused)
{
	static const shape shapes[] = {{7, 3, 0, 7},       {7, 3, 2, 4},        {7, 3, 3, 0},     {1, 9, 0, 1},
								   {300, 257, 0, 300}, {300, 257, 11, 280}, {3, 40000, 0, 3}, {3, 40000, 1, 2}};
	fp_context *ctx = fp_context_new();
	fp_backend *be = NULL;
	(void)unused;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		check(be, shapes[i], false);
		check(be, shapes[i], true);
	}
	fp_backend_close(be);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(kept_entries_come_back)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
