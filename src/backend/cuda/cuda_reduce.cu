/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_reduce.cu: reductions that return a number to the host: sums, the largest entry, counts. */
#include "backend/cuda/cuda_keys.cuh"
#include "backend/cuda/cuda_sums.cuh"

__global__ static void sum_parts_kernel(const double *parts, double *out)
{
	__shared__ double shared[33];
	double sum = 0;
	for (int i = threadIdx.x; i < FP_CUDA_PARTS; i += THREADS)
		sum += parts[i];
	sum = fp_cuda_block_sum(sum, shared);
	if (threadIdx.x == 0)
		*out = sum;
}

fp_status fp_cuda_fetch(fp_backend *be, void *host, const void *device, int64_t bytes)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	FP_REQUIRE(be, bytes <= FP_CUDA_NUMBERS);
	FP_CUDA(be, cudaMemcpyAsync(state->numbers, device, (size_t)bytes, cudaMemcpyDeviceToHost, state->stream));
	FP_CUDA(be, cudaStreamSynchronize(state->stream));
	memcpy(host, state->numbers, (size_t)bytes);
	return FP_OK;
}

fp_status fp_cuda_sum_parts(fp_backend *be, double *out)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	sum_parts_kernel<<<1, THREADS, 0, state->stream>>>(state->parts, (double *)state->device_numbers);
	FP_LAUNCHED(be);
	return fp_cuda_fetch(be, out, state->device_numbers, sizeof *out);
}

fp_status fp_cuda_dot(fp_backend *be, fp_matrix X, fp_matrix Y, double *out)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(Y) && fp_cuda_same_shape(X, Y));
	const float *x = fp_cuda_floats(X), *y = fp_cuda_floats(Y);
	int64_t xs = X.stride, ys = Y.stride;
	span s = span_of(X.rows, X.cols, fp_cuda_is_contiguous(X) && fp_cuda_is_contiguous(Y));
	return sum_of(be, s, out,
				  [=] __device__(int64_t i, int64_t j) { return (double)x[i * xs + j] * (double)y[i * ys + j]; });
}

fp_status fp_cuda_mask_distance(fp_backend *be, fp_matrix a, fp_matrix b, int64_t *out)
{
	FP_REQUIRE(be, fp_cuda_is_u8(a) && fp_cuda_is_u8(b) && fp_cuda_same_shape(a, b));
	const uint8_t *x = fp_cuda_bytes(a), *y = fp_cuda_bytes(b);
	int64_t xs = a.stride, ys = b.stride;
	double count = 0; /* exact: below 2⁵³ */
	span s = span_of(a.rows, a.cols, fp_cuda_is_contiguous(a) && fp_cuda_is_contiguous(b));
	FP_OR_RETURN(sum_of(be, s, &count, [=] __device__(int64_t i, int64_t j) {
		return (x[i * xs + j] != 0) != (y[i * ys + j] != 0) ? 1.0 : 0.0;
	}));
	*out = (int64_t)count;
	return FP_OK;
}

/* A block for each row. */
template <typename T>
__global__ static void row_dot_kernel(int64_t rows, int64_t cols, const T *x, int64_t xs, const T *y, int64_t ys,
									  float *out)
{
	__shared__ double shared[33];
	for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
		double sum = 0;
		for (int64_t j = threadIdx.x; j < cols; j += THREADS)
			sum += (double)fp_cuda_load(x + i * xs + j) * (double)fp_cuda_load(y + i * ys + j);
		sum = fp_cuda_block_sum(sum, shared);
		if (threadIdx.x == 0)
			out[i] = (float)sum;
	}
}

fp_status fp_cuda_row_dot(fp_backend *be, fp_matrix X, fp_matrix Y, fp_matrix out)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && fp_cuda_is_view(Y, X.dtype) && fp_cuda_same_shape(X, Y));
	FP_REQUIRE(be, fp_cuda_is_vector(out, X.rows));
	if (X.rows == 0)
		return FP_OK;
	return fp_cuda_by_type(X, [&](auto *x) {
		using T = std::remove_pointer_t<decltype(x)>;
		row_dot_kernel<T><<<(unsigned)fp_smaller(X.rows, 65535), THREADS, 0, fp_cuda_stream(be)>>>(
			X.rows, X.cols, x, X.stride, fp_cuda_at<T>(Y), Y.stride, fp_cuda_floats(out));
		FP_LAUNCHED(be);
		return FP_OK;
	});
}

/* *out ← the largest key. It also says whether all numbers are finite: with `finite`, NaN counts as larger than
 * infinity; without, NaN is ignored, as by fmax. */
template <typename T>
__global__ static void largest_kernel(span s, const T *x, int64_t stride, bool finite, unsigned *out)
{
	unsigned largest = 0;
	const int64_t piece = THREADS * 4;
	int64_t per_row = (s.cols + piece - 1) / piece, pieces = s.rows * per_row;
	for (int64_t p = blockIdx.x; p < pieces; p += gridDim.x) {
		int64_t row = p / per_row, begin = (p - row * per_row) * piece;
#pragma unroll
		for (int k = 0; k < 4; k++) {
			int64_t col = begin + k * THREADS + threadIdx.x;
			if (col < s.cols) {
				unsigned key = fp_cuda_key(fp_cuda_load(x + row * stride + col));
				if (finite || key <= 0x7f800000U)
					largest = max(largest, key);
			}
		}
	}
	for (int offset = 16; offset > 0; offset /= 2)
		largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, offset));
	if (threadIdx.x % 32 == 0 && largest > 0)
		atomicMax(out, largest);
}

static fp_status largest_key(fp_backend *be, fp_matrix X, bool finite, unsigned *out)
{
	FP_REQUIRE(be, fp_cuda_is_weight(X));
	fp_cuda_state *state = fp_cuda_state_of(be);
	*out = 0;
	if (fp_matrix_size(X) == 0)
		return FP_OK;
	FP_CUDA(be, cudaMemsetAsync(state->device_numbers, 0, sizeof(unsigned), state->stream));
	FP_OR_RETURN(fp_cuda_by_weight_type(X, [&](auto *x) {
		largest_kernel<<<(unsigned)state->processors * 8, THREADS, 0, state->stream>>>(
			span_of(X.rows, X.cols, fp_cuda_is_contiguous(X)), x, X.stride, finite, (unsigned *)state->device_numbers);
		FP_LAUNCHED(be);
		return FP_OK;
	}));
	return fp_cuda_fetch(be, out, state->device_numbers, sizeof *out);
}

fp_status fp_cuda_max_abs(fp_backend *be, fp_matrix X, double *out)
{
	unsigned key;
	float value;
	FP_OR_RETURN(largest_key(be, X, false, &key));
	memcpy(&value, &key, sizeof value);
	*out = (double)value;
	return FP_OK;
}

fp_status fp_cuda_finite(fp_backend *be, fp_matrix X, int *out)
{
	unsigned key;
	FP_OR_RETURN(largest_key(be, X, true, &key));
	*out = key < 0x7f800000U;
	return FP_OK;
}
