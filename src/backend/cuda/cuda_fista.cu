/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_fista.cu: the FISTA step in one pass.
 *
 *     P₊ = soft(Y − step·G, threshold)
 *     Y  ← P₊ + momentum·(P₊ − P), with FP_MOMENTUM_LITERAL Y in place of P
 *     P  ← P₊
 *
 * The step is limited by memory bandwidth, so it processes four entries at a time where alignment allows.
 * cuda_delta.cu has the step that stores Y − W instead of Y.
 */
#include "backend/cuda/cuda_soft.cuh"
#include "backend/cuda/cuda_sums.cuh"

struct fista_numbers {
	const float *g;
	float *y, *p;
	int64_t gs, ys, ps;
	fp_cuda_fista_rule rule;
};

/* One entry; returns (P₊ − P)². */
__device__ static inline double step_one(const fista_numbers &n, int64_t i, int64_t j)
{
	float *y = n.y + i * n.ys + j, *p = n.p + i * n.ps + j;
	double moved = (double)fp_cuda_fista_update(n.rule, n.g[i * n.gs + j], y, p);
	return moved * moved;
}

/* Entries 4j … 4j + 3; returns Σ (P₊ − P)². */
__device__ static inline double step_four(const fista_numbers &n, int64_t i, int64_t j)
{
	float4 g = fp_cuda_load4(n.g + i * n.gs + 4 * j);
	float4 y = ((const float4 *)(n.y + i * n.ys))[j], p = ((const float4 *)(n.p + i * n.ps))[j];
	double a = (double)fp_cuda_fista_update(n.rule, g.x, &y.x, &p.x),
		   b = (double)fp_cuda_fista_update(n.rule, g.y, &y.y, &p.y);
	double c = (double)fp_cuda_fista_update(n.rule, g.z, &y.z, &p.z),
		   d = (double)fp_cuda_fista_update(n.rule, g.w, &y.w, &p.w);
	((float4 *)(n.y + i * n.ys))[j] = y;
	((float4 *)(n.p + i * n.ps))[j] = p;
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
	fista_numbers n = {fp_cuda_floats(G),
					   fp_cuda_floats(Y),
					   fp_cuda_floats(P),
					   G.stride,
					   Y.stride,
					   P.stride,
					   {step, threshold, momentum, rule == FP_MOMENTUM_LITERAL}};
	return step_all(be, n, G, fp_cuda_in_fours(G) && fp_cuda_in_fours(Y) && fp_cuda_in_fours(P),
					fp_cuda_is_flat(G) && fp_cuda_is_flat(Y) && fp_cuda_is_flat(P), change);
}
