/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator: zeroed, aligned, checked sizes, and a way to fail the n-th allocation. */
#include "support.h"

#include <string.h>

static void memory_is_zeroed_and_aligned(void **state)
{
	fp_context *ctx = *state;
	for (int64_t count = 0; count < 200; count += 7) {
		float *numbers;
		assert_ok(ctx, FP_NEW(ctx, &numbers, count));
		assert_non_null(numbers);
		assert_int_equal((uintptr_t)numbers % 64, 0);
		for (int64_t i = 0; i < count; i++)
			assert_true(numbers[i] == 0.0F);
		memset(numbers, 0xFF, (size_t)count * sizeof *numbers);
		fp_free(numbers);
	}
}

static void impossible_sizes_are_refused(void **state)
{
	fp_context *ctx = *state;
	void *pointer = ctx;
	assert_fails(ctx, FP_ERROR_MEMORY, "out of range", fp_allocate(ctx, &pointer, INT64_MAX, 2));
	assert_null(pointer);
	assert_fails(ctx, FP_ERROR_MEMORY, "out of range", fp_allocate(ctx, &pointer, -1, 4));
	assert_fails(ctx, FP_ERROR_MEMORY, "out of range", fp_allocate(ctx, &pointer, INT64_MAX - 1, 1));
	assert_null(pointer);
}

static void growing_keeps_content_and_zeroes_the_rest(void **state)
{
	fp_context *ctx = *state;
	int32_t *list = NULL;
	int64_t capacity = 0;
	for (int32_t i = 0; i < 1000; i++) {
		assert_ok(ctx, FP_GROW(ctx, &list, &capacity, i + 1));
		assert_int_equal(list[i], 0);
		list[i] = i;
	}
	assert_true(capacity >= 1000 && capacity < 3000);
	for (int32_t i = 0; i < 1000; i++)
		assert_int_equal(list[i], i);
	int32_t *before = list;
	assert_fails(ctx, FP_ERROR_MEMORY, "out of range", FP_GROW(ctx, &list, &capacity, INT64_MAX / 2));
	assert_ptr_equal(list, before);
	fp_free(list);
}

static void the_chosen_allocation_fails(void **state)
{
	fp_context *ctx = *state;
	char *a;
	char *b;
	ctx->fail_allocation_at = ctx->allocations + 2;
	assert_ok(ctx, fp_copy_text(ctx, &a, "first"));
	assert_fails(ctx, FP_ERROR_MEMORY, "out of memory", fp_copy_text(ctx, &b, "second"));
	assert_null(b);
	assert_string_equal(a, "first");
	fp_free(a);
}

static void products_and_sums_are_checked(void **state)
{
	(void)state;
	int64_t out = 7;
	assert_true(fp_multiply_checked(3, 5, &out));
	assert_int_equal(out, 15);
	assert_false(fp_multiply_checked(INT64_MAX / 2, 3, &out));
	assert_false(fp_multiply_checked(-1, 3, &out));
	assert_false(fp_add_checked(INT64_MAX, 1, &out));
	assert_false(fp_add_checked(1, -1, &out));
	assert_int_equal(out, 15);
	assert_true(fp_add_checked(INT64_MAX, 0, &out));
	assert_true(out == INT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_zeroed_and_aligned),
		cmocka_unit_test(impossible_sizes_are_refused),
		cmocka_unit_test(growing_keeps_content_and_zeroes_the_rest),
		cmocka_unit_test(the_chosen_allocation_fails),
		cmocka_unit_test(products_and_sums_are_checked),
	};
	return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
