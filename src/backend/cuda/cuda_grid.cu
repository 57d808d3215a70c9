/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_grid.cu: quantised weights. A warp takes a row, or one group of a row; no sum crosses rows. Coordinate descent
 * over a block keeps the row's weights and gradients in registers, two columns to a lane, and the block's square part of
 * A in shared memory.
 */
#include "backend/cuda/cuda_grid.cuh"

enum { WARPS = 8, LANES = 32, PER_LANE = FP_GRID_BLOCK / LANES };

static bool has_views(const fp_grid *grid, fp_matrix V)
{
	return fp_grid_fits(grid, V) && fp_cuda_is_f32(grid->scale) &&
		   (fp_matrix_is_absent(grid->zero) || fp_cuda_is_f32(grid->zero));
}

static unsigned blocks_for(int64_t warps)
{
	return (unsigned)fp_smaller((warps + WARPS - 1) / WARPS, 1 << 20);
}

/* --- fit --------------------------------------------------------------------------------------------------------- */

struct fit_input {
	const float *weight, *v;
	int64_t rows, size, v_stride;
	int count;
	float step;
};

__device__ static double rounding_error(const fp_grid_rule &rule, float scale, float zero, const float *weight,
										const float *v, int64_t size)
{
	double sum = 0;
	for (int64_t j = threadIdx.x % LANES; j < size; j += LANES) {
		double error = (double)fp_grid_nearest(rule, scale, zero, v[j]) - (double)v[j];
		sum += (double)weight[j] * error * error;
	}
	return fp_cuda_warp_sum(sum);
}

__global__ static void fit_kernel(fp_cuda_grid grid, fit_input in)
{
	int lane = threadIdx.x % LANES;
	for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; at < in.rows * grid.groups;
		 at += (int64_t)gridDim.x * WARPS) {
		int64_t row = at / grid.groups, group = at % grid.groups;
		const float *v = in.v + row * in.v_stride + group * in.size, *weight = in.weight + group * in.size;
		float low = 0.0f, high = 0.0f, best_scale = 0.0f, best_zero = 0.0f;
		double least = INFINITY;
		for (int64_t j = lane; j < in.size; j += LANES) {
			low = fminf(low, v[j]);
			high = fmaxf(high, v[j]);
		}
		for (int offset = LANES / 2; offset > 0; offset /= 2) {
			low = fminf(low, __shfl_xor_sync(0xffffffffU, low, offset));
			high = fmaxf(high, __shfl_xor_sync(0xffffffffU, high, offset));
		}
		for (int i = 0; i < in.count; i++) {
			float scale, zero;
			fp_grid_scale_of(grid.rule, !grid.zero, low, high, 1.0f - (float)i * in.step, &scale, &zero);
			double error = in.count > 1 ? rounding_error(grid.rule, scale, zero, weight, v, in.size) : 0;
			if (error < least) {
				least = error;
				best_scale = scale;
				best_zero = zero;
			}
		}
		if (lane == 0) {
			grid.scale[row * grid.scale_stride + group] = best_scale;
			if (grid.zero)
				grid.zero[row * grid.zero_stride + group] = best_zero;
		}
	}
}

fp_status fp_cuda_grid_fit(fp_backend *be, fp_matrix weight, int count, float step, fp_matrix V, const fp_grid *grid)
{
	FP_REQUIRE(be, has_views(grid, V) && fp_cuda_is_f32(V) && fp_cuda_is_vector(weight, V.cols) && count > 0);
	if (V.rows == 0)
		return FP_OK;
	fit_input in = {
		fp_cuda_floats(weight), fp_cuda_floats(V), V.rows, V.cols / grid->scale.cols, V.stride, count, step};
	fit_kernel<<<blocks_for(V.rows * grid->scale.cols), WARPS * LANES, 0, fp_cuda_stream(be)>>>(fp_cuda_grid_of(grid),
																								in);
	FP_LAUNCHED(be);
	return FP_OK;
}

