/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_sparsegpt.cu: SparseGPT's sweep (Frantar and Alistarh, 2023) over W[rows × cols] with U upper, UᵀU = H⁻¹.
 *
 * The sweep goes over blocks of columns. Pruning entry (r, i) updates the entries to its right:
 *     e = W[r,i] / U[i,i]
 *     W[r,j] ← W[r,j] − e·U[i,j]    for j > i
 * Once the mask of a block is known, its rows are independent. A warp takes a row, holds the block's part of it in
 * shared memory and goes over its columns. One product then updates the columns right of the block: W ← W − E U.
 *
 * Unstructured: the block's mask is chosen over all rows by W²/U[i,i]². Block [a, b) prunes ⌊s·rows·b⌋ − ⌊s·rows·a⌋
 * entries, so that the matrix has exactly ⌊s·rows·cols⌋ zeros. N:M: each group is chosen from the updated weights when
 * the sweep reaches it. A pattern that prunes nothing: the mask is given. A wide block is processed in strips, which changes only the order of sums.
 *
 * With a grid the entries that are kept are rounded, and e = (W[r,i] − rounded) / U[i,i] for them.
 */
#include "backend/cuda/cuda_grid.cuh"
#include "backend/cuda/cuda_keys.cuh"

enum { MAX_GROUP = 1024, STRIP = 128, WARPS = 8 };

/* A strip of columns [begin, begin + count). */
struct strip {
	const float *u; /* the strip's square of U: u[i·u_stride + j] = U[begin + i, begin + j] */
	float *w;       /* rows × count of W */
	uint8_t *mask;
	float *errors; /* rows × count, packed */
	int64_t rows, u_stride, w_stride, mask_stride;
	int count, kept, group; /* group 0: the mask is given */
	fp_cuda_grid grid;      /* of the whole matrix; scale null: none */
	int64_t begin, grid_group;
};

__device__ static inline unsigned score_key(float weight, float pivot)
{
	float ratio = weight / pivot;
	return fp_cuda_key(ratio * ratio);
}

/* Chooses the mask of one group from the row's current weights; called by all lanes of the warp. */
__device__ static void choose_group(const strip &s, const float *w, int first, uint8_t *mask, int lane)
{
	int size = s.count - first < s.group ? s.count - first : s.group;
	int keep = (s.kept * size + s.group - 1) / s.group;
	for (int i = lane; i < size; i += 32) {
		unsigned key = score_key(w[first + i], s.u[(first + i) * s.u_stride + first + i]);
		int ahead = 0;
		for (int j = 0; j < size; j++) {
			unsigned other = score_key(w[first + j], s.u[(first + j) * s.u_stride + first + j]);
			ahead += other > key || (other == key && j < i);
		}
		mask[first + i] = ahead < keep ? 1 : 0;
	}
	__syncwarp();
}

