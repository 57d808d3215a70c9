/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_cg.cu: a step of conjugate gradients on all rows of a matrix, except for the product.
 *
 * The step is limited by memory bandwidth. A block passes over its row three times: for ⟨p,q⟩, for V, r and ⟨r,z⟩, and
 * for p. So few blocks run at once that the row is still cached when it is read again. Sums are in double, in a fixed
 * order.
 */
#include "backend/cuda/cuda_backend.cuh"

enum { THREADS = 512, WIDE = 8192 };

struct cg_rows {
	int64_t rows, cols;
	const uint8_t *mask;
	const float *inverse, *q; /* q may be NULL: the first direction */
	float *r, *p, *v, *rz, *enough, *factor;
	__half *narrow; /* may be NULL, and factor with it */
	int64_t mask_stride, q_stride, r_stride, p_stride, v_stride, narrow_stride;
	float longest;
};

template <int N> struct alignas(4 * N) piece {
	float at[N];
};

template <int N> __device__ static inline piece<N> read(const float *x)
{
	piece<N> out;
	if constexpr (N == 4)
		*(float4 *)out.at = fp_cuda_load4(x);
	else
		out.at[0] = *x;
	return out;
}

template <int N, typename T> __device__ static inline void write(T *x, const piece<N> &in)
{
	if constexpr (N == 4)
		fp_cuda_store4(x, *(const float4 *)in.at);
	else
		fp_cuda_store(x, in.at[0]);
}

/* q of one piece: zero outside the mask, with the row's factor removed. */
template <int N> __device__ static inline piece<N> product(const cg_rows &c, int64_t row, int64_t j, float unscale)
{
	piece<N> q = read<N>(c.q + row * c.q_stride + j);
	const uint8_t *mask = c.mask + row * c.mask_stride + j;
	unsigned bytes = N == 4 ? *(const unsigned *)mask : *mask;
#pragma unroll
	for (int e = 0; e < N; e++)
		q.at[e] = bytes >> (8 * e) & 0xffU ? q.at[e] * unscale : 0.0f;
	return q;
}

/* Returns ⟨p,q⟩ in every thread. */
template <int N> __device__ static inline float curvature(const cg_rows &c, int64_t row, float unscale, double *shared)
{
	double sum = 0;
	for (int64_t j = N * threadIdx.x; j < c.cols; j += N * THREADS) {
		piece<N> p = read<N>(c.p + row * c.p_stride + j), q = product<N>(c, row, j, unscale);
#pragma unroll
		for (int e = 0; e < N; e++)
			sum += (double)p.at[e] * (double)q.at[e];
	}
	return (float)fp_cuda_block_sum(sum, shared);
}

/* V ← V + step·p, r ← r − step·q, unless q is absent. Returns ⟨r,z⟩ in every thread. */
template <int N>
__device__ static inline float advance(const cg_rows &c, int64_t row, float step, float unscale, double *shared)
{
	double sum = 0;
	for (int64_t j = N * threadIdx.x; j < c.cols; j += N * THREADS) {
		piece<N> r = read<N>(c.r + row * c.r_stride + j), inverse = read<N>(c.inverse + j);
		if (c.q) {
			piece<N> p = read<N>(c.p + row * c.p_stride + j), v = read<N>(c.v + row * c.v_stride + j);
			piece<N> q = product<N>(c, row, j, unscale);
#pragma unroll
			for (int e = 0; e < N; e++) {
				v.at[e] += step * p.at[e];
				r.at[e] -= step * q.at[e];
			}
			write<N>(c.v + row * c.v_stride + j, v);
			write<N>(c.r + row * c.r_stride + j, r);
		}
#pragma unroll
		for (int e = 0; e < N; e++)
			sum += (double)r.at[e] * (double)(r.at[e] * inverse.at[e]);
	}
	return (float)fp_cuda_block_sum(sum, shared);
}

/* p ← z + βp, and narrow ← factor·p */
template <int N> __device__ static inline void update_direction(const cg_rows &c, int64_t row, float beta, float factor)
{
	for (int64_t j = N * threadIdx.x; j < c.cols; j += N * THREADS) {
		piece<N> r = read<N>(c.r + row * c.r_stride + j), inverse = read<N>(c.inverse + j), p = {};
		if (c.q)
			p = read<N>(c.p + row * c.p_stride + j);
#pragma unroll
		for (int e = 0; e < N; e++)
			p.at[e] = r.at[e] * inverse.at[e] + beta * p.at[e];
		write<N>(c.p + row * c.p_stride + j, p);
		if (!c.narrow)
			continue;
#pragma unroll
		for (int e = 0; e < N; e++)
			p.at[e] = fp_cuda_clamp(c.narrow, factor * p.at[e]);
		write<N>(c.narrow + row * c.narrow_stride + j, p);
	}
}