/* --- round ------------------------------------------------------------------------------------------------------- */

template <typename T> static fp_status round_to(fp_backend *be, const fp_grid *grid, fp_matrix X, T *v, int64_t vs)
{
	const fp_cuda_grid g = fp_cuda_grid_of(grid);
	const int64_t size = X.cols / grid->scale.cols, xs = X.stride;
	const float *x = fp_cuda_floats(X);
	return fp_cuda_map(be, X.rows, X.cols, false, [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store(v + i * vs + j, g.nearest(i, j / size, x[i * xs + j]));
	});
}

fp_status fp_cuda_grid_round(fp_backend *be, const fp_grid *grid, fp_matrix X, fp_matrix V)
{
	FP_REQUIRE(be, has_views(grid, X) && fp_cuda_is_f32(X) && fp_cuda_same_shape(X, V) && fp_cuda_is_weight(V));
	return fp_cuda_by_weight_type(V, [=](auto *v) { return round_to(be, grid, X, v, V.stride); });
}

/* --- descend ----------------------------------------------------------------------------------------------------- */

struct descent {
	const float *a, *x, *g;
	float *v, *d;
	int64_t rows, a_stride, x_stride, g_stride, v_stride, d_stride;
	int count;
};

__global__ static void descend_kernel(fp_cuda_grid grid, descent in)
{
	__shared__ float a[FP_GRID_BLOCK][FP_GRID_BLOCK];
	for (int i = threadIdx.x; i < in.count * in.count; i += WARPS * LANES)
		a[i / in.count][i % in.count] = in.a[i / in.count * in.a_stride + i % in.count];
	__syncthreads();
	int lane = threadIdx.x % LANES;
	for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; row < in.rows;
		 row += (int64_t)gridDim.x * WARPS) {
		const float scale = grid.scale_at(row, 0), zero = grid.zero_at(row, 0);
		float g[PER_LANE], v[PER_LANE], d[PER_LANE];
		bool kept[PER_LANE];
#pragma unroll
		for (int p = 0; p < PER_LANE; p++) {
			int j = p * LANES + lane;
			bool inside = j < in.count;
			g[p] = inside ? in.g[row * in.g_stride + j] : 0.0f;
			v[p] = inside ? in.v[row * in.v_stride + j] : 0.0f;
			kept[p] = inside && in.x[row * in.x_stride + j] != 0.0f && a[j][j] > 0.0f;
			d[p] = 0.0f;
		}
#pragma unroll
		for (int p = 0; p < PER_LANE; p++)
			for (int k = 0; k < LANES && p * LANES + k < in.count; k++) {
				int j = p * LANES + k;
				if (lane == k && kept[p]) {
					float value = fp_grid_nearest(grid.rule, scale, zero, v[p] - g[p] / a[j][j]);
					d[p] = value - v[p];
					v[p] = value;
				}
				float change = __shfl_sync(0xffffffffU, d[p], k);
				if (change == 0.0f)
					continue; /* the same for all lanes */
#pragma unroll
				for (int q = 0; q < PER_LANE; q++)
					if (q * LANES + lane < in.count)
						g[q] += change * a[j][q * LANES + lane];
			}
#pragma unroll
		for (int p = 0; p < PER_LANE; p++) {
			int j = p * LANES + lane;
			if (j < in.count) {
				in.v[row * in.v_stride + j] = v[p];
				in.d[row * in.d_stride + j] = d[p];
			}
		}
	}
}

