/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_elementwise.cu: operations that touch each entry once. */
#include "backend/cuda/cuda_activation.cuh"

fp_status fp_cuda_axpby(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(Y) && fp_cuda_same_shape(X, Y));
	const float *x = fp_cuda_floats(X);
	float *y = fp_cuda_floats(Y);
	int64_t xs = X.stride, ys = Y.stride;
	bool flat = fp_cuda_is_contiguous(X) && fp_cuda_is_contiguous(Y);
	if (beta == 0.0f) /* Y may be undefined: do not read it */
		return fp_cuda_map(be, X.rows, X.cols, flat,
						   [=] __device__(int64_t i, int64_t j) { y[i * ys + j] = alpha * x[i * xs + j]; });
	return fp_cuda_map(be, X.rows, X.cols, flat, [=] __device__(int64_t i, int64_t j) {
		y[i * ys + j] = alpha * x[i * xs + j] + beta * y[i * ys + j];
	});
}

template <typename T>
static fp_status combine_as(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y, fp_matrix Z, T *z)
{
	const float *x = fp_cuda_floats(X), *y = fp_cuda_floats(Y);
	int64_t xs = X.stride, ys = Y.stride, zs = Z.stride;
	bool flat = fp_cuda_is_contiguous(X) && fp_cuda_is_contiguous(Y) && fp_cuda_is_contiguous(Z);
	if (fp_cuda_in_fours(X) && fp_cuda_in_fours(Y) && fp_cuda_in_fours(Z))
		return fp_cuda_map(be, X.rows, X.cols / 4, flat, [=] __device__(int64_t i, int64_t j) {
			float4 a = fp_cuda_load4(x + i * xs + 4 * j), b = fp_cuda_load4(y + i * ys + 4 * j);
			fp_cuda_store4(z + i * zs + 4 * j, float4{alpha * a.x + beta * b.x, alpha * a.y + beta * b.y,
													  alpha * a.z + beta * b.z, alpha * a.w + beta * b.w});
		});
	return fp_cuda_map(be, X.rows, X.cols, flat, [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store(z + i * zs + j, alpha * x[i * xs + j] + beta * y[i * ys + j]);
	});
}

fp_status fp_cuda_combine(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y, fp_matrix Z)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(Y) && fp_cuda_is_weight(Z));
	FP_REQUIRE(be, fp_cuda_same_shape(X, Y) && fp_cuda_same_shape(X, Z));
	return fp_cuda_by_weight_type(Z, [&](auto *z) { return combine_as(be, alpha, X, beta, Y, Z, z); });
}

fp_status fp_cuda_row_axpby(fp_backend *be, fp_matrix a, fp_matrix X, fp_matrix b, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(Y) && fp_cuda_same_shape(X, Y));
	FP_REQUIRE(be, fp_cuda_is_vector(a, X.rows) && fp_cuda_is_vector(b, X.rows));
	const float *x = fp_cuda_floats(X), *alpha = fp_cuda_floats(a), *beta = fp_cuda_floats(b);
	float *y = fp_cuda_floats(Y);
	int64_t xs = X.stride, ys = Y.stride;
	return fp_cuda_map(be, X.rows, X.cols, false, [=] __device__(int64_t i, int64_t j) {
		float kept = beta[i] == 0.0f ? 0.0f : beta[i] * y[i * ys + j];
		y[i * ys + j] = alpha[i] * x[i * xs + j] + kept;
	});
}

fp_status fp_cuda_scale_columns(fp_backend *be, fp_matrix s, fp_matrix X, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(Y) && fp_cuda_same_shape(X, Y));
	FP_REQUIRE(be, fp_cuda_is_vector(s, X.cols));
	const float *x = fp_cuda_floats(X), *factor = fp_cuda_floats(s);
	float *y = fp_cuda_floats(Y);
	int64_t xs = X.stride, ys = Y.stride;
	return fp_cuda_map(be, X.rows, X.cols, false,
					   [=] __device__(int64_t i, int64_t j) { y[i * ys + j] = factor[j] * x[i * xs + j]; });
}