/* The power of two that scales a row with this ⟨r,z⟩ to a root mean square of about 1. */
__device__ static inline float factor_for(float rz, int64_t cols)
{
	int exponent = 0;
	if (!(rz > 0) || isinf(rz))
		return 1.0f;
	(void)frexpf(sqrtf(rz / (float)cols), &exponent);
	return ldexpf(1.0f, -exponent);
}

template <int N> __global__ static void cg_kernel(cg_rows c)
{
	__shared__ double shared[33];
	for (int64_t row = blockIdx.x; row < c.rows; row += gridDim.x) {
		float rz = c.rz[row], enough = c.enough[row], step = 0;
		float unscale = c.q && c.narrow ? 1.0f / c.factor[row] : 1.0f;
		if (c.q && isinf(enough))
			continue;
		if (c.q) {
			float pq = curvature<N>(c, row, unscale, shared);
			step = pq > 0 && rz > enough ? rz / pq : 0.0f;
			if (step == 0.0f || step > c.longest) {
				if (threadIdx.x == 0)
					c.enough[row] = INFINITY;
				continue;
			}
		}
		float next = advance<N>(c, row, step, unscale, shared), factor = factor_for(next, c.cols);
		update_direction<N>(c, row, c.q && rz > 0 ? next / rz : 0.0f, factor);
		if (threadIdx.x == 0) {
			c.rz[row] = next;
			if (c.narrow)
				c.factor[row] = factor;
		}
	}
}

static fp_status check(fp_backend *be, const fp_cg *cg, fp_matrix q)
{
	fp_matrix r = cg->r, p = cg->p, V = cg->V, narrow = cg->narrow;
	FP_REQUIRE(be, fp_cuda_is_f32(r) && fp_cuda_is_f32(p) && fp_cuda_is_f32(V) && fp_cuda_is_u8(cg->mask));
	FP_REQUIRE(be, fp_cuda_same_shape(r, p) && fp_cuda_same_shape(r, V) && fp_cuda_same_shape(r, cg->mask));
	FP_REQUIRE(be, fp_matrix_is_absent(q) || (fp_cuda_is_f32(q) && fp_cuda_same_shape(r, q)));
	FP_REQUIRE(be, fp_cuda_is_vector(cg->inverse, r.cols) && fp_cuda_is_vector(cg->rz, r.rows));
	FP_REQUIRE(be, fp_cuda_is_vector(cg->enough, r.rows));
	FP_REQUIRE(be, fp_matrix_is_absent(narrow) || (fp_cuda_is_view(narrow, FP_F16) && fp_cuda_same_shape(r, narrow) &&
												   fp_cuda_is_vector(cg->factor, r.rows)));
	return FP_OK;
}

fp_status fp_cuda_cg_step(fp_backend *be, const fp_cg *cg, fp_matrix q)
{
	FP_OR_RETURN(check(be, cg, q));
	cg_rows c = {};
	c.rows = cg->r.rows;
	c.cols = cg->r.cols;
	c.mask = fp_cuda_bytes(cg->mask);
	c.inverse = fp_cuda_floats(cg->inverse);
	c.q = fp_matrix_is_absent(q) ? nullptr : fp_cuda_floats(q);
	c.r = fp_cuda_floats(cg->r);
	c.p = fp_cuda_floats(cg->p);
	c.v = fp_cuda_floats(cg->V);
	c.rz = fp_cuda_floats(cg->rz);
	c.enough = fp_cuda_floats(cg->enough);
	if (!fp_matrix_is_absent(cg->narrow)) {
		c.narrow = fp_cuda_at<__half>(cg->narrow);
		c.factor = fp_cuda_floats(cg->factor);
	}
	c.mask_stride = cg->mask.stride;
	c.q_stride = q.stride;
	c.r_stride = cg->r.stride;
	c.p_stride = cg->p.stride;
	c.v_stride = cg->V.stride;
	c.narrow_stride = cg->narrow.stride;
	c.longest = cg->longest;
	if (c.rows == 0)
		return FP_OK;
	const fp_matrix all[] = {cg->mask, cg->inverse, q, cg->r, cg->p, cg->V, cg->narrow};
	bool fours = true;
	for (const fp_matrix &m : all)
		fours = fours && fp_cuda_in_fours(m);
	int64_t most = (int64_t)fp_cuda_state_of(be)->processors * (c.cols > WIDE ? 2 : 4);
	unsigned blocks = (unsigned)fp_smaller(c.rows, most);
	if (fours)
		cg_kernel<4><<<blocks, THREADS, 0, fp_cuda_stream(be)>>>(c);
	else
		cg_kernel<1><<<blocks, THREADS, 0, fp_cuda_stream(be)>>>(c);
	FP_LAUNCHED(be);
	return FP_OK;
}
