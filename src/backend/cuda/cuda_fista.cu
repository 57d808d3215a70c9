/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_fista.cu: the FISTA step, one pass over everything it touches.
 *
 *   P₊ = soft(Y − step·(G − R), threshold);   Y ← P₊ + momentum·(P₊ − P or Y);   P ← P₊;   D ← Y − W in bf16
 * R, W and D belong to fista_step_near() alone. The step is bound by memory: where all rows are whole fours, four
 * entries go at a time.
 */
#include "backend/cuda/cuda_sums.cuh"

struct fista_numbers {
	const float *g, *r, *w;   /* r may be NULL; w and d come together */
	const __nv_bfloat16 *g16; /* in place of g */
	float *y, *p;
	__nv_bfloat16 *d;
	int64_t gs, rs, ws, ys, ps, ds;
	float step, threshold, momentum;
	bool literal;
	bool read_p, write_p; /* P travels only where somebody wants it: the literal rule does not need it */
};

/* Never −0.0: what the threshold swallows is written as +0.0. NaN fails the comparison and stays visible. */
__device__ static inline float soft(float z, float threshold)
{
	float size = fabsf(z) - threshold;
	return size <= 0.0f ? 0.0f : copysignf(size, z);
}

/* Moves y and p on by one step; returns how far p went. */
__device__ static inline float move(const fista_numbers &n, float gradient, float *y, float *p)
{
	float next = soft(*y - n.step * gradient, n.threshold), moved = next - *p;
	*y = next + n.momentum * (n.literal ? next - *y : moved);
	*p = next;
	return moved;
}

/* Σ (P₊ − P)² of one entry. */
__device__ static inline double step_one(const fista_numbers &n, int64_t i, int64_t j)
{
	float y = n.y[i * n.ys + j], p = n.read_p ? n.p[i * n.ps + j] : 0.0f;
	float g = n.g16 ? __bfloat162float(n.g16[i * n.gs + j]) : n.g[i * n.gs + j];
	double moved = (double)move(n, n.r ? g - n.r[i * n.rs + j] : g, &y, &p);
	n.y[i * n.ys + j] = y;
	if (n.write_p)
		n.p[i * n.ps + j] = p;
	if (n.d)
		n.d[i * n.ds + j] = __float2bfloat16_rn(y - n.w[i * n.ws + j]);
	return moved * moved;
}

/* The same for entries 4j … 4j + 3. */
__device__ static inline double step_four(const fista_numbers &n, int64_t i, int64_t j)
{
	float4 g = n.g16 ? fp_cuda_load4(n.g16 + i * n.gs + 4 * j) : fp_cuda_load4(n.g + i * n.gs + 4 * j);
	float4 y = ((const float4 *)(n.y + i * n.ys))[j], p = {0, 0, 0, 0};
	if (n.read_p)
		p = ((const float4 *)(n.p + i * n.ps))[j];
	float4 w = n.d ? ((const float4 *)(n.w + i * n.ws))[j] : float4{0, 0, 0, 0};
	if (n.r) {
		float4 r = ((const float4 *)(n.r + i * n.rs))[j];
		g = float4{g.x - r.x, g.y - r.y, g.z - r.z, g.w - r.w};
	}
	double a = (double)move(n, g.x, &y.x, &p.x), b = (double)move(n, g.y, &y.y, &p.y);
	double c = (double)move(n, g.z, &y.z, &p.z), d = (double)move(n, g.w, &y.w, &p.w);
	((float4 *)(n.y + i * n.ys))[j] = y;
	if (n.write_p)
		((float4 *)(n.p + i * n.ps))[j] = p;
	if (n.d) {
		__nv_bfloat162 low = __floats2bfloat162_rn(y.x - w.x, y.y - w.y);
		__nv_bfloat162 high = __floats2bfloat162_rn(y.z - w.z, y.w - w.w);
		((uint2 *)(n.d + i * n.ds))[j] = uint2{*(const unsigned *)&low, *(const unsigned *)&high};
	}
	return a * a + b * b + c * c + d * d;
}

