/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_gradients.cu: gradients of norms and activations, sums over columns, and the difference of the loss.
 *
 * A row of a norm:
 *     y = s·(x − c)∘w
 *     c = mean(x) (layer norm) or 0 (RMS norm)
 *     s = 1/√(mean((x − c)²) + ε)
 * Its gradient, with g = w∘dy:
 *     dx = s·(g − a − b·(x − c))
 *     a  = mean(g) (layer norm) or 0 (RMS norm)
 *     b  = s²·mean(g∘(x − c))
 */
#include "backend/cuda/cuda_activation.cuh"
#include "backend/cuda/cuda_sums.cuh"

/* --- norms -------------------------------------------------------------------------------------------------------- */

struct norm_slope {
	const float *x, *dy, *weight; /* weight: NULL where absent */
	float *dx;
	int64_t rows, cols, xs, dys, dxs;
	float epsilon;
	bool centred;
};

/* A block for each row. dx may be dy: an entry is read before it is written. */
__global__ static void norm_backward_kernel(norm_slope n)
{
	__shared__ double shared[33];
	double count = (double)n.cols;
	for (int64_t i = blockIdx.x; i < n.rows; i += gridDim.x) {
		const float *x = n.x + i * n.xs, *dy = n.dy + i * n.dys;
		float *dx = n.dx + i * n.dxs;
		double mean = 0, square = 0, plain = 0, along = 0;
		if (n.centred) {
			for (int64_t j = threadIdx.x; j < n.cols; j += THREADS)
				mean += (double)x[j];
			mean = fp_cuda_block_sum(mean, shared) / count;
		}
		for (int64_t j = threadIdx.x; j < n.cols; j += THREADS) {
			double off = (double)x[j] - mean, g = (n.weight ? (double)n.weight[j] : 1.0) * (double)dy[j];
			square += off * off;
			plain += g;
			along += g * off;
		}
		square = 1 / (fp_cuda_block_sum(square, shared) / count + (double)n.epsilon);
		plain = n.centred ? fp_cuda_block_sum(plain, shared) / count : 0;
		along = square * fp_cuda_block_sum(along, shared) / count;
		float centre = (float)mean, factor = (float)sqrt(square), a = (float)plain, b = (float)along;
		for (int64_t j = threadIdx.x; j < n.cols; j += THREADS) {
			float g = n.weight ? n.weight[j] * dy[j] : dy[j];
			dx[j] = factor * (g - a - b * (x[j] - centre));
		}
	}
}

fp_status fp_cuda_norm_backward(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, float epsilon,
								fp_matrix dY, fp_matrix dX)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(dY) && fp_cuda_is_f32(dX));
	FP_REQUIRE(be, fp_cuda_same_shape(X, dY) && fp_cuda_same_shape(X, dX));
	FP_REQUIRE(be, fp_matrix_is_absent(weight) || fp_cuda_is_vector(weight, X.cols));
	if (fp_matrix_size(X) == 0)
		return FP_OK;
	norm_slope n = {};
	n.x = fp_cuda_floats(X);
	n.dy = fp_cuda_floats(dY);
	n.dx = fp_cuda_floats(dX);
	n.weight = fp_matrix_is_absent(weight) ? nullptr : fp_cuda_floats(weight);
	n.rows = X.rows;
	n.cols = X.cols;
	n.xs = X.stride;
	n.dys = dY.stride;
	n.dxs = dX.stride;
	n.epsilon = epsilon;
	n.centred = kind == FP_LAYER_NORM;
	norm_backward_kernel<<<(unsigned)fp_smaller(X.rows, 1 << 20), THREADS, 0, fp_cuda_stream(be)>>>(n);
	FP_LAUNCHED(be);
	return FP_OK;
}

/* --- activations -------------------------------------------------------------------------------------------------- */

/* In: type of X and dY, F32 or that of dX. */
template <fp_activation kind, typename In, typename T>
static fp_status slope_as(fp_backend *be, fp_matrix X, fp_matrix dY, fp_matrix dX)
{
	const In *x = fp_cuda_at<In>(X), *dy = fp_cuda_at<In>(dY);
	T *dx = fp_cuda_at<T>(dX);
	int64_t xs = X.stride, dys = dY.stride, dxs = dX.stride;
	bool flat = fp_cuda_is_contiguous(X) && fp_cuda_is_contiguous(dY) && fp_cuda_is_contiguous(dX);
	return fp_cuda_map(be, X.rows, X.cols, flat, [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store(dx + i * dxs + j,
					  fp_cuda_load(dy + i * dys + j) * activation_slope<kind>(fp_cuda_load(x + i * xs + j)));
	});
}

