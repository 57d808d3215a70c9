/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SENTINEL = 77 }; /* exact in float and in U8 */

const contract_shape contract_shapes[] = {{0, 0},  {0, 5},   {4, 0},   {1, 1},    {1, 7},    {3, 1},     {2, 16},
										  {5, 13}, {17, 33}, {64, 64}, {129, 65}, {33, 300}, {1, 40000}, {300, 129}};
const int contract_shape_count = sizeof contract_shapes / sizeof *contract_shapes;

int64_t contract_random(contract *c, int64_t low, int64_t high)
{
	double unit = ((double)random_uniform(&c->seed) + 1) / 2;
	int64_t value = low + (int64_t)(unit * (double)(high - low + 1));
	return value > high ? high : value;
}

double *new_doubles(int64_t count)
{
	double *out = calloc((size_t)(count > 0 ? count : 1), sizeof *out);
	assert_non_null(out);
	return out;
}

/* Uploads s->value to a view at a random place of a new buffer. */
static void place(contract *c, sample *s, int64_t rows, int64_t cols, fp_dtype dtype)
{
	bool plain = contract_random(c, 0, 2) == 0;
	int64_t stride = cols + (plain ? 0 : contract_random(c, 1, 9));
	int64_t offset = plain ? 0 : contract_random(c, 0, 21);
	int64_t size = offset + rows * stride + 5;
	assert_ok(c->ctx, fp_matrix_new(c->be, &s->whole, 1, size, dtype));
	s->view = (fp_matrix){s->whole.buffer, offset, rows, cols, stride, dtype};
	assert_ok(c->ctx, c->be->memory->fill(c->be, s->whole, SENTINEL));
	float *floats = malloc((size_t)(rows * cols + 1) * sizeof *floats);
	uint8_t *bytes = malloc((size_t)(rows * cols + 1));
	for (int64_t i = 0; i < rows * cols; i++) {
		floats[i] = (float)s->value[i];
		bytes[i] = dtype == FP_U8 ? (uint8_t)s->value[i] : 0;
		s->value[i] = dtype == FP_U8 ? (double)bytes[i] : (double)floats[i];
	}
	const void *host = dtype == FP_U8 ? (const void *)bytes : (const void *)floats;
	assert_ok(c->ctx, c->be->memory->upload(c->be, s->view, host, dtype, cols));
	free(bytes);
	free(floats);
}

sample sample_from(contract *c, int64_t rows, int64_t cols, const double *value)
{
	sample s = {.value = new_doubles(rows * cols)};
	memcpy(s.value, value, (size_t)(rows * cols) * sizeof *value);
	place(c, &s, rows, cols, FP_F32);
	return s;
}

sample sample_filled(contract *c, int64_t rows, int64_t cols, double value)
{
	sample s = {.value = new_doubles(rows * cols)};
	for (int64_t i = 0; i < rows * cols; i++)
		s.value[i] = value;
	place(c, &s, rows, cols, FP_F32);
	return s;
}

sample sample_normal(contract *c, int64_t rows, int64_t cols)
{
	sample s = {.value = new_doubles(rows * cols)};
	for (int64_t i = 0; i < rows * cols; i++)
		s.value[i] = (double)random_normal(&c->seed);
	place(c, &s, rows, cols, FP_F32);
	return s;
}

sample sample_mixed(contract *c, int64_t rows, int64_t cols, double scale, const double *special, size_t count)
{
	double *values = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++) {
		values[k] = scale * (double)random_normal(&c->seed);
		if (contract_random(c, 0, 9) == 0)
			values[k] = special[contract_random(c, 0, (int64_t)count - 1)];
	}
	sample s = sample_from(c, rows, cols, values);
	free(values);
	return s;
}

double plain_activation(fp_activation kind, double x)
{
	switch (kind) {
	case FP_RELU:
		return x > 0 ? x : 0;
	case FP_SILU:
		return x / (1 + exp(-x));
	case FP_GELU:
		return 0.5 * x * erfc(-x / sqrt(2));
	default:
		return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
	}
}

sample sample_mask(contract *c, int64_t rows, int64_t cols)
{
	sample s = {.value = new_doubles(rows * cols)};
	for (int64_t i = 0; i < rows * cols; i++)
		s.value[i] = random_uniform(&c->seed) < 0 ? 0 : 1;
	place(c, &s, rows, cols, FP_U8);
	return s;
}

void sample_free(contract *c, sample *s)
{
	fp_matrix_free(c->be, &s->whole);
	free(s->value);
	memset(s, 0, sizeof *s);
}

double *sample_read(contract *c, const sample *s)
{
	int64_t size = s->whole.cols, element = fp_dtype_size(s->whole.dtype);
	char *raw = malloc((size_t)(size * element));
	assert_non_null(raw);
	assert_ok(c->ctx, c->be->memory->download(c->be, raw, s->whole.dtype, size, s->whole));
	double *out = new_doubles(fp_matrix_size(s->view));
	for (int64_t i = 0; i < size; i++) {
		float number;
		memcpy(&number, raw + (element == 4 ? 4 * i : 0), sizeof number);
		double value = s->whole.dtype == FP_U8 ? (double)(uint8_t)raw[i] : (double)number;
		int64_t at = i - s->view.offset;
		int64_t row = at >= 0 && s->view.stride > 0 ? at / s->view.stride : -1, col = at - row * s->view.stride;
		if (row >= 0 && row < s->view.rows && col < s->view.cols)
			out[row * s->view.cols + col] = value;
		else if (value != SENTINEL)
			fail_msg("element %lld outside the view (offset %lld, %lld × %lld, stride %lld) was written: %g",
					 (long long)i, (long long)s->view.offset, (long long)s->view.rows, (long long)s->view.cols,
					 (long long)s->view.stride, value);
	}
	free(raw);
	return out;
}

void sample_expect_within(contract *c, const sample *s, const double *want, const double *bound, const char *what)
{
	double *got = sample_read(c, s);
	for (int64_t i = 0; i < fp_matrix_size(s->view); i++) {
		bool same = isnan(want[i]) ? isnan(got[i]) : got[i] == want[i] || fabs(got[i] - want[i]) <= bound[i];
		if (!same)
			fail_msg("%s of %lld × %lld: entry (%lld, %lld) is %.9g, not %.9g within %.3g", what,
					 (long long)s->view.rows, (long long)s->view.cols, (long long)(i / s->view.cols),
					 (long long)(i % s->view.cols), got[i], want[i], bound[i]);
	}
	free(got);
}

void sample_expect(contract *c, const sample *s, const double *want, double absolute, double relative, const char *what)
{
	int64_t size = fp_matrix_size(s->view);
	double *bound = new_doubles(size);
	for (int64_t i = 0; i < size; i++)
		bound[i] = absolute + relative * fabs(want[i]);
	sample_expect_within(c, s, want, bound, what);
	free(bound);
}
