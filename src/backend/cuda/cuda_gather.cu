/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gather.cu: rows of a matrix, collected in another order and added up again. */
#include "backend/cuda/cuda_backend.cuh"

/* *space ← `count` row numbers, on the device */
static fp_status send_rows(fp_backend *be, const int32_t *rows, int64_t count, fp_cuda_scratch *space)
{
	FP_OR_RETURN(space->take(be, count * (int64_t)sizeof *rows));
	FP_CUDA(be, cudaMemcpyAsync(space->as<int32_t>(), rows, (size_t)count * sizeof *rows, cudaMemcpyHostToDevice,
								fp_cuda_stream(be)));
	return FP_OK;
}

template <typename In, typename T>
static fp_status gather_as(fp_backend *be, const int32_t *from, const float *s, fp_matrix X, fp_matrix Y, const In *x,
						   T *y)
{
	int64_t xs = X.stride, ys = Y.stride;
	return fp_cuda_map(be, Y.rows, Y.cols, false, [=] __device__(int64_t i, int64_t j) {
		float value = fp_cuda_load(x + (from ? (int64_t)from[i] : i) * xs + j);
		fp_cuda_store(y + i * ys + j, s ? s[i] * value : value);
	});
}

fp_status fp_cuda_gather_rows(fp_backend *be, const int32_t *rows, fp_matrix scale, fp_matrix X, fp_matrix Y)
{
	bool scaled = !fp_matrix_is_absent(scale);
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && fp_cuda_is_f32_or_bf16(Y) && X.cols == Y.cols);
	FP_REQUIRE(be, (rows || X.rows == Y.rows) && (X.dtype == FP_F32 || Y.dtype == FP_BF16));
	FP_REQUIRE(be, !scaled || fp_cuda_is_vector(scale, Y.rows));
	if (fp_matrix_size(Y) == 0)
		return FP_OK;
	fp_cuda_scratch space;
	if (rows)
		FP_OR_RETURN(send_rows(be, rows, Y.rows, &space));
	const int32_t *from = rows ? space.as<int32_t>() : nullptr;
	const float *s = scaled ? fp_cuda_floats(scale) : nullptr;
	if (X.dtype == FP_BF16)
		FP_OR_RETURN(gather_as(be, from, s, X, Y, fp_cuda_at<__nv_bfloat16>(X), fp_cuda_at<__nv_bfloat16>(Y)));
	else
		FP_OR_RETURN(fp_cuda_by_type(Y, [&](auto *y) { return gather_as(be, from, s, X, Y, fp_cuda_floats(X), y); }));
	if (rows)
		FP_CUDA(be, cudaStreamSynchronize(fp_cuda_stream(be))); /* the caller may change `rows` now */
	return FP_OK;
}

fp_status fp_cuda_add_rows(fp_backend *be, const int32_t *rows, int64_t count, fp_matrix X, float beta, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cuda_is_f32(X) && fp_cuda_is_f32(Y) && X.cols == Y.cols && count > 0);
	if (fp_matrix_size(Y) == 0)
		return FP_OK;
	fp_cuda_scratch space;
	FP_OR_RETURN(send_rows(be, rows, Y.rows * count, &space));
	const int32_t *from = space.as<int32_t>();
	const float *x = fp_cuda_floats(X);
	float *y = fp_cuda_floats(Y);
	int64_t xs = X.stride, ys = Y.stride;
	FP_OR_RETURN(fp_cuda_map(be, Y.rows, Y.cols, false, [=] __device__(int64_t i, int64_t j) {
		float sum = beta == 0.0f ? 0.0f : beta * y[i * ys + j]; /* Y may be undefined */
		for (int64_t k = 0; k < count; k++)
			sum += x[from[i * count + k] * xs + j];
		y[i * ys + j] = sum;
	}));
	FP_CUDA(be, cudaStreamSynchronize(fp_cuda_stream(be))); /* the caller may change `rows` now */
	return FP_OK;
}