fp_status fp_cuda_grid_descend(fp_backend *be, const fp_grid *grid, fp_matrix A, fp_matrix X, fp_matrix G, fp_matrix V,
							   fp_matrix D)
{
	FP_REQUIRE(be, has_views(grid, V) && grid->scale.cols == 1 && V.cols <= FP_GRID_BLOCK);
	FP_REQUIRE(be, fp_cuda_is_f32(A) && fp_cuda_is_f32(G) && fp_cuda_is_f32(V) && fp_cuda_is_f32(D));
	FP_REQUIRE(be, A.rows == V.cols && A.cols == V.cols && fp_cuda_is_f32(X) && fp_cuda_same_shape(V, X));
	FP_REQUIRE(be, fp_cuda_same_shape(V, G) && fp_cuda_same_shape(V, D));
	if (fp_matrix_size(V) == 0)
		return FP_OK;
	descent in = {
		fp_cuda_floats(A), fp_cuda_floats(X), fp_cuda_floats(G), fp_cuda_floats(V), fp_cuda_floats(D), V.rows,
		A.stride,          X.stride,          G.stride,          V.stride,          D.stride,          (int)V.cols};
	descend_kernel<<<blocks_for(V.rows), WARPS * LANES, 0, fp_cuda_stream(be)>>>(fp_cuda_grid_of(grid), in);
	FP_LAUNCHED(be);
	return FP_OK;
}

/* --- rescale ----------------------------------------------------------------------------------------------------- */

struct rescaling {
	const float *p, *g;
	float *v, *d;
	int64_t rows, cols, p_stride, g_stride, v_stride, d_stride;
};

__global__ static void rescale_kernel(fp_cuda_grid grid, rescaling in)
{
	int lane = threadIdx.x % LANES;
	for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; row < in.rows;
		 row += (int64_t)gridDim.x * WARPS) {
		const float *p = in.p + row * in.p_stride, *g = in.g + row * in.g_stride;
		float *v = in.v + row * in.v_stride, *d = in.d + row * in.d_stride;
		const float scale = grid.scale_at(row, 0), zero = grid.zero_at(row, 0);
		double slope = 0, curvature = 0;
		for (int64_t j = lane; j < in.cols; j += LANES) {
			slope += (double)v[j] * (double)g[j];
			curvature += (double)v[j] * (double)p[j];
		}
		slope = fp_cuda_warp_sum(slope);
		curvature = fp_cuda_warp_sum(curvature);
		const float next = fp_round_to_type(grid.rule.dtype, (float)((double)scale * (1.0 - slope / curvature)));
		const double t = (double)next / (double)scale - 1.0;
		const bool better = next > 0.0f && next < INFINITY && 2.0 * slope * t + curvature * t * t < 0;
		for (int64_t j = lane; j < in.cols; j += LANES) {
			float value = v[j];
			if (better)
				value = fp_grid_code_value(grid.rule, next, zero, fp_grid_nearest_code(grid.rule, scale, zero, v[j]));
			d[j] = value - v[j];
			v[j] = value;
		}
		if (lane == 0 && better)
			grid.scale[row * grid.scale_stride] = next;
		__syncwarp();
	}
}

fp_status fp_cuda_grid_rescale(fp_backend *be, const fp_grid *grid, fp_matrix P, fp_matrix G, fp_matrix V, fp_matrix D)
{
	FP_REQUIRE(be, has_views(grid, V) && grid->scale.cols == 1);
	FP_REQUIRE(be, fp_cuda_is_f32(P) && fp_cuda_is_f32(G) && fp_cuda_is_f32(V) && fp_cuda_is_f32(D));
	FP_REQUIRE(be, fp_cuda_same_shape(V, P) && fp_cuda_same_shape(V, G) && fp_cuda_same_shape(V, D));
	if (V.rows == 0)
		return FP_OK;
	rescaling in = {fp_cuda_floats(P), fp_cuda_floats(G), fp_cuda_floats(V), fp_cuda_floats(D), V.rows, V.cols,
					P.stride,          G.stride,          V.stride,          D.stride};
	rescale_kernel<<<blocks_for(V.rows), WARPS * LANES, 0, fp_cuda_stream(be)>>>(fp_cuda_grid_of(grid), in);
	FP_LAUNCHED(be);
	return FP_OK;
}
