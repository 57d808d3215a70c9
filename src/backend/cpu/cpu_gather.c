/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gather.c: rows of a matrix, collected in another order and added up again. */
#include "backend/cpu/cpu_backend.h"

#include <string.h>

fp_status fp_cpu_gather_rows(fp_backend *be, const int32_t *rows, fp_matrix scale, fp_matrix X, fp_matrix Y)
{
	bool scaled = !fp_matrix_is_absent(scale);
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && X.cols == Y.cols && (rows || X.rows == Y.rows));
	FP_REQUIRE(be, !scaled || fp_cpu_is_vector(scale, Y.rows));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X), *s = scaled ? fp_cpu_floats(scale) : NULL;
	float *y = fp_cpu_floats(Y);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(Y) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < Y.rows; i++) {
		const float *from = x + (rows ? rows[i] : i) * X.stride;
		float *to = y + i * Y.stride;
		if (s)
			loops->axpby(to, from, Y.cols, s[i], 0.0F);
		else if (to != from)
			memcpy(to, from, (size_t)Y.cols * sizeof *to);
	}
	return FP_OK;
}

fp_status fp_cpu_add_rows(fp_backend *be, const int32_t *rows, int64_t count, fp_matrix X, float beta, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && X.cols == Y.cols && count > 0);
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X);
	float *y = fp_cpu_floats(Y);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(Y) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < Y.rows; i++)
		for (int64_t j = 0; j < count; j++)
			loops->axpby(y + i * Y.stride, x + rows[i * count + j] * X.stride, Y.cols, 1.0F, j == 0 ? beta : 1.0F);
	return FP_OK;
}
