/* SPDX-License-Identifier: Apache-2.0 */
/* contract_output.c: rounding and download of finished weights. */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* round_weights() rounds as copy() does, writes zeros as +0.0 and counts them; the host receives the same bytes. */
static void check_round_weights(contract *c, int64_t rows, int64_t cols, fp_dtype type)
{
	const double special[] = {0.0, -0.0, -1e-46};
	sample X = sample_mixed(c, rows, cols, 1, special, 3);
	fp_matrix narrow, out;
	int64_t zeros = 0, got = -1, size = rows * cols;
	int finite = -1;
	void *host;
	assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, rows, cols, type));
	assert_ok(c->ctx, fp_matrix_new(c->be, &out, rows, cols, type));
	sample want = sample_filled(c, rows, cols, 0);
	assert_ok(c->ctx, c->be->memory->copy(c->be, narrow, X.view));
	assert_ok(c->ctx, c->be->memory->copy(c->be, want.view, narrow));
	double *rounded = sample_read(c, &want);
	for (int64_t k = 0; k < size; k++)
		zeros += rounded[k] == 0;
	assert_ok(c->ctx, c->be->transfer->allocate_host(c->be, &host, size * fp_dtype_size(type)));
	memset(host, 0x55, (size_t)(size * fp_dtype_size(type)));
	assert_ok(c->ctx, c->be->transfer->round_weights(c->be, X.view, out, &got, &finite));
	assert_ok(c->ctx, c->be->transfer->begin_download(c->be, host, out));
	assert_int_equal(got, zeros);
	assert_true(finite == 1);
	double *after = sample_read(c, &X);
	for (int64_t k = 0; k < size; k++)
		assert_true(after[k] == rounded[k] && (after[k] != 0 || !signbit(after[k])));
	assert_ok(c->ctx, c->be->transfer->end_download(c->be));
	float *numbers = malloc(((size_t)size + 1) * sizeof *numbers);
	fp_to_float(numbers, host, type, size);
	for (int64_t k = 0; k < size; k++)
		assert_true((double)numbers[k] == after[k] && (numbers[k] != 0 || !signbit(numbers[k])));
	c->be->transfer->release_host(c->be, host);
	if (size > 0) { /* an infinite number is reported, also if only rounding makes it infinite */
		float large = type == FP_F32 ? INFINITY : type == FP_F16 ? 7e4f : 3.4e38f;
		assert_ok(c->ctx,
				  c->be->memory->fill(c->be, fp_matrix_cols(fp_matrix_rows(X.view, rows - 1, 1), cols - 1, 1), large));
		assert_ok(c->ctx, c->be->transfer->round_weights(c->be, X.view, out, &got, &finite));
		assert_true(finite == 0);
	}
	free(numbers);
	free(rounded);
	free(after);
	fp_matrix_free(c->be, &narrow);
	fp_matrix_free(c->be, &out);
	sample_free(c, &X);
	sample_free(c, &want);
}

static void test_round_and_download(void **state)
{
	contract *c = *state;
	static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};
	for (int i = 0; i < contract_shape_count; i++)
		for (int t = 0; t < 3; t++)
			check_round_weights(c, contract_shapes[i].rows, contract_shapes[i].cols, types[t]);
	c->be->transfer->release_host(c->be, NULL);
}

CONTRACT_TESTS(output, cmocka_unit_test(test_round_and_download));