/* Shared memory: for each warp `count` weights and `count` bytes of mask, rounded up to 4. */
__global__ static void strip_kernel(strip s)
{
	extern __shared__ float shared[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, padded = (s.count + 3) / 4 * 4;
	float *w = shared + warp * (padded + padded / 4);
	uint8_t *mask = (uint8_t *)(w + padded);
	for (int64_t row = (int64_t)blockIdx.x * WARPS + warp; row < s.rows; row += (int64_t)gridDim.x * WARPS) {
		float *weights = s.w + row * s.w_stride, *errors = s.errors + row * s.count;
		uint8_t *bytes = s.mask + row * s.mask_stride;
		for (int j = lane; j < s.count; j += 32) {
			w[j] = weights[j];
			mask[j] = s.group ? 0 : bytes[j];
			errors[j] = 0.0f;
		}
		__syncwarp();
		for (int i = 0; i < s.count; i++) {
			if (s.group && i % s.group == 0)
				choose_group(s, w, i, mask, lane);
			if (mask[i] && !s.grid.scale)
				continue; /* the same for all lanes */
			const float *u = s.u + i * s.u_stride;
			float value = mask[i] ? s.grid.nearest(row, (s.begin + i) / s.grid_group, w[i]) : 0.0f;
			float error = (w[i] - value) / u[i];
			__syncwarp(); /* every lane has read w[i] */
			for (int j = i + 1 + lane; j < s.count; j += 32)
				w[j] -= error * u[j];
			if (lane == 0) {
				w[i] = value;
				errors[i] = error;
			}
			__syncwarp();
		}
		for (int j = lane; j < s.count; j += 32) {
			weights[j] = w[j];
			bytes[j] = mask[j];
		}
		__syncwarp();
	}
}

/* Columns in a strip: whole groups that fit into shared memory. */
static int64_t strip_width(const fp_pattern *pattern, int64_t block)
{
	int64_t width = fp_smaller(block, STRIP);
	if (pattern->group > 0) {
		width = width / pattern->group * pattern->group;
		if (width < pattern->group)
			width = pattern->group;
	}
	return width;
}

static fp_status sweep_strip(fp_backend *be, fp_matrix U, const fp_pattern *pattern, const fp_grid *grid, int64_t begin,
							 int64_t count, fp_matrix W, fp_matrix mask, fp_matrix E)
{
	strip s = {fp_cuda_floats(U) + begin * U.stride + begin,
			   fp_cuda_floats(W) + begin,
			   fp_cuda_bytes(mask) + begin,
			   fp_cuda_floats(E),
			   W.rows,
			   U.stride,
			   W.stride,
			   mask.stride,
			   (int)count,
			   (int)pattern->kept,
			   fp_pattern_prunes(pattern) ? (int)pattern->group : 0,
			   grid ? fp_cuda_grid_of(grid) : fp_cuda_grid{},
			   begin,
			   grid ? W.cols / grid->scale.cols : 1};
	int64_t padded = (count + 3) / 4 * 4, bytes = WARPS * (padded * 4 + padded);
	unsigned blocks = (unsigned)fp_smaller((W.rows + WARPS - 1) / WARPS, 1 << 20);
	strip_kernel<<<blocks, WARPS * 32, (size_t)bytes, fp_cuda_stream(be)>>>(s);
	FP_LAUNCHED(be);
	E.cols = E.stride = count;
	int64_t rest = W.cols - begin - count;
	return fp_cuda_gemm(be, -1.0f, E, FP_PLAIN, fp_matrix_cols(fp_matrix_rows(U, begin, count), begin + count, rest),
						FP_PLAIN, 1.0f, fp_matrix_cols(W, begin + count, rest));
}

/* Chooses the mask of an unstructured block; `scores` holds rows × count. */
static fp_status choose_block(fp_backend *be, fp_matrix U, const fp_pattern *pattern, int64_t begin, int64_t count,
							  fp_matrix W, fp_matrix mask, float *scores)
{
	const float *u = fp_cuda_floats(U), *w = fp_cuda_floats(W) + begin;
	int64_t us = U.stride, ws = W.stride;
	FP_OR_RETURN(fp_cuda_map(be, W.rows, count, false, [=] __device__(int64_t i, int64_t j) {
		float ratio = w[i * ws + j] / u[(begin + j) * us + begin + j];
		scores[i * count + j] = ratio * ratio;
	}));
	int64_t zeros = fp_pattern_zeros(pattern, W.rows * (begin + count)) - fp_pattern_zeros(pattern, W.rows * begin);
	return fp_cuda_prune_smallest(be, scores, count, W.rows, count, zeros, fp_cuda_bytes(mask) + begin, mask.stride);
}

fp_status fp_cuda_sparsegpt_sweep(fp_backend *be, fp_matrix U, const fp_pattern *pattern, const fp_grid *grid,
								  int64_t block, fp_matrix W, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cuda_is_f32(U) && fp_cuda_is_f32(W) && fp_cuda_is_u8(mask) && fp_cuda_same_shape(W, mask));
	FP_REQUIRE(be, fp_sweep_fits(U, W, pattern, grid, block, MAX_GROUP));
	if (fp_matrix_size(W) == 0)
		return FP_OK;
	if (block > W.cols)
		block = W.cols;
	int64_t width = strip_width(pattern, block);
	fp_cuda_scratch errors, scores;
	FP_OR_RETURN(errors.take(be, W.rows * width * (int64_t)sizeof(float)));
	const bool by_block = pattern->group == 0 && fp_pattern_prunes(pattern);
	if (by_block)
		FP_OR_RETURN(scores.take(be, W.rows * block * (int64_t)sizeof(float)));
	fp_matrix E = {errors.buffer, 0, W.rows, width, width, FP_F32};
	FP_CUDA(be, cudaFuncSetAttribute(strip_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WARPS * MAX_GROUP * 5));
	for (int64_t begin = 0; begin < W.cols; begin += block) {
		int64_t end = W.cols - begin < block ? W.cols : begin + block;
		if (by_block)
			FP_OR_RETURN(choose_block(be, U, pattern, begin, end - begin, W, mask, scores.as<float>()));
		for (int64_t at = begin; at < end; at += width)
			FP_OR_RETURN(sweep_strip(be, U, pattern, grid, at, fp_smaller(width, end - at), W, mask, E));
	}
	return FP_OK;
}
