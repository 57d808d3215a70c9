/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_soft.cuh: soft thresholding, and the FISTA step of one entry. */
#ifndef FP_BACKEND_CUDA_SOFT_CUH
#define FP_BACKEND_CUDA_SOFT_CUH

struct fp_cuda_fista_rule {
	float step, threshold, momentum;
	bool literal;
};

/* Entries within the threshold become +0.0, never −0.0. NaN fails the comparison and stays NaN. */
__device__ static inline float fp_cuda_soft(float z, float threshold)
{
	float size = fabsf(z) - threshold;
	return size <= 0.0f ? 0.0f : copysignf(size, z);
}

/* Updates y and p by one step; returns the change of p. */
__device__ static inline float fp_cuda_fista_update(const fp_cuda_fista_rule &rule, float gradient, float *y, float *p)
{
	float next = fp_cuda_soft(*y - rule.step * gradient, rule.threshold), moved = next - *p;
	*y = next + rule.momentum * (rule.literal ? next - *y : moved);
	*p = next;
	return moved;
}

#endif
