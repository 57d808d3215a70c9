/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_upload_and_download(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		sample s = sample_normal(c, contract_shapes[i].rows, contract_shapes[i].cols);
		sample_expect(c, &s, s.value, 0, 0, "upload"); /* a copy is exact */
		sample_free(c, &s);
	}
}

/* Numbers with few bits are exact in every type, so conversions must be exact. */
static void test_conversions(void **state)
{
	contract *c = *state;
	static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};
	for (int from = 0; from < 3; from++) {
		for (int to = 0; to < 3; to++) {
			enum { ROWS = 7, COLS = 13, STRIDE = 17 };
			float numbers[ROWS * STRIDE], back[ROWS * COLS];
			for (int i = 0; i < ROWS * STRIDE; i++)
				numbers[i] = (float)contract_random(c, -128, 127) / 16.0f;
			char in[ROWS * STRIDE * 4], out[ROWS * STRIDE * 4];
			fp_from_float(in, types[from], numbers, ROWS * STRIDE);
			fp_matrix m, other;
			assert_ok(c->ctx, fp_matrix_new(c->be, &m, ROWS, COLS, types[to]));
			assert_ok(c->ctx, fp_matrix_new(c->be, &other, ROWS, COLS, types[(to + 1) % 3]));
			assert_ok(c->ctx, c->be->memory->upload(c->be, m, in, types[from], STRIDE));
			assert_ok(c->ctx, c->be->memory->copy(c->be, other, m));
			assert_ok(c->ctx, c->be->memory->download(c->be, out, types[from], COLS, other));
			fp_to_float(back, out, types[from], ROWS * COLS);
			for (int r = 0; r < ROWS; r++) {
				for (int k = 0; k < COLS; k++)
					assert_true(back[r * COLS + k] == numbers[r * STRIDE + k]);
			}
			fp_matrix_free(c->be, &m);
			fp_matrix_free(c->be, &other);
		}
	}
}

/* Threads may share large copies: sizes that do not divide evenly must be complete. */
static void test_large_copies(void **state)
{
	contract *c = *state;
	static const int64_t sizes[] = {1 << 20, (1 << 20) + 129, (9 << 20) + 3};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		size_t bytes = (size_t)sizes[i] * sizeof(float);
		float *in = malloc(bytes), *out = calloc(1, bytes);
		assert_true(in && out);
		for (int64_t k = 0; k < sizes[i]; k++)
			in[k] = (float)(k % 4093) + 1;
		fp_matrix m;
		assert_ok(c->ctx, fp_matrix_new(c->be, &m, 1, sizes[i], FP_F32));
		assert_ok(c->ctx, c->be->memory->upload(c->be, m, in, FP_F32, sizes[i]));
		assert_ok(c->ctx, c->be->memory->download(c->be, out, FP_F32, sizes[i], m));
		assert_int_equal(memcmp(in, out, bytes), 0);
		fp_matrix_free(c->be, &m);
		free(in);
		free(out);
	}
}

/* The device rounds as the host does, bit for bit: a checkpoint must not depend on where it was rounded. */
static void test_rounding(void **state)
{
	contract *c = *state;
	enum { COUNT = 5000 };
	static const fp_dtype types[] = {FP_F16, FP_BF16};
	static float numbers[COUNT];
	for (int i = 0; i < COUNT; i++)
		numbers[i] = ldexpf(random_normal(&c->seed), (int)contract_random(c, -30, 18));
	for (int t = 0; t < 2; t++) {
		static uint16_t want[COUNT], got[COUNT];
		fp_from_float(want, types[t], numbers, COUNT);
		fp_matrix m;
		assert_ok(c->ctx, fp_matrix_new(c->be, &m, 1, COUNT, FP_F32));
		assert_ok(c->ctx, c->be->memory->upload(c->be, m, numbers, FP_F32, COUNT));
		assert_ok(c->ctx, c->be->memory->download(c->be, got, types[t], COUNT, m));
		assert_memory_equal(got, want, sizeof want);
		fp_matrix_free(c->be, &m);
	}
}

static void test_copy_and_fill(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		sample from = sample_normal(c, rows, cols), to = sample_normal(c, rows, cols),
			   mask = sample_mask(c, rows, cols);
		assert_ok(c->ctx, c->be->memory->copy(c->be, to.view, from.view));
		sample_expect(c, &to, from.value, 0, 0, "copy");
		assert_ok(c->ctx, c->be->memory->fill(c->be, from.view, -2.5f));
		assert_ok(c->ctx, c->be->memory->fill(c->be, mask.view, 1));
		for (int64_t k = 0; k < rows * cols; k++) {
			from.value[k] = -2.5;
			mask.value[k] = 1;
		}
		sample_expect(c, &from, from.value, 0, 0, "fill");
		sample_expect(c, &mask, mask.value, 0, 0, "fill of a mask");
		sample_free(c, &from);
		sample_free(c, &to);
		sample_free(c, &mask);
	}
}

