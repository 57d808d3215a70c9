/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of stored tensors: rows one after the other, head by head, and transposed, each taken out and put back. */
#include "support.h"

#include "checkpoint/tensor_part.h"

#include <string.h>

enum { ROWS = 12, COLS = 5 };

static fp_tensor_info stored(int rank, int64_t rows, int64_t cols)
{
	return (fp_tensor_info){.name = "w",
							.dtype = FP_BF16,
							.dtype_name = "BF16",
							.rank = rank,
							.shape = {rank == 2 ? rows : cols, rank == 2 ? cols : 0},
							.elements = rows * cols,
							.bytes = rows * cols * 2};
}

/* Entry (r, c) of the stored tensor is 100·r + c. */
static void fill(uint16_t *whole, int64_t rows, int64_t cols)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++)
			whole[r * cols + c] = (uint16_t)(100 * r + c);
}

/* The part's rows are the stored rows (columns if transposed) in `lines`. */
static void check(const fp_tensor_info *part, const int *lines, int64_t rows, int64_t cols)
{
	uint16_t whole[ROWS * COLS], before[ROWS * COLS], own[ROWS * COLS];
	int64_t offset, stored_rows = part->whole->shape[0], stored_cols = part->whole->shape[1];
	fill(whole, stored_rows, stored_cols);
	memcpy(before, whole, sizeof whole);
	assert_int_equal(part->shape[0], rows);
	assert_int_equal(part->shape[1], cols);
	assert_int_equal(part->elements, rows * cols);
	assert_int_equal(part->bytes, rows * cols * 2);
	fp_tensor_part_gather(part, whole, own);
	assert_memory_equal(whole, before, (size_t)(stored_rows * stored_cols) * 2);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			int wanted = part->transposed ? 100 * (int)c + lines[r] : 100 * lines[r] + (int)c;
			assert_int_equal(own[r * cols + c], wanted);
			own[r * cols + c] = (uint16_t)(wanted + 10000);
		}
	if (fp_tensor_part_is_contiguous(part, &offset))
		assert_int_equal(whole[offset / 2], own[0] - 10000);
	fp_tensor_part_scatter(part, own, whole);
	for (int64_t r = 0; r < stored_rows; r++)
		for (int64_t c = 0; c < stored_cols; c++) {
			bool inside = false;
			for (int64_t k = 0; k < rows; k++)
				inside |= lines[k] == (part->transposed ? c : r);
			assert_int_equal(whole[r * stored_cols + c], before[r * stored_cols + c] + (inside ? 10000 : 0));
		}
}

static void rows_are_taken_and_put_back(void **unused)
{
	(void)unused;
	fp_tensor_info whole = stored(2, ROWS, COLS), part;
	int64_t offset;
	fp_tensor_part(&part, &whole, "w:k", 3, 5, 3, 3, false);
	assert_true(fp_tensor_part_is_contiguous(&part, &offset) && offset == 5 * COLS * 2);
	check(&part, (const int[]){5, 6, 7}, 3, COLS);
	fp_tensor_part(&part, &whole, "w:k", 4, 2, 2, 6, false); /* two heads of two rows, after two of another role */
	assert_false(fp_tensor_part_is_contiguous(&part, &offset));
	check(&part, (const int[]){2, 3, 8, 9}, 4, COLS);
}

static void columns_are_rows_of_a_transposed_part(void **unused)
{
	(void)unused;
	fp_tensor_info whole = stored(2, COLS, ROWS), part;
	int64_t offset;
	fp_tensor_part(&part, &whole, "w:q", 4, 4, 4, 4, true);
	assert_false(fp_tensor_part_is_contiguous(&part, &offset));
	check(&part, (const int[]){4, 5, 6, 7}, 4, COLS);
}

static void tiles_cover_large_matrices(void **unused)
{
	(void)unused;
	enum { TALL = 70, WIDE = 45 };
	static uint16_t whole[WIDE * TALL], own[TALL * WIDE], back[WIDE * TALL];
	fp_tensor_info info = stored(2, WIDE, TALL), part;
	for (int i = 0; i < WIDE * TALL; i++)
		whole[i] = (uint16_t)i;
	fp_tensor_part(&part, &info, "w", TALL, 0, TALL, TALL, true);
	fp_tensor_part_gather(&part, whole, own);
	for (int r = 0; r < TALL; r++)
		for (int c = 0; c < WIDE; c++)
			assert_int_equal(own[r * WIDE + c], c * TALL + r);
	fp_tensor_part_scatter(&part, own, back);
	assert_memory_equal(back, whole, sizeof whole);
}

static void a_bias_has_entries_for_rows(void **unused)
{
	(void)unused;
	fp_tensor_info whole = stored(1, 1, ROWS), part;
	uint16_t bytes[ROWS], own[4];
	fill(bytes, 1, ROWS);
	fp_tensor_part(&part, &whole, "b:v", 4, 4, 2, 6, true); /* a vector is never transposed */
	assert_false(part.transposed);
	assert_int_equal(part.bytes, 8);
	fp_tensor_part_gather(&part, bytes, own);
	assert_memory_equal(own, ((const uint16_t[]){4, 5, 10, 11}), sizeof own);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_taken_and_put_back),
		cmocka_unit_test(columns_are_rows_of_a_transposed_part),
		cmocka_unit_test(tiles_cover_large_matrices),
		cmocka_unit_test(a_bias_has_entries_for_rows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
