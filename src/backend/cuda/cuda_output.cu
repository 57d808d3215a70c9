/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_output.cu: downloads finished weights.
 *
 * One pass rounds the weights, replaces −0.0 by +0.0 and counts the zeros. A stream of its own then copies them to
 * pinned host memory while the next products run.
 */
#include "backend/cuda/cuda_sums.cuh"

template <typename T> __device__ static inline float rounded(float x, T *out)
{
	fp_cuda_store(out, x);
	return fp_cuda_load(out);
}

/* Returns 1 for a zero and NaN for a number that is not finite, which makes the sum NaN. */
template <typename T> __device__ static inline double round_entry(float *x, T *out)
{
	float value = rounded(*x, out);
	if (value == 0.0f)
		value = rounded(0.0f, out);
	*x = value;
	return value == 0.0f ? 1.0 : isfinite(value) ? 0.0 : (double)NAN;
}

template <typename T> static fp_status round_as(fp_backend *be, fp_matrix X, T *out, double *sum)
{
	float *x = fp_cuda_floats(X);
	int64_t stride = X.stride, cols = X.cols;
	return sum_of(be, span_of(X.rows, cols, fp_cuda_is_contiguous(X)), sum,
				  [=] __device__(int64_t i, int64_t j) { return round_entry(x + i * stride + j, out + i * cols + j); });
}

fp_status fp_cuda_round_weights(fp_backend *be, fp_matrix X, fp_matrix out, int64_t *zeros, int *finite)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_weight(out));
	FP_REQUIRE(be, fp_cuda_same_shape(X, out) && fp_cuda_is_contiguous(out));
	double sum = 0; /* exact: below 2⁵³ */
	FP_OR_RETURN(fp_cuda_by_weight_type(out, [&](auto *y) { return round_as(be, X, y, &sum); }));
	*finite = sum == sum;
	*zeros = *finite ? (int64_t)sum : 0;
	return FP_OK;
}

fp_status fp_cuda_allocate_host(fp_backend *be, void **out, int64_t bytes)
{
	*out = nullptr;
	cudaError_t error = cudaHostAlloc(out, (size_t)(bytes > 0 ? bytes : 1), cudaHostAllocDefault);
	if (error == cudaSuccess)
		return FP_OK;
	(void)cudaGetLastError();
	*out = nullptr;
	return fp_fail(be->ctx, FP_ERROR_MEMORY, "cannot allocate %.1f MiB of pinned host memory for downloads (%s)",
				   (double)bytes / 1048576.0, cudaGetErrorString(error));
}

void fp_cuda_release_host(fp_backend *be, void *host)
{
	(void)be;
	(void)cudaFreeHost(host);
}

fp_status fp_cuda_begin_download(fp_backend *be, void *host, fp_matrix in)
{
	FP_REQUIRE(be, fp_cuda_is_view(in, in.dtype) && fp_cuda_is_contiguous(in));
	fp_cuda_state *state = fp_cuda_state_of(be);
	FP_CUDA(be, cudaEventRecord(state->ready, state->stream));
	FP_CUDA(be, cudaStreamWaitEvent(state->download_stream, state->ready, 0));
	FP_CUDA(be, cudaMemcpyAsync(host, (const char *)in.buffer->data + in.offset * fp_dtype_size(in.dtype),
								(size_t)(fp_matrix_size(in) * fp_dtype_size(in.dtype)), cudaMemcpyDeviceToHost,
								state->download_stream));
	return FP_OK;
}

fp_status fp_cuda_end_download(fp_backend *be)
{
	FP_CUDA(be, cudaStreamSynchronize(fp_cuda_state_of(be)->download_stream));
	return FP_OK;
}