static fp_status step_all(fp_backend *be, const fista_numbers &n, fp_matrix G, bool fours, bool flat, double *change)
{
	int64_t cols = fours ? G.cols / 4 : G.cols;
	if (!change && fours)
		return fp_cuda_map(be, G.rows, cols, flat, [=] __device__(int64_t i, int64_t j) { step_four(n, i, j); });
	if (!change)
		return fp_cuda_map(be, G.rows, cols, flat, [=] __device__(int64_t i, int64_t j) { step_one(n, i, j); });
	if (fours)
		return sum_of(be, span_of(G.rows, cols, flat), change,
					  [=] __device__(int64_t i, int64_t j) { return step_four(n, i, j); });
	return sum_of(be, span_of(G.rows, cols, flat), change,
				  [=] __device__(int64_t i, int64_t j) { return step_one(n, i, j); });
}

fp_status fp_cuda_fista_step(fp_backend *be, fp_momentum rule, float step, float threshold, float momentum, fp_matrix G,
							 fp_matrix Y, fp_matrix P, double *change)
{
	FP_REQUIRE(be, fp_cuda_is_f32(G) && fp_cuda_is_f32(Y) && fp_cuda_is_f32(P));
	FP_REQUIRE(be, fp_cuda_same_shape(G, Y) && fp_cuda_same_shape(G, P));
	fista_numbers n = {};
	n.g = fp_cuda_floats(G);
	n.y = fp_cuda_floats(Y);
	n.p = fp_cuda_floats(P);
	n.gs = G.stride;
	n.ys = Y.stride;
	n.ps = P.stride;
	n.step = step;
	n.threshold = threshold;
	n.momentum = momentum;
	n.literal = rule == FP_MOMENTUM_LITERAL;
	n.read_p = n.write_p = true;
	return step_all(be, n, G, fp_cuda_in_fours(G) && fp_cuda_in_fours(Y) && fp_cuda_in_fours(P),
					fp_cuda_is_flat(G) && fp_cuda_is_flat(Y) && fp_cuda_is_flat(P), change);
}

fp_status fp_cuda_fista_step_near(fp_backend *be, const fp_fista_near *near, fp_matrix G, fp_matrix Y, fp_matrix P,
								  double *change)
{
	fp_matrix R = near->R, W = near->W, D = near->D;
	FP_REQUIRE(be, fp_cuda_is_view(G, G.dtype) && (G.dtype == FP_F32 || G.dtype == FP_BF16));
	FP_REQUIRE(be, fp_cuda_is_f32(Y) && fp_cuda_is_f32(P) && fp_cuda_is_f32(W));
	FP_REQUIRE(be, fp_cuda_is_view(D, FP_BF16) && (fp_matrix_is_absent(R) || fp_cuda_is_f32(R)));
	FP_REQUIRE(be, fp_cuda_same_shape(G, Y) && fp_cuda_same_shape(G, P) && fp_cuda_same_shape(G, W));
	FP_REQUIRE(be, fp_cuda_same_shape(G, D) && (fp_matrix_is_absent(R) || fp_cuda_same_shape(G, R)));
	fista_numbers n = {};
	n.g = G.dtype == FP_F32 ? fp_cuda_floats(G) : nullptr;
	n.g16 = G.dtype == FP_BF16 ? fp_cuda_at<__nv_bfloat16>(G) : nullptr;
	n.r = fp_matrix_is_absent(R) ? nullptr : fp_cuda_floats(R);
	n.w = fp_cuda_floats(W);
	n.y = fp_cuda_floats(Y);
	n.p = fp_cuda_floats(P);
	n.d = fp_cuda_at<__nv_bfloat16>(D);
	n.gs = G.stride;
	n.rs = R.stride;
	n.ws = W.stride;
	n.ys = Y.stride;
	n.ps = P.stride;
	n.ds = D.stride;
	n.step = near->step;
	n.threshold = near->threshold;
	n.momentum = near->momentum;
	n.literal = near->rule == FP_MOMENTUM_LITERAL;
	n.read_p = !n.literal || change;
	n.write_p = !near->skip_P;
	FP_REQUIRE(be, n.literal || !near->skip_P);
	bool fours = fp_cuda_in_fours(G) && fp_cuda_in_fours(R) && fp_cuda_in_fours(W) && fp_cuda_in_fours(Y) &&
				 fp_cuda_in_fours(P) && fp_cuda_in_fours(D);
	bool flat = fp_cuda_is_flat(G) && fp_cuda_is_flat(R) && fp_cuda_is_flat(W) && fp_cuda_is_flat(Y) &&
				fp_cuda_is_flat(P) && fp_cuda_is_flat(D);
	return step_all(be, n, G, fours, flat, change);
}
