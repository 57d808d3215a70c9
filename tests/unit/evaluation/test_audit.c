/* SPDX-License-Identifier: Apache-2.0 */
/* The audit of files with known zeros. */
#include "evaluation/audit.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, COLUMNS = 10 };

typedef struct fixture {
	fp_context *ctx;
	char *folder;
	fp_checkpoint *checkpoint;
} fixture;

/* A checkpoint directory with one tensor "w" of ROWS × COLUMNS. */
static const fp_tensor_info *open_tensor(fixture *f, const char *dtype, const void *data, size_t bytes)
{
	char header[256];
	int length =
		snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"%s\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}", dtype,
				 ROWS, COLUMNS, bytes);
	char file[1024];
	uint64_t size = (uint64_t)length;
	memcpy(file, &size, 8);
	memcpy(file + 8, header, size);
	memcpy(file + 8 + size, data, bytes);
	write_file(f->folder, "model.safetensors", file, 8 + size + bytes);
	write_file(f->folder, "config.json", "{\"model_type\": \"none\"}", 22);
	fp_checkpoint_close(f->checkpoint);
	f->checkpoint = NULL;
	assert_ok(f->ctx, fp_checkpoint_open(&f->checkpoint, f->ctx, f->folder));
	const fp_tensor_info *tensor = fp_checkpoint_find(f->checkpoint, "w");
	assert_non_null(tensor);
	return tensor;
}

static fp_audit_result audit(fixture *f, const fp_tensor_info *tensor, const fp_audit_rule *rule)
{
	fp_audit_result result;
	assert_ok(f->ctx, fp_audit_tensor(&result, f->ctx, f->checkpoint, tensor, rule));
	return result;
}

static void zeros_are_counted_by_their_bits(void **state)
{
	fixture *f = *state;
	float w[ROWS * COLUMNS];
	for (int i = 0; i < ROWS * COLUMNS; i++)
		w[i] = 1.0F + (float)i;
	w[0] = 0.0F;
	w[7] = -0.0F;
	w[29] = 0.0F;
	w[3] = 1e-45F; /* the smallest subnormal: not zero */
	w[4] = INFINITY;
	w[5] = NAN;
	fp_audit_result result = audit(f, open_tensor(f, "F32", w, sizeof w), NULL);
	assert_true(result.counted);
	assert_int_equal(result.zeros, 3);
	assert_int_equal(result.negative_zeros, 1);
	assert_int_equal(result.not_finite, 2);
	assert_int_equal(result.violations, 0);
}

static void half_types_are_read_too(void **state)
{
	fixture *f = *state;
	uint16_t w[ROWS * COLUMNS];
	for (int i = 0; i < ROWS * COLUMNS; i++)
		w[i] = 0x3C00; /* 1.0 in F16, a small number in BF16 */
	w[1] = 0x0000;
	w[2] = 0x8000;
	w[3] = 0x7C00; /* infinity in F16 only */
	w[4] = 0x7F80; /* infinity in BF16, NaN in F16 */
	fp_audit_result half = audit(f, open_tensor(f, "F16", w, sizeof w), NULL);
	assert_int_equal(half.zeros, 2);
	assert_int_equal(half.negative_zeros, 1);
	assert_int_equal(half.not_finite, 2);
	fp_audit_result brain = audit(f, open_tensor(f, "BF16", w, sizeof w), NULL);
	assert_int_equal(brain.zeros, 2);
	assert_int_equal(brain.not_finite, 1);
}

/* Ten columns form groups of 4, 4 and 2; the last may keep ⌈2·2/4⌉ = 1. */
static void groups_end_with_the_row(void **state)
{
	fixture *f = *state;
	const fp_audit_rule two_of_four = {.kept = 2, .group = 4, .sparsity = 0.5};
	float w[ROWS][COLUMNS] = {
		{1, 0, 0, 1, 0, 1, 1, 0, 1, 0},
		{0, 0, 0, 0, 1, 1, 0, 0, 0, 1},
		{1, 1, 0, 0, 0, 0, 1, 1, 0, 0},
	};
	assert_int_equal(audit(f, open_tensor(f, "F32", w, sizeof w), &two_of_four).violations, 0);
	w[0][1] = 5; /* three non-zeros in the first group */
	w[2][8] = 5; /* one in the last group: allowed */
	assert_int_equal(audit(f, open_tensor(f, "F32", w, sizeof w), &two_of_four).violations, 1);
	w[2][9] = 5; /* two in the last group: too many */
	w[1][6] = 5;
	assert_int_equal(audit(f, open_tensor(f, "F32", w, sizeof w), &two_of_four).violations, 3);
}

static void shares_count_in_the_matrix(void **state)
{
	fixture *f = *state;
	float w[ROWS * COLUMNS];
	for (int i = 0; i < ROWS * COLUMNS; i++)
		w[i] = i < 14 ? 0.0F : 1.0F;
	const fp_tensor_info *tensor = open_tensor(f, "F32", w, sizeof w);
	const fp_audit_rule enough = {.sparsity = 0.47}; /* ⌊14.1⌋ = 14 */
	const fp_audit_rule missing = {.sparsity = 0.5};
	assert_int_equal(audit(f, tensor, &enough).violations, 0);
	assert_int_equal(audit(f, tensor, &missing).violations, 1);
}

/* Wanda prunes ⌊s·columns⌋ entries of each row, in total perhaps fewer than ⌊s·entries⌋. */
static void shares_may_count_in_each_row(void **state)
{
	fixture *f = *state;
	const fp_audit_rule share = {.sparsity = 0.47}; /* ⌊4.7⌋ = 4 of a row, ⌊14.1⌋ = 14 of the matrix */
	float w[ROWS][COLUMNS];
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++)
			w[i][j] = (i + j) % COLUMNS < 4 ? 0.0F : 1.0F;
	assert_int_equal(audit(f, open_tensor(f, "F32", w, sizeof w), &share).violations, 0);
	w[1][9] = 1.0F; /* one zero fewer in this row, one more in another */
	w[0][5] = 0.0F;
	assert_int_equal(audit(f, open_tensor(f, "F32", w, sizeof w), &share).violations, 1);
}

static void integers_are_left_alone(void **state)
{
	fixture *f = *state;
	int64_t w[ROWS * COLUMNS] = {0};
	assert_false(audit(f, open_tensor(f, "I64", w, sizeof w), NULL).counted);
}

static int set_up(void **state)
{
	static fixture f;
	f = (fixture){.ctx = fp_context_new(), .folder = temporary_folder()};
	*state = &f;
	return 0;
}

static int tear_down(void **state)
{
	fixture *f = *state;
	fp_checkpoint_close(f->checkpoint);
	remove_folder(f->folder);
	free(f->folder);
	fp_context_free(f->ctx);
	return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(zeros_are_counted_by_their_bits), TEST(half_types_are_read_too),      TEST(groups_end_with_the_row),
		TEST(shares_count_in_the_matrix),      TEST(shares_may_count_in_each_row), TEST(integers_are_left_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