static void test_memory_and_defects(void **state)
{
	contract *c = *state;
	int64_t available = -1, total = -1;
	assert_ok(c->ctx, c->be->memory->available(c->be, &available, &total));
	assert_true(available >= 0 && total > 0 && available <= total);
	assert_ok(c->ctx, c->be->memory->synchronize(c->be));
	c->be->memory->release(c->be, NULL);
	/* mismatched shapes are a defect of the caller: reported, not executed */
	sample a = sample_normal(c, 3, 4), b = sample_normal(c, 3, 5);
	assert_fails(c->ctx, FP_ERROR_INTERNAL, "does not hold", c->be->memory->copy(c->be, a.view, b.view));
	assert_fails(c->ctx, FP_ERROR_INTERNAL, "does not hold", c->be->linear->axpby(c->be, 1, a.view, 1, b.view));
	fp_matrix outside = a.view;
	outside.offset += a.whole.cols;
	assert_fails(c->ctx, FP_ERROR_INTERNAL, "does not hold", c->be->memory->fill(c->be, outside, 0));
	sample_free(c, &a);
	sample_free(c, &b);
}

/* Where the device's memory is the host's, the entries of contiguous rows are at the address that is told. */
static void test_host_address(void **state)
{
	contract *c = *state;
	enum { ROWS = 5, COLS = 7 };
	float numbers[ROWS * COLS], back[ROWS * COLS];
	fp_matrix m;
	for (int i = 0; i < ROWS * COLS; i++)
		numbers[i] = (float)i;
	assert_ok(c->ctx, fp_matrix_new(c->be, &m, ROWS, COLS, FP_F32));
	assert_ok(c->ctx, c->be->memory->upload(c->be, m, numbers, FP_F32, COLS));
	float *entries = fp_matrix_on_host(c->be, fp_matrix_rows(m, 2, 3));
	assert_true((entries != NULL) == (c->be->memory->address != NULL));
	assert_null(fp_matrix_on_host(c->be, fp_matrix_cols(m, 1, 3))); /* not contiguous */
	if (entries) {
		assert_memory_equal(entries, numbers + 2 * COLS, 3 * COLS * sizeof *numbers);
		entries[0] = numbers[2 * COLS] = -1;
	}
	assert_ok(c->ctx, c->be->memory->download(c->be, back, FP_F32, COLS, m));
	assert_memory_equal(back, numbers, sizeof back);
	fp_matrix_free(c->be, &m);
}

/* An upload during queued work does not disturb that work, even though a buffer of the same size is freed after it, and
 * later operations see the uploaded matrix. */
static void test_upload_async(void **state)
{
	contract *c = *state;
	enum { N = 1500, TIMES = 40 };
	static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};
	static float numbers[N * N], back[N * N], in[N * N];
	for (int i = 0; i < N * N; i++)
		numbers[i] = (float)(i % 251 - 125) / 16.0f;
	for (int t = 0; t < 6; t++) { /* converted to float, and unconverted */
		const fp_dtype type = types[t % 3], held = t < 3 ? FP_F32 : type;
		fp_matrix one, sum, uploaded, own, wide;
		assert_ok(c->ctx, fp_matrix_new(c->be, &one, N, N, FP_F32));
		assert_ok(c->ctx, fp_matrix_new(c->be, &sum, N, N, FP_F32));
		assert_ok(c->ctx, c->be->memory->fill(c->be, one, 1.0f));
		assert_ok(c->ctx, c->be->memory->fill(c->be, sum, 0.0f));
		for (int i = 0; i < TIMES; i++)
			assert_ok(c->ctx, c->be->linear->axpby(c->be, 1.0f, one, 1.0f, sum));
		fp_matrix_free(c->be, &one);
		fp_from_float(in, type, numbers, N * N);
		assert_ok(c->ctx, c->be->transfer->upload_async(c->be, &uploaded, N, N, held, in, type));
		memset(in, 0, sizeof in); /* upload_async() has read the host memory */
		assert_int_equal(uploaded.dtype, held);
		assert_ok(c->ctx, fp_matrix_widen(c->be, uploaded, &own, &wide));
		assert_ok(c->ctx, c->be->linear->axpby(c->be, 1.0f, wide, 1.0f, sum));
		assert_ok(c->ctx, c->be->memory->download(c->be, back, FP_F32, N, sum));
		for (int i = 0; i < N * N; i++)
			assert_true(back[i] == numbers[i] + (float)TIMES);
		fp_matrix_free(c->be, &uploaded);
		fp_matrix_free(c->be, &own);
		fp_matrix_free(c->be, &sum);
	}
}

CONTRACT_TESTS(memory, cmocka_unit_test(test_upload_and_download), cmocka_unit_test(test_conversions),
			   cmocka_unit_test(test_large_copies), cmocka_unit_test(test_rounding),
			   cmocka_unit_test(test_copy_and_fill), cmocka_unit_test(test_memory_and_defects),
			   cmocka_unit_test(test_host_address));
CONTRACT_TESTS(upload, cmocka_unit_test(test_upload_async));
