/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_grid.cuh: a grid of quantised weights as kernels take it. */
#ifndef FP_BACKEND_CUDA_GRID_CUH
#define FP_BACKEND_CUDA_GRID_CUH

#include "backend/cuda/cuda_backend.cuh"

struct fp_cuda_grid {
	fp_grid_rule rule;
	float *scale, *zero; /* zero null: the format is symmetric */
	int64_t scale_stride, zero_stride, groups;
	__device__ float scale_at(int64_t row, int64_t group) const
	{
		return scale[row * scale_stride + group];
	}
	__device__ float zero_at(int64_t row, int64_t group) const
	{
		return zero ? zero[row * zero_stride + group] : 0.0f;
	}
	__device__ float nearest(int64_t row, int64_t group, float x) const
	{
		return fp_grid_nearest(rule, scale_at(row, group), zero_at(row, group), x);
	}
};

static inline fp_cuda_grid fp_cuda_grid_of(const fp_grid *grid)
{
	bool zeros = !fp_matrix_is_absent(grid->zero);
	return {fp_grid_rule_of(grid->format, grid->dtype),
			fp_cuda_floats(grid->scale),
			zeros ? fp_cuda_floats(grid->zero) : nullptr,
			grid->scale.stride,
			zeros ? grid->zero.stride : 0,
			grid->scale.cols};
}

#endif
