/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_elementwise.c: operations on single entries: sums, scalings, products, diagonals. */
#include "backend/cpu/cpu_backend.h"

#include <string.h>

fp_status fp_cpu_axpby(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	const fp_cpu_tiles tiles = fp_cpu_cut_both(X, Y);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		fp_cpu_loops_of(be)->axpby(fp_cpu_tile_floats(Y, tile), fp_cpu_tile_floats(X, tile), tile.size, alpha, beta);
	}
	return FP_OK;
}

fp_status fp_cpu_combine(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y, fp_matrix Z)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_is_f32(Z));
	FP_REQUIRE(be, fp_cpu_same_shape(X, Y) && fp_cpu_same_shape(X, Z));
	const float *x = fp_cpu_floats(X), *y = fp_cpu_floats(Y);
	float *z = fp_cpu_floats(Z);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++)
		for (int64_t j = 0; j < X.cols; j++)
			z[i * Z.stride + j] = alpha * x[i * X.stride + j] + beta * y[i * Y.stride + j];
	return FP_OK;
}

fp_status fp_cpu_dot(fp_backend *be, fp_matrix X, fp_matrix Y, double *out)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X), *y = fp_cpu_floats(Y);
	fp_cpu_tiles tiles = fp_cpu_cut(X.rows, X.cols, fp_cpu_is_contiguous(X) && fp_cpu_is_contiguous(Y));
	double sums[FP_CPU_SUMS] = {0};
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t s = 0; s < FP_CPU_SUMS; s++) {
		double sum = 0;
		for (int64_t t = tiles.count * s / FP_CPU_SUMS; t < tiles.count * (s + 1) / FP_CPU_SUMS; t++) {
			fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
			sum += loops->dot(x + tile.row * X.stride + tile.col, y + tile.row * Y.stride + tile.col, tile.size);
		}
		sums[s] = sum;
	}
	*out = 0;
	for (int s = 0; s < FP_CPU_SUMS; s++)
		*out += sums[s];
	return FP_OK;
}

fp_status fp_cpu_row_dot(fp_backend *be, fp_matrix X, fp_matrix Y, fp_matrix out)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	FP_REQUIRE(be, fp_cpu_is_vector(out, X.rows));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X), *y = fp_cpu_floats(Y);
	float *sums = fp_cpu_floats(out);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++)
		sums[i] = (float)loops->dot(x + i * X.stride, y + i * Y.stride, X.cols);
	return FP_OK;
}

fp_status fp_cpu_row_axpby(fp_backend *be, fp_matrix a, fp_matrix X, fp_matrix b, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	FP_REQUIRE(be, fp_cpu_is_vector(a, X.rows) && fp_cpu_is_vector(b, X.rows));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X), *alpha = fp_cpu_floats(a), *beta = fp_cpu_floats(b);
	float *y = fp_cpu_floats(Y);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++)
		loops->axpby(y + i * Y.stride, x + i * X.stride, X.cols, alpha[i], beta[i]);
	return FP_OK;
}

fp_status fp_cpu_scale_columns(fp_backend *be, fp_matrix s, fp_matrix X, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	FP_REQUIRE(be, fp_cpu_is_vector(s, X.cols));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X), *factors = fp_cpu_floats(s);
	float *y = fp_cpu_floats(Y);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++)
		loops->multiply(y + i * Y.stride, x + i * X.stride, factors, X.cols);
	return FP_OK;
}

fp_status fp_cpu_permute_rows(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	const float *x = fp_cpu_floats(X);
	float *y = fp_cpu_floats(Y);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++)
		memcpy(y + i * Y.stride, x + order[i] * X.stride, (size_t)X.cols * sizeof *x);
	return FP_OK;
}

fp_status fp_cpu_permute_columns(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++) {
		const float *x = fp_cpu_floats(X) + i * X.stride;
		float *y = fp_cpu_floats(Y) + i * Y.stride;
		for (int64_t j = 0; j < X.cols; j++)
			y[j] = x[order[j]];
	}
	return FP_OK;
}

fp_status fp_cpu_diagonal(fp_backend *be, fp_matrix A, fp_matrix out)
{
	FP_REQUIRE(be, fp_cpu_is_f32(A) && A.rows == A.cols && fp_cpu_is_vector(out, A.rows));
	const float *a = fp_cpu_floats(A);
	float *d = fp_cpu_floats(out);
	for (int64_t i = 0; i < A.rows; i++)
		d[i] = a[i * A.stride + i];
	return FP_OK;
}

fp_status fp_cpu_add_diagonal(fp_backend *be, fp_matrix A, fp_matrix d)
{
	FP_REQUIRE(be, fp_cpu_is_f32(A) && A.rows == A.cols && fp_cpu_is_vector(d, A.rows));
	float *a = fp_cpu_floats(A);
	const float *added = fp_cpu_floats(d);
	for (int64_t i = 0; i < A.rows; i++)
		a[i * A.stride + i] += added[i];
	return FP_OK;
}

/* A 16-bit number is not finite if all bits of its exponent are set. */
static bool finite_halves(const uint16_t *x, fp_dtype dtype, int64_t n)
{
	uint16_t exponent = dtype == FP_F16 ? 0x7C00 : 0x7F80;
	bool finite = true;
	for (int64_t i = 0; i < n; i++)
		finite &= (x[i] & exponent) != exponent;
	return finite;
}

fp_status fp_cpu_finite(fp_backend *be, fp_matrix X, int *out)
{
	FP_REQUIRE(be, fp_dtype_is_weight(X.dtype) && fp_cpu_is_view(X, X.dtype));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X);
	const uint16_t *halves = fp_cpu_halves(X);
	fp_cpu_tiles tiles = fp_cpu_cut(X.rows, X.cols, fp_cpu_is_contiguous(X));
	int finite = 1;
#pragma omp parallel for num_threads(be->threads) reduction(& : finite) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		int64_t at = tile.row * X.stride + tile.col;
		bool all =
			X.dtype == FP_F32 ? loops->finite(x + at, tile.size) : finite_halves(halves + at, X.dtype, tile.size);
		finite &= all ? 1 : 0;
	}
	*out = finite;
	return FP_OK;
}

fp_status fp_cpu_max_abs(fp_backend *be, fp_matrix X, double *out)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *x = fp_cpu_floats(X);
	fp_cpu_tiles tiles = fp_cpu_cut(X.rows, X.cols, fp_cpu_is_contiguous(X));
	float largest = 0;
#pragma omp parallel for num_threads(be->threads) reduction(max                                                        \
															: largest) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		float here = loops->max_abs(x + tile.row * X.stride + tile.col, tile.size);
		largest = here > largest ? here : largest;
	}
	*out = (double)largest;
	return FP_OK;
}
