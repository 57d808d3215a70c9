/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_soft.cuh: what FISTA does with one entry. */
#ifndef FP_BACKEND_CUDA_SOFT_CUH
#define FP_BACKEND_CUDA_SOFT_CUH

struct fp_cuda_fista_rule {
	float step, threshold, momentum;
	bool literal;
};

/* Never −0.0: what the threshold swallows is written as +0.0. NaN fails the comparison and stays visible. */
__device__ static inline float fp_cuda_soft(float z, float threshold)
{
	float size = fabsf(z) - threshold;
	return size <= 0.0f ? 0.0f : copysignf(size, z);
}

/* Moves y and p on by one step; returns how far p went. */
__device__ static inline float fp_cuda_move(const fp_cuda_fista_rule &rule, float gradient, float *y, float *p)
{
	float next = fp_cuda_soft(*y - rule.step * gradient, rule.threshold), moved = next - *p;
	*y = next + rule.momentum * (rule.literal ? next - *y : moved);
	*p = next;
	return moved;
}

#endif