/* Y[i,j] ← X[order[i],j] with `rows`, else X[i,order[j]] */
static fp_status permute(fp_backend *be, const int32_t *order, bool rows, fp_matrix X, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(Y) && fp_cuda_same_shape(X, Y));
	cudaStream_t stream = fp_cuda_stream(be);
	int64_t count = rows ? X.rows : X.cols;
	fp_cuda_scratch space;
	FP_OR_RETURN(space.take(be, count * (int64_t)sizeof *order));
	FP_CUDA(be,
			cudaMemcpyAsync(space.as<int32_t>(), order, (size_t)count * sizeof *order, cudaMemcpyHostToDevice, stream));
	const int32_t *from = space.as<int32_t>();
	const float *x = fp_cuda_floats(X);
	float *y = fp_cuda_floats(Y);
	int64_t xs = X.stride, ys = Y.stride;
	FP_OR_RETURN(fp_cuda_map(be, X.rows, X.cols, false, [=] __device__(int64_t i, int64_t j) {
		y[i * ys + j] = rows ? x[from[i] * xs + j] : x[i * xs + from[j]];
	}));
	FP_CUDA(be, cudaStreamSynchronize(stream)); /* the caller may change `order` now */
	return FP_OK;
}

fp_status fp_cuda_permute_rows(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y)
{
	return permute(be, order, true, X, Y);
}

fp_status fp_cuda_permute_columns(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y)
{
	return permute(be, order, false, X, Y);
}

fp_status fp_cuda_diagonal(fp_backend *be, fp_matrix A, fp_matrix out)
{
	FP_REQUIRE(be, fp_cuda_is_f32(A) && A.rows == A.cols && fp_cuda_is_vector(out, A.rows));
	const float *a = fp_cuda_floats(A);
	float *d = fp_cuda_floats(out);
	int64_t stride = A.stride;
	return fp_cuda_map(be, 1, A.rows, true, [=] __device__(int64_t, int64_t i) { d[i] = a[i * stride + i]; });
}

fp_status fp_cuda_add_diagonal(fp_backend *be, fp_matrix A, fp_matrix d)
{
	FP_REQUIRE(be, fp_cuda_is_f32(A) && A.rows == A.cols && fp_cuda_is_vector(d, A.rows));
	float *a = fp_cuda_floats(A);
	const float *added = fp_cuda_floats(d);
	int64_t stride = A.stride;
	return fp_cuda_map(be, 1, A.rows, true, [=] __device__(int64_t, int64_t i) { a[i * stride + i] += added[i]; });
}

template <typename T> static fp_status add_bias_as(fp_backend *be, const float *b, fp_matrix X, T *x)
{
	int64_t stride = X.stride;
	return fp_cuda_map(be, X.rows, X.cols, false, [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store(x + i * stride + j, fp_cuda_load(x + i * stride + j) + b[j]);
	});
}

fp_status fp_cuda_add_bias(fp_backend *be, fp_matrix bias, fp_matrix X)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && fp_cuda_is_vector(bias, X.cols));
	return fp_cuda_by_type(X, [&](auto *x) { return add_bias_as(be, fp_cuda_floats(bias), X, x); });
}

fp_status fp_cuda_mask_nonzero(fp_backend *be, fp_matrix X, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_u8(mask) && fp_cuda_same_shape(X, mask));
	uint8_t *m = fp_cuda_bytes(mask);
	const float *x = fp_cuda_floats(X);
	int64_t xs = X.stride, ms = mask.stride;
	return fp_cuda_map(be, X.rows, X.cols, fp_cuda_is_contiguous(X) && fp_cuda_is_contiguous(mask),
					   [=] __device__(int64_t i, int64_t j) { m[i * ms + j] = x[i * xs + j] != 0.0f; });
}

