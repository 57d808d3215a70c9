/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_sums.cuh: sums over all entries of a matrix.
 *
 * A sum has FP_CUDA_PARTS partial sums on every device, one per block. Each thread adds its entries in double, the
 * block adds its threads, and one block adds the parts. The order of additions depends on the shape alone.
 */
#ifndef FP_BACKEND_CUDA_SUMS_CUH
#define FP_BACKEND_CUDA_SUMS_CUH

#include "backend/cuda/cuda_backend.cuh"

enum { THREADS = 256 };

/* The range of a sum; one long row when contiguous. */
struct span {
	int64_t rows, cols;
};

static span span_of(int64_t rows, int64_t cols, bool contiguous)
{
	return contiguous ? span{1, rows * cols} : span{rows, cols};
}

/* parts[block] ← Σ f(row, col) over the block's entries. Blocks take pieces of THREADS·4 columns in turn. */
template <typename F> __global__ static void sum_kernel(span s, double *parts, F f)
{
	__shared__ double shared[33];
	const int64_t piece = THREADS * 4;
	int64_t per_row = (s.cols + piece - 1) / piece, pieces = s.rows * per_row;
	double sum = 0;
	for (int64_t p = blockIdx.x; p < pieces; p += gridDim.x) {
		int64_t row = p / per_row, begin = (p - row * per_row) * piece;
#pragma unroll
		for (int k = 0; k < 4; k++) {
			int64_t col = begin + k * THREADS + threadIdx.x;
			if (col < s.cols)
				sum += f(row, col);
		}
	}
	sum = fp_cuda_block_sum(sum, shared);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
}

template <typename F> static fp_status sum_of(fp_backend *be, span s, double *out, F f)
{
	sum_kernel<<<FP_CUDA_PARTS, THREADS, 0, fp_cuda_stream(be)>>>(s, fp_cuda_state_of(be)->parts, f);
	FP_LAUNCHED(be);
	return fp_cuda_sum_parts(be, out);
}

#endif