fp_status fp_cuda_activate_backward(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix dY, fp_matrix dX)
{
	FP_REQUIRE(be, fp_cuda_narrows(X, dX) && fp_cuda_is_view(dY, X.dtype));
	FP_REQUIRE(be, fp_cuda_same_shape(X, dY) && fp_cuda_same_shape(X, dX));
	return fp_cuda_by_activation(be, kind, [&](auto k) {
		constexpr fp_activation f = decltype(k)::value;
		return X.dtype == FP_BF16    ? slope_as<f, __nv_bfloat16, __nv_bfloat16>(be, X, dY, dX)
			   : dX.dtype == FP_BF16 ? slope_as<f, float, __nv_bfloat16>(be, X, dY, dX)
									 : slope_as<f, float, float>(be, X, dY, dX);
	});
}

/* *dg ← d·up·f'(gate), *du ← d·f(gate) */
template <fp_activation kind>
__device__ static inline void gated_slopes(float gate, float up, float d, float *dg, float *du)
{
	*dg = d * up * activation_slope<kind>(gate);
	*du = d * activation<kind>(gate);
}

/* In: type of G, U and dY, F32 or that of dG and dU. */
template <fp_activation kind, typename In, typename T>
static fp_status gated_slope_as(fp_backend *be, fp_matrix G, fp_matrix U, fp_matrix dY, fp_matrix dG, fp_matrix dU)
{
	const In *g = fp_cuda_at<In>(G), *u = fp_cuda_at<In>(U), *dy = fp_cuda_at<In>(dY);
	T *dg = fp_cuda_at<T>(dG), *du = fp_cuda_at<T>(dU);
	int64_t gs = G.stride, us = U.stride, dys = dY.stride, dgs = dG.stride, dus = dU.stride;
	bool flat = fp_cuda_is_contiguous(G) && fp_cuda_is_contiguous(U) && fp_cuda_is_contiguous(dY) &&
				fp_cuda_is_contiguous(dG) && fp_cuda_is_contiguous(dU);
	if (fp_cuda_in_fours(G) && fp_cuda_in_fours(U) && fp_cuda_in_fours(dY) && fp_cuda_in_fours(dG) &&
		fp_cuda_in_fours(dU))
		return fp_cuda_map(be, G.rows, G.cols / 4, flat, [=] __device__(int64_t i, int64_t j) {
			float4 a = fp_cuda_load4(g + i * gs + 4 * j), b = fp_cuda_load4(u + i * us + 4 * j),
				   d = fp_cuda_load4(dy + i * dys + 4 * j), da, db;
			gated_slopes<kind>(a.x, b.x, d.x, &da.x, &db.x);
			gated_slopes<kind>(a.y, b.y, d.y, &da.y, &db.y);
			gated_slopes<kind>(a.z, b.z, d.z, &da.z, &db.z);
			gated_slopes<kind>(a.w, b.w, d.w, &da.w, &db.w);
			fp_cuda_store4(dg + i * dgs + 4 * j, da);
			fp_cuda_store4(du + i * dus + 4 * j, db);
		});
	return fp_cuda_map(be, G.rows, G.cols, flat, [=] __device__(int64_t i, int64_t j) {
		float da, db;
		gated_slopes<kind>(fp_cuda_load(g + i * gs + j), fp_cuda_load(u + i * us + j), fp_cuda_load(dy + i * dys + j),
						   &da, &db);
		fp_cuda_store(dg + i * dgs + j, da);
		fp_cuda_store(du + i * dus + j, db);
	});
}

fp_status fp_cuda_activate_gated_backward(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix dY,
										  fp_matrix dG, fp_matrix dU)
{
	const fp_matrix all[] = {G, U, dY, dG, dU};
	for (const fp_matrix &m : all)
		FP_REQUIRE(be, fp_cuda_same_shape(m, G));
	FP_REQUIRE(be, fp_cuda_narrows(G, dG) && fp_cuda_is_view(U, G.dtype) && fp_cuda_is_view(dY, G.dtype));
	FP_REQUIRE(be, fp_cuda_is_view(dU, dG.dtype));
	return fp_cuda_by_activation(be, kind, [&](auto k) {
		constexpr fp_activation f = decltype(k)::value;
		return G.dtype == FP_BF16    ? gated_slope_as<f, __nv_bfloat16, __nv_bfloat16>(be, G, U, dY, dG, dU)
			   : dG.dtype == FP_BF16 ? gated_slope_as<f, float, __nv_bfloat16>(be, G, U, dY, dG, dU)
									 : gated_slope_as<f, float, float>(be, G, U, dY, dG, dU);
	});
}

