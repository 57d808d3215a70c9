/* SPDX-License-Identifier: Apache-2.0 */
/* Kept entries go into a list and come back, of matrices that are copied in several blocks and of some of their rows. */
#include "support.h"

#include "sharing/kept_entries.h"

#include <math.h>
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

static bool is_kept(int64_t i, int64_t j, bool all)
{
	return all || entry(i, j) != 0.0F;
}

/* Entry number i of an array of floats or of 16-bit numbers. */
static float number_at(const void *array, int64_t size, int64_t i)
{
	return size == 2 ? (float)((const uint16_t *)array)[i] : ((const float *)array)[i];
}

static void put_number(void *array, int64_t size, int64_t i, float value)
{
	if (size == 2)
		((uint16_t *)array)[i] = (uint16_t)value;
	else
		((float *)array)[i] = value;
}

static void check(fp_context *ctx, shape s, bool all, int64_t size)
{
	const float other = 2000;
	int64_t entries = s.rows * s.cols, count = 0;
	float *values = malloc((size_t)entries * sizeof *values);
	char *numbers = malloc((size_t)(entries * size)), *packed = malloc((size_t)(entries * size));
	void *some = numbers + s.first * s.cols * size;
	fp_kept_entries kept = {0};
	for (int64_t k = 0; k < entries; k++) {
		values[k] = entry(k / s.cols, k % s.cols);
		put_number(numbers, size, k, values[k]);
	}
	assert_ok(ctx, fp_kept_entries_add(&kept, ctx, s.rows, s.cols, all ? NULL : values));
	fp_kept_copy(&kept.list[0], s.first, s.count, some, packed, size, true, 2);
	for (int64_t i = s.first; i < s.first + s.count; i++)
		for (int64_t j = 0; j < s.cols; j++)
			if (is_kept(i, j, all))
				assert_true(number_at(packed, size, count++) == entry(i, j));
	assert_int_equal(count, fp_kept_count(&kept.list[0], s.first, s.count));
	for (int64_t k = 0; k < entries; k++)
		put_number(numbers, size, k, other);
	fp_kept_copy(&kept.list[0], s.first, s.count, some, packed, size, false, 2);
	for (int64_t k = 0; k < entries; k++) {
		bool copied = k / s.cols >= s.first && k / s.cols < s.first + s.count;
		assert_true(number_at(numbers, size, k) == (copied ? values[k] : other));
	}
	fp_kept_entries_free(&kept);
	free(values);
	free(numbers);
	free(packed);
}

static void kept_entries_come_back(void **unused)
{
	static const shape shapes[] = {{7, 3, 0, 7},        {7, 3, 2, 4},     {7, 3, 3, 0},
								   {1, 9, 0, 1},        {5, 64, 0, 5},    {300, 257, 0, 300},
								   {300, 257, 11, 280}, {3, 40000, 0, 3}, {3, 40000, 1, 2}};
	fp_context *ctx = fp_context_new();
	(void)unused;
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		for (int64_t size = 2; size <= 4; size += 2) {
			check(ctx, shapes[i], false, size);
			check(ctx, shapes[i], true, size);
		}
	fp_context_free(ctx);
}

static void the_sign_of_zero_comes_back(void **unused)
{
	float row[3] = {0.0F, -0.0F, 1.0F}, packed[3];
	fp_context *ctx = fp_context_new();
	fp_kept_entries kept = {0};
	(void)unused;
	assert_ok(ctx, fp_kept_entries_add(&kept, ctx, 1, 3, row));
	assert_int_equal(fp_kept_count(&kept.list[0], 0, 1), 2);
	fp_kept_copy(&kept.list[0], 0, 1, row, packed, sizeof *row, true, 1);
	row[1] = 5;
	fp_kept_copy(&kept.list[0], 0, 1, row, packed, sizeof *row, false, 1);
	assert_true(row[0] == 0 && !signbit(row[0]) && row[1] == 0 && signbit(row[1]) && row[2] == 1);
	fp_kept_entries_free(&kept);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(kept_entries_come_back),
									   cmocka_unit_test(the_sign_of_zero_comes_back)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
