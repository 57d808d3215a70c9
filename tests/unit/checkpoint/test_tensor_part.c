/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of stored tensors: rows one after the other, head by head, transposed, and of stacks, each taken out and put back. */
#include "support.h"

#include "checkpoint/tensor_part.h"

#include <string.h>

enum { ROWS = 12, COLS = 5 };

static fp_tensor_info stored(int rank, int64_t rows, int64_t cols)
{
	int64_t count = rank == 3 ? 3 : 1;
	fp_tensor_info info = {.name = "w",
						   .dtype = FP_BF16,
						   .dtype_name = "BF16",
						   .rank = rank,
						   .shape = {rank == 2 ? rows : cols, rank == 2 ? cols : 0},
						   .elements = count * rows * cols,
						   .bytes = count * rows * cols * 2};
	if (rank == 3)
		memcpy(info.shape, (int64_t[]){count, rows, cols}, 3 * sizeof info.shape[0]);
	return info;
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
	fp_tensor_part(&part, &whole, "w:k", &(fp_part_place){.rows = 3, .first = 5, .run = 3, .step = 3});
	assert_true(fp_tensor_part_is_contiguous(&part, &offset) && offset == 5 * COLS * 2);
	check(&part, (const int[]){5, 6, 7}, 3, COLS);
	fp_tensor_part(
		&part, &whole, "w:k",
		&(fp_part_place){
			.rows = 4, .first = 2, .run = 2, .step = 6}); /* two heads of two rows, after two of another role */
	assert_false(fp_tensor_part_is_contiguous(&part, &offset));
	check(&part, (const int[]){2, 3, 8, 9}, 4, COLS);
}

static void columns_are_rows_of_a_transposed_part(void **unused)
{
	(void)unused;
	fp_tensor_info whole = stored(2, COLS, ROWS), part;
	int64_t offset;
	fp_tensor_part(&part, &whole, "w:q",
				   &(fp_part_place){.rows = 4, .first = 4, .run = 4, .step = 4, .transposed = true});
	assert_false(fp_tensor_part_is_contiguous(&part, &offset));
	check(&part, (const int[]){4, 5, 6, 7}, 4, COLS);
}

/* One matrix of a stack of three. */
static void a_matrix_of_a_stack_is_taken_and_put_back(void **unused)
{
	(void)unused;
	enum { SIZE = ROWS * COLS };
	uint16_t whole[3 * SIZE], before[3 * SIZE], own[SIZE];
	fp_tensor_info stack = stored(3, ROWS, COLS), part;
	int64_t offset;
	for (int turned = 0; turned < 2; turned++) {
		fp_part_place place = {.matrix = 2 - turned, .rows = 3, .first = 1, .run = 3, .step = 3, .transposed = turned};
		fp_tensor_part(&part, &stack, "w:2.up", &place);
		assert_int_equal(part.rank, 2);
		assert_int_equal(part.shape[1], turned ? ROWS : COLS);
		assert_int_equal(part.bytes, 2 * part.elements);
		assert_int_equal(fp_tensor_part_is_contiguous(&part, &offset), !turned);
		assert_true(turned || offset == (2 * SIZE + COLS) * 2);
		fill(whole, 3 * ROWS, COLS);
		memcpy(before, whole, sizeof whole);
		fp_tensor_part_gather(&part, whole, own);
		for (int64_t i = 0; i < part.elements; i++) {
			int64_t row = 1 + i / part.shape[1], column = i % part.shape[1];
			int64_t wanted = turned ? 100 * (ROWS + column) + row : 100 * (2 * ROWS + row) + column;
			assert_int_equal(own[i], wanted);
			assert_int_equal(whole[fp_tensor_part_entry(&part, i)], wanted);
			before[fp_tensor_part_entry(&part, i)] = own[i] = 7;
		}
		fp_tensor_part_scatter(&part, own, whole);
		assert_memory_equal(whole, before, sizeof whole);
	}
}

static void tiles_cover_large_matrices(void **unused)
{
	(void)unused;
	enum { TALL = 70, WIDE = 45 };
	static uint16_t whole[WIDE * TALL], own[TALL * WIDE], back[WIDE * TALL];
	fp_tensor_info info = stored(2, WIDE, TALL), part;
	for (int i = 0; i < WIDE * TALL; i++)
		whole[i] = (uint16_t)i;
	fp_tensor_part(&part, &info, "w",
				   &(fp_part_place){.rows = TALL, .first = 0, .run = TALL, .step = TALL, .transposed = true});
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
	fp_tensor_part(
		&part, &whole, "b:v",
		&(fp_part_place){
			.rows = 4, .first = 4, .run = 2, .step = 6, .transposed = true}); /* a vector is never transposed */
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
		cmocka_unit_test(a_matrix_of_a_stack_is_taken_and_put_back),
		cmocka_unit_test(tiles_cover_large_matrices),
		cmocka_unit_test(a_bias_has_entries_for_rows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