fp_status fp_cuda_soft_cap_backward(fp_backend *be, float cap, fp_matrix Y, fp_matrix dX)
{
	FP_REQUIRE(be, fp_cuda_is_f32(Y) && fp_cuda_is_f32(dX) && fp_cuda_same_shape(Y, dX) && cap > 0);
	const float *y = fp_cuda_floats(Y);
	float *dx = fp_cuda_floats(dX);
	int64_t ys = Y.stride, dxs = dX.stride;
	bool flat = fp_cuda_is_contiguous(Y) && fp_cuda_is_contiguous(dX);
	return fp_cuda_map(be, Y.rows, Y.cols, flat, [=] __device__(int64_t i, int64_t j) {
		float share = y[i * ys + j] / cap;
		dx[i * dxs + j] *= 1.0f - share * share;
	});
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

enum { STRIP = 32, LANES = 16 };

/* A block for each strip of columns. Lane k adds rows k, k + LANES, …; the lanes are then added in order. */
template <bool squared, typename T>
__global__ static void column_sums_kernel(int64_t rows, int64_t cols, const T *x, int64_t stride, float beta,
										  float *out)
{
	__shared__ double sums[LANES][STRIP];
	int64_t col = (int64_t)blockIdx.x * STRIP + threadIdx.x;
	double sum = 0;
	for (int64_t i = threadIdx.y; i < rows && col < cols; i += LANES) {
		double entry = (double)fp_cuda_load(x + i * stride + col);
		sum += squared ? entry * entry : entry;
	}
	sums[threadIdx.y][threadIdx.x] = sum;
	__syncthreads();
	if (threadIdx.y > 0 || col >= cols)
		return;
	for (int k = 1; k < LANES; k++)
		sum += sums[k][threadIdx.x];
	out[col] = (float)(sum + (beta == 0.0f ? 0.0 : (double)beta * (double)out[col]));
}

template <bool squared> static fp_status sum_columns(fp_backend *be, fp_matrix X, float beta, fp_matrix out)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && fp_cuda_is_vector(out, X.cols) && X.cols / STRIP < INT32_MAX);
	if (X.cols == 0)
		return FP_OK;
	unsigned strips = (unsigned)((X.cols + STRIP - 1) / STRIP);
	return fp_cuda_by_type(X, [&](const auto *x) {
		column_sums_kernel<squared><<<strips, dim3(STRIP, LANES), 0, fp_cuda_stream(be)>>>(X.rows, X.cols, x, X.stride,
																						   beta, fp_cuda_floats(out));
		FP_LAUNCHED(be);
		return FP_OK;
	});
}

fp_status fp_cuda_column_sums(fp_backend *be, fp_matrix X, float beta, fp_matrix out)
{
	return sum_columns<false>(be, X, beta, out);
}

fp_status fp_cuda_column_squares(fp_backend *be, fp_matrix X, float beta, fp_matrix out)
{
	return sum_columns<true>(be, X, beta, out);
}

/* In: type of Y and T. Out: type of D. */
template <typename In, typename Out>
static fp_status difference_as(fp_backend *be, float scale, fp_matrix Y, fp_matrix T, fp_matrix D, double *squares)
{
	const In *y = fp_cuda_at<In>(Y), *t = fp_cuda_at<In>(T);
	Out *d = fp_cuda_at<Out>(D);
	int64_t ys = Y.stride, ts = T.stride, ds = D.stride;
	bool flat = fp_cuda_is_contiguous(Y) && fp_cuda_is_contiguous(T) && fp_cuda_is_contiguous(D);
	if (squares)
		return sum_of(be, span_of(Y.rows, Y.cols, flat), squares, [=] __device__(int64_t i, int64_t j) {
			float off = fp_cuda_load(y + i * ys + j) - fp_cuda_load(t + i * ts + j);
			fp_cuda_store(d + i * ds + j, scale * off);
			return (double)off * (double)off;
		});
	/* without the sum there is no wait */
	if (fp_cuda_in_fours(Y) && fp_cuda_in_fours(T) && fp_cuda_in_fours(D))
		return fp_cuda_map(be, Y.rows, Y.cols / 4, flat, [=] __device__(int64_t i, int64_t j) {
			float4 a = fp_cuda_load4(y + i * ys + 4 * j), b = fp_cuda_load4(t + i * ts + 4 * j);
			fp_cuda_store4(d + i * ds + 4 * j,
						   float4{scale * (a.x - b.x), scale * (a.y - b.y), scale * (a.z - b.z), scale * (a.w - b.w)});
		});
	return fp_cuda_map(be, Y.rows, Y.cols, flat, [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store(d + i * ds + j, scale * (fp_cuda_load(y + i * ys + j) - fp_cuda_load(t + i * ts + j)));
	});
}

fp_status fp_cuda_difference(fp_backend *be, float scale, fp_matrix Y, fp_matrix T, fp_matrix D, double *squares)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(Y) && fp_cuda_is_view(T, Y.dtype) && fp_cuda_is_f32_or_bf16(D));
	FP_REQUIRE(be, fp_cuda_same_shape(Y, T) && fp_cuda_same_shape(Y, D));
	FP_REQUIRE(be, Y.dtype == FP_F32 || D.dtype == FP_BF16);
	if (Y.dtype == FP_BF16)
		return difference_as<__nv_bfloat16, __nv_bfloat16>(be, scale, Y, T, D, squares);
	return D.dtype == FP_BF16 ? difference_as<float, __nv_bfloat16>(be, scale, Y, T, D, squares)
							  : difference_as<float, float>(be, scale, Y, T, D, squares);
}
