/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_rows.cu: norms and cross-entropy, which need a whole row at a time. A block for each row. */
#include "backend/cuda/cuda_backend.cuh"

enum { THREADS = 256 };

template <typename In, typename T> struct norm_numbers {
	const In *x;
	const float *weight, *bias; /* NULL where absent */
	T *y;
	int64_t rows, cols, xs, ys;
	float epsilon;
	bool centred;
};

template <typename In, typename T> __global__ static void norm_kernel(norm_numbers<In, T> n)
{
	__shared__ double shared[33];
	double count = (double)n.cols;
	for (int64_t i = blockIdx.x; i < n.rows; i += gridDim.x) {
		const In *x = n.x + i * n.xs;
		T *y = n.y + i * n.ys;
		double mean = 0, square = 0;
		if (n.centred) {
			for (int64_t j = threadIdx.x; j < n.cols; j += THREADS)
				mean += (double)fp_cuda_load(x + j);
			mean = fp_cuda_block_sum(mean, shared) / count;
		}
		for (int64_t j = threadIdx.x; j < n.cols; j += THREADS) {
			double d = (double)fp_cuda_load(x + j) - mean;
			square += d * d;
		}
		square = fp_cuda_block_sum(square, shared) / count;
		float centre = (float)mean, factor = (float)(1 / sqrt(square + (double)n.epsilon));
		for (int64_t j = threadIdx.x; j < n.cols; j += THREADS) {
			float value = (fp_cuda_load(x + j) - centre) * factor;
			if (n.weight)
				value *= n.weight[j];
			fp_cuda_store(y + j, n.bias ? value + n.bias[j] : value);
		}
	}
}

template <typename In, typename T>
static fp_status norm_as(fp_backend *be, fp_norm_kind kind, fp_matrix X, const float *weight, const float *bias,
						 float epsilon, fp_matrix Y, const In *x, T *y)
{
	norm_numbers<In, T> n = {x, weight, bias, y, X.rows, X.cols, X.stride, Y.stride, epsilon, kind == FP_LAYER_NORM};
	norm_kernel<<<(unsigned)fp_smaller(X.rows, 1 << 20), THREADS, 0, fp_cuda_stream(be)>>>(n);
	FP_LAUNCHED(be);
	return FP_OK;
}

fp_status fp_cuda_norm(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, fp_matrix bias, float epsilon,
					   fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && fp_cuda_is_f32_or_bf16(Y) && fp_cuda_same_shape(X, Y));
	FP_REQUIRE(be, X.dtype == FP_F32 || Y.dtype == FP_BF16);
	FP_REQUIRE(be, fp_matrix_is_absent(weight) || fp_cuda_is_vector(weight, X.cols));
	FP_REQUIRE(be, fp_matrix_is_absent(bias) || fp_cuda_is_vector(bias, X.cols));
	if (fp_matrix_size(X) == 0)
		return FP_OK;
	const float *w = fp_matrix_is_absent(weight) ? nullptr : fp_cuda_floats(weight);
	const float *added = fp_matrix_is_absent(bias) || kind == FP_RMS_NORM ? nullptr : fp_cuda_floats(bias);
	if (X.dtype == FP_BF16)
		return norm_as(be, kind, X, w, added, epsilon, Y, fp_cuda_at<__nv_bfloat16>(X), fp_cuda_at<__nv_bfloat16>(Y));
	return fp_cuda_by_type(Y,
						   [&](auto *y) { return norm_as(be, kind, X, w, added, epsilon, Y, fp_cuda_floats(X), y); });
}

/* The larger value, and of equal values the smaller index. */
__device__ static inline void take_larger(float &value, int &index, float other, int other_index)
{
	if (other > value || (other == value && other_index < index)) {
		value = other;
		index = other_index;
	}
}