fp_status fp_cuda_apply_mask(fp_backend *be, fp_matrix mask, fp_matrix X)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_u8(mask) && fp_cuda_same_shape(X, mask));
	const uint8_t *m = fp_cuda_bytes(mask);
	float *x = fp_cuda_floats(X);
	int64_t xs = X.stride, ms = mask.stride;
	return fp_cuda_map(be, X.rows, X.cols, fp_cuda_is_contiguous(X) && fp_cuda_is_contiguous(mask),
					   [=] __device__(int64_t i, int64_t j) {
						   if (!m[i * ms + j])
							   x[i * xs + j] = 0.0f;
					   });
}

/* --- activations ------------------------------------------------------------------------------------------------- */

/* Without U: f(G) alone. */
template <fp_activation kind, typename In, typename T>
static fp_status activate_as(fp_backend *be, fp_matrix G, fp_matrix U, fp_matrix Y, const In *g, T *y)
{
	const In *u = fp_matrix_is_absent(U) ? nullptr : fp_cuda_at<In>(U);
	int64_t gs = G.stride, us = U.stride, ys = Y.stride;
	bool flat = fp_cuda_is_contiguous(G) && fp_cuda_is_contiguous(Y) && (!u || fp_cuda_is_contiguous(U));
	if (!u)
		return fp_cuda_map(be, G.rows, G.cols, flat, [=] __device__(int64_t i, int64_t j) {
			fp_cuda_store(y + i * ys + j, activation<kind>(fp_cuda_load(g + i * gs + j)));
		});
	if (fp_cuda_in_fours(G) && fp_cuda_in_fours(U) && fp_cuda_in_fours(Y))
		return fp_cuda_map(be, G.rows, G.cols / 4, flat, [=] __device__(int64_t i, int64_t j) {
			float4 a = fp_cuda_load4(g + i * gs + 4 * j), b = fp_cuda_load4(u + i * us + 4 * j);
			fp_cuda_store4(y + i * ys + 4 * j, float4{activation<kind>(a.x) * b.x, activation<kind>(a.y) * b.y,
													  activation<kind>(a.z) * b.z, activation<kind>(a.w) * b.w});
		});
	return fp_cuda_map(be, G.rows, G.cols, flat, [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store(y + i * ys + j, activation<kind>(fp_cuda_load(g + i * gs + j)) * fp_cuda_load(u + i * us + j));
	});
}

static fp_status activate_any(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y)
{
	return fp_cuda_by_activation(be, kind, [&](auto k) {
		if (G.dtype == FP_BF16)
			return activate_as<decltype(k)::value>(be, G, U, Y, fp_cuda_at<__nv_bfloat16>(G),
												   fp_cuda_at<__nv_bfloat16>(Y));
		return fp_cuda_by_type(Y, [&](auto *y) {
			return activate_as<decltype(k)::value>(be, G, U, Y, (const float *)fp_cuda_floats(G), y);
		});
	});
}

fp_status fp_cuda_activate(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_narrows(X, Y) && fp_cuda_same_shape(X, Y));
	return activate_any(be, kind, X, fp_matrix{}, Y);
}

fp_status fp_cuda_activate_gated(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_narrows(G, Y) && fp_cuda_is_view(U, G.dtype));
	FP_REQUIRE(be, fp_cuda_same_shape(G, U) && fp_cuda_same_shape(G, Y));
	return activate_any(be, kind, G, U, Y);
}

/* One row of the grid per token; the pairs of a token side by side. */
template <typename T>
__global__ static void rotate_kernel(const float *cosine, int64_t cosine_stride, const float *sine, int64_t sine_stride,
									 int64_t length, int64_t half, int64_t pairs, int64_t width, bool neighbours, T *x,
									 int64_t stride, int64_t tokens)
{
	for (int64_t t = blockIdx.y; t < tokens; t += gridDim.y) {
		const float *c = cosine + t % length * cosine_stride, *s = sine + t % length * sine_stride;
		for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < pairs;
			 p += (int64_t)gridDim.x * blockDim.x) {
			int64_t head = p / half, i = p - head * half;
			T *a = x + t * stride + head * width + (neighbours ? 2 * i : i), *b = a + (neighbours ? 1 : half);
			float first = fp_cuda_load(a), second = fp_cuda_load(b);
			fp_cuda_store(a, first * c[i] - second * s[i]);
			fp_cuda_store(b, second * c[i] + first * s[i]);
		}
	}
}