/* Returns the largest entry of a row and its first index in every thread; `values` and `indices` are shared. */
__device__ static float row_largest(const float *x, int64_t cols, float *values, int *indices, int &index)
{
	float largest = -INFINITY;
	index = 0x7fffffff;
	for (int64_t j = threadIdx.x; j < cols; j += THREADS)
		take_larger(largest, index, x[j], (int)j);
	for (int offset = 16; offset > 0; offset /= 2)
		take_larger(largest, index, __shfl_xor_sync(0xffffffffU, largest, offset),
					__shfl_xor_sync(0xffffffffU, index, offset));
	if (threadIdx.x % 32 == 0) {
		values[threadIdx.x / 32] = largest;
		indices[threadIdx.x / 32] = index;
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int w = 1; w < THREADS / 32; w++)
			take_larger(values[0], indices[0], values[w], indices[w]);
	}
	__syncthreads();
	index = indices[0];
	return values[0];
}

__global__ static void cross_entropy_kernel(int64_t rows, int64_t cols, const float *logits, int64_t stride,
											const int32_t *targets, float *out, int32_t *argmax)
{
	__shared__ double shared[33];
	__shared__ float values[33];
	__shared__ int indices[33];
	for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
		const float *x = logits + i * stride;
		int index;
		float largest = row_largest(x, cols, values, indices, index);
		double sum = 0;
		if (targets[i] >= 0) { /* the same for the whole block */
			for (int64_t j = threadIdx.x; j < cols; j += THREADS)
				sum += (double)expf(x[j] - largest);
			sum = fp_cuda_block_sum(sum, shared);
		}
		if (threadIdx.x == 0) {
			out[i] = targets[i] < 0 ? 0.0f : (float)(log(sum) + (double)largest - (double)x[targets[i]]);
			if (argmax)
				argmax[i] = index == 0x7fffffff ? 0 : index; /* only if all entries are NaN */
		}
		__syncthreads();
	}
}

__global__ static void cross_entropy_backward_kernel(int64_t rows, int64_t cols, float *logits, int64_t stride,
													 const int32_t *targets)
{
	__shared__ double shared[33];
	__shared__ float values[33];
	__shared__ int indices[33];
	for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
		float *x = logits + i * stride;
		int32_t target = targets[i];
		int index;
		float largest = row_largest(x, cols, values, indices, index);
		double sum = 0;
		for (int64_t j = threadIdx.x; j < cols; j += THREADS)
			sum += (double)expf(x[j] - largest);
		sum = fp_cuda_block_sum(sum, shared);
		float scale = (float)(1 / sum);
		for (int64_t j = threadIdx.x; j < cols; j += THREADS)
			x[j] = target < 0 ? 0.0f : expf(x[j] - largest) * scale - (j == target ? 1.0f : 0.0f);
		__syncthreads();
	}
}

/* A block for each row, by the formula of cpu_transformer.c. */
__global__ static void divergence_kernel(int64_t rows, int64_t cols, const float *P, int64_t p_stride, const float *Q,
										 int64_t q_stride, float *out)
{
	__shared__ double shared[33];
	__shared__ float values[33];
	__shared__ int indices[33];
	for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
		const float *x = P + i * p_stride, *y = Q + i * q_stride;
		int index;
		float a = row_largest(x, cols, values, indices, index);
		__syncthreads();
		float b = row_largest(y, cols, values, indices, index);
		double sum_p = 0, sum_q = 0, product = 0;
		for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
			double p = (double)expf(x[j] - a);
			sum_p += p;
			sum_q += (double)expf(y[j] - b);
			product += p * ((double)x[j] - (double)y[j]);
		}
		sum_p = fp_cuda_block_sum(sum_p, shared);
		sum_q = fp_cuda_block_sum(sum_q, shared);
		product = fp_cuda_block_sum(product, shared);
		if (threadIdx.x == 0) {
			double value = product / sum_p - ((double)a + log(sum_p)) + ((double)b + log(sum_q));
			out[i] = value < 0 ? 0.0f : (float)value; /* NaN stays */
		}
		__syncthreads();
	}
}

fp_status fp_cuda_divergence(fp_backend *be, fp_matrix P, fp_matrix Q, fp_matrix out)
{
	FP_REQUIRE(be, fp_cuda_is_f32(P) && fp_cuda_is_f32(Q) && fp_cuda_same_shape(P, Q));
	FP_REQUIRE(be, fp_cuda_is_vector(out, P.rows) && (P.rows == 0 || (P.cols > 0 && P.cols <= INT32_MAX)));
	if (P.rows == 0)
		return FP_OK;
	divergence_kernel<<<(unsigned)fp_smaller(P.rows, 65535), THREADS, 0, fp_cuda_stream(be)>>>(
		P.rows, P.cols, fp_cuda_floats(P), P.stride, fp_cuda_floats(Q), Q.stride, fp_cuda_floats(out));
	FP_LAUNCHED(be);
	return FP_OK;
}

/* Checks the logits and targets of either direction. */
static fp_status check_targets(fp_backend *be, fp_matrix logits, const int32_t *targets)
{
	FP_REQUIRE(be, fp_cuda_is_f32(logits) && (logits.rows == 0 || (logits.cols > 0 && logits.cols <= INT32_MAX)));
	for (int64_t i = 0; i < logits.rows; i++)
		FP_REQUIRE(be, targets[i] >= -1 && targets[i] < logits.cols);
	return FP_OK;
}

/* *space ← the targets, followed by `more` undefined numbers. */
static fp_status send_targets(fp_backend *be, const int32_t *targets, int64_t rows, int64_t more,
							  fp_cuda_scratch *space)
{
	FP_OR_RETURN(space->take(be, (rows + more) * (int64_t)sizeof *targets));
	FP_CUDA(be, cudaMemcpyAsync(space->as<int32_t>(), targets, (size_t)rows * sizeof *targets, cudaMemcpyHostToDevice,
								fp_cuda_stream(be)));
	return FP_OK;
}

fp_status fp_cuda_cross_entropy(fp_backend *be, fp_matrix logits, const int32_t *targets, fp_matrix out,
								int32_t *argmax)
{
	FP_OR_RETURN(check_targets(be, logits, targets));
	FP_REQUIRE(be, fp_cuda_is_vector(out, logits.rows));
	if (logits.rows == 0)
		return FP_OK;
	fp_cuda_scratch space;
	cudaStream_t stream = fp_cuda_stream(be);
	FP_OR_RETURN(send_targets(be, targets, logits.rows, logits.rows, &space));
	int32_t *wanted = space.as<int32_t>(), *best = wanted + logits.rows;
	cross_entropy_kernel<<<(unsigned)fp_smaller(logits.rows, 65535), THREADS, 0, stream>>>(
		logits.rows, logits.cols, fp_cuda_floats(logits), logits.stride, wanted, fp_cuda_floats(out),
		argmax ? best : nullptr);
	FP_LAUNCHED(be);
	if (argmax)
		FP_CUDA(be, cudaMemcpyAsync(argmax, best, (size_t)logits.rows * sizeof *best, cudaMemcpyDeviceToHost, stream));
	FP_CUDA(be, cudaStreamSynchronize(stream)); /* the caller may change targets and read argmax now */
	return FP_OK;
}

fp_status fp_cuda_cross_entropy_backward(fp_backend *be, const int32_t *targets, fp_matrix logits)
{
	FP_OR_RETURN(check_targets(be, logits, targets));
	if (logits.rows == 0)
		return FP_OK;
	fp_cuda_scratch space;
	cudaStream_t stream = fp_cuda_stream(be);
	FP_OR_RETURN(send_targets(be, targets, logits.rows, 0, &space));
	cross_entropy_backward_kernel<<<(unsigned)fp_smaller(logits.rows, 65535), THREADS, 0, stream>>>(
		logits.rows, logits.cols, fp_cuda_floats(logits), logits.stride, space.as<int32_t>());
	FP_LAUNCHED(be);
	FP_CUDA(be, cudaStreamSynchronize(stream)); /* the caller may change targets now */
	return FP_OK;
}