/* The same for four pairs at a time; `half` and `pairs` in fours. */
template <typename T>
__global__ static void rotate_fours_kernel(const float *cosine, int64_t cosine_stride, const float *sine,
										   int64_t sine_stride, int64_t length, int half, int pairs, T *x,
										   int64_t stride, int64_t tokens)
{
	for (int64_t t = blockIdx.y; t < tokens; t += gridDim.y) {
		const float *cs = cosine + t % length * cosine_stride, *sn = sine + t % length * sine_stride;
		for (int p = (int)(blockIdx.x * blockDim.x + threadIdx.x); p < pairs; p += (int)(gridDim.x * blockDim.x)) {
			int head = p / half, i = p - head * half;
			T *at = x + t * stride + 4 * (head * 2 * half + i), *after = at + 4 * half;
			float4 a = fp_cuda_load4(at), b = fp_cuda_load4(after);
			float4 c = fp_cuda_load4(cs + 4 * i), s = fp_cuda_load4(sn + 4 * i);
			fp_cuda_store4(
				at, float4{a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y, a.z * c.z - b.z * s.z, a.w * c.w - b.w * s.w});
			fp_cuda_store4(after, float4{b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y, b.z * c.z + a.z * s.z,
										 b.w * c.w + a.w * s.w});
		}
	}
}

fp_status fp_cuda_rotate(fp_backend *be, fp_pairing pairing, fp_matrix cosine, fp_matrix sine, int64_t heads,
						 fp_matrix X)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && fp_cuda_is_f32(cosine) && fp_cuda_is_f32(sine));
	FP_REQUIRE(be, fp_cuda_same_shape(cosine, sine) && heads > 0 && X.cols % heads == 0);
	FP_REQUIRE(be, 2 * cosine.cols <= X.cols / heads);
	FP_REQUIRE(be, X.rows == 0 || cosine.rows > 0);
	int64_t pairs = heads * cosine.cols, width = X.cols / heads;
	if (X.rows == 0 || pairs == 0)
		return FP_OK;
	bool whole = pairing == FP_PAIR_HALVES && width == 2 * cosine.cols;
	bool fours =
		whole && fp_cuda_in_fours(cosine) && fp_cuda_in_fours(sine) && fp_cuda_in_fours(X) && pairs <= INT32_MAX / 2;
	int64_t wide = ((fours ? pairs / 4 : pairs) + 255) / 256;
	dim3 grid((unsigned)fp_smaller(wide, 1024), (unsigned)fp_smaller(X.rows, 65535));
	return fp_cuda_by_type(X, [&](auto *x) {
		if (fours)
			rotate_fours_kernel<<<grid, 256, 0, fp_cuda_stream(be)>>>(
				fp_cuda_floats(cosine), cosine.stride, fp_cuda_floats(sine), sine.stride, cosine.rows,
				(int)(cosine.cols / 4), (int)(pairs / 4), x, X.stride, X.rows);
		else
			rotate_kernel<<<grid, 256, 0, fp_cuda_stream(be)>>>(
				fp_cuda_floats(cosine), cosine.stride, fp_cuda_floats(sine), sine.stride, cosine.rows, cosine.cols,
				pairs, width, pairing == FP_PAIR_NEIGHBOURS, x, X.stride, X.rows);
		FP_LAUNCHED(be);
		return FP_OK;
	});
}

fp_status fp_cuda_soft_cap(fp_backend *be, float cap, fp_matrix X)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && cap > 0);
	float *x = fp_cuda_floats(X);
	int64_t stride = X.stride;
	return fp_cuda_map(be, X.rows, X.cols, fp_cuda_is_contiguous(X), [=] __device__(int64_t i, int64_t j) {
		x[i * stride + j] = cap * tanhf(x[i * stride + j] / cap);
	});
}
