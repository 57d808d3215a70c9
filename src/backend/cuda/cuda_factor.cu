/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_factor.cu: the factor of an inverse, and eigenvectors by cuSOLVER.
 *
 * cuSOLVER is column-major: a symmetric matrix is the same in both layouts, and eigenvectors come out in rows.
 */
#include "backend/cuda/cuda_backend.cuh"

/* Workspace of cuSOLVER. */
struct solver_space {
	cusolverDnParams_t parameters = nullptr;
	fp_cuda_scratch device, info;
	fp_backend *be = nullptr;
	void *host = nullptr;
	~solver_space()
	{
		if (parameters)
			(void)cusolverDnDestroyParams(parameters);
		fp_free(host);
	}
	fp_status open(fp_backend *backend)
	{
		be = backend;
		FP_SOLVER(be, cusolverDnCreateParams(&parameters));
		return info.take(be, sizeof(int));
	}
	fp_status take(size_t device_bytes, size_t host_bytes)
	{
		FP_OR_RETURN(device.take(be, (int64_t)device_bytes));
		return fp_allocate(be->ctx, &host, (int64_t)host_bytes, 1);
	}
};

/* Waits for the solver's result. A negative one means an invalid argument: a defect of this program. */
static fp_status read_info(fp_backend *be, const solver_space *space, int64_t *refused)
{
	int info = 0;
	FP_OR_RETURN(fp_cuda_fetch(be, &info, space->info.as<int>(), sizeof info));
	if (info < 0)
		return fp_fail(be->ctx, FP_ERROR_INTERNAL, "cuSOLVER rejected argument %d of a factorisation", -info);
	*refused = info;
	return FP_OK;
}

/* --- U with UᵀU = A⁻¹ --------------------------------------------------------------------------------------------- */

/*
 * J reverses the order of rows or columns:
 *     JAJ = FᵀF, F upper
 *     A   = (JFᵀJ)(JFJ)
 *     A⁻¹ = UᵀU with U = (JFᵀJ)⁻¹ = J F⁻ᵀ J, upper
 * This takes one factor and one triangular inverse instead of two factors and a full inverse. A⁻¹, which would lose
 * accuracy, is never formed.
 */
__global__ static void reverse_kernel(const float *in, int64_t in_stride, float *out, int64_t out_stride, int64_t n)
{
	for (int64_t i = blockIdx.y; i < n; i += gridDim.y)
		for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < n; j += (int64_t)gridDim.x * blockDim.x)
			if (j >= i) /* the upper triangle of JAJ, from the upper triangle of A */
				out[i * out_stride + j] = in[(n - 1 - j) * in_stride + n - 1 - i];
}

/* out ← J F⁻ᵀ J, zero below the diagonal; F⁻¹ is in the upper triangle of `in`. *bad ← one plus the first row with an
 * entry that is not finite or a diagonal that is not positive. */
__global__ static void unreverse_kernel(const float *in, int64_t n, float *out, int64_t stride, int *bad)
{
	for (int64_t i = blockIdx.y; i < n; i += gridDim.y)
		for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < n; j += (int64_t)gridDim.x * blockDim.x) {
			float value = j < i ? 0.0f : in[(n - 1 - j) * n + n - 1 - i];
			out[i * stride + j] = value;
			if (!isfinite(value) || (i == j && !(value > 0.0f)))
				atomicMin(bad, (int)i + 1);
		}
}

static dim3 square_grid(int64_t n)
{
	return dim3((unsigned)fp_smaller((n + 255) / 256, 1024), (unsigned)fp_smaller(n, 65535));
}

fp_status fp_cuda_inverse_factor(fp_backend *be, fp_matrix A, int64_t *refused)
{
	FP_REQUIRE(be, fp_cuda_is_f32(A) && A.rows == A.cols && A.rows <= INT32_MAX);
	*refused = 0;
	int64_t n = A.rows;
	if (n == 0)
		return FP_OK;
	fp_cuda_state *state = fp_cuda_state_of(be);
	fp_cuda_scratch reversed;
	FP_OR_RETURN(reversed.take(be, n * n * (int64_t)sizeof(float)));
	float *work = reversed.as<float>();
	reverse_kernel<<<square_grid(n), 256, 0, state->stream>>>(fp_cuda_floats(A), A.stride, work, n, n);
	FP_LAUNCHED(be);
	FP_OR_RETURN(fp_cuda_invert_factor(be, fp_matrix{reversed.buffer, 0, n, n, n, FP_F32}, refused));
	if (*refused != 0) { /* JAJ gives the order of a trailing minor; factor A for that of the leading one */
		FP_OR_RETURN(fp_cuda_invert_factor(be, A, refused));
		if (*refused == 0)
			*refused = n;
		return FP_OK;
	}
	const int none = INT32_MAX;
	int bad = none;
	FP_CUDA(be, cudaMemcpyAsync(state->device_numbers, &none, sizeof none, cudaMemcpyHostToDevice, state->stream));
	unreverse_kernel<<<square_grid(n), 256, 0, state->stream>>>(work, n, fp_cuda_floats(A), A.stride,
																(int *)state->device_numbers);
	FP_LAUNCHED(be);
	FP_OR_RETURN(fp_cuda_fetch(be, &bad, state->device_numbers, sizeof bad));
	*refused = bad == none ? 0 : bad;
	return FP_OK;
}

/* --- eigenvectors ------------------------------------------------------------------------------------------------- */

__global__ static void transpose_kernel(const float *in, float *out, int64_t n, int64_t stride)
{
	__shared__ float tile[32][33];
	int64_t i0 = (int64_t)blockIdx.y * 32, j0 = (int64_t)blockIdx.x * 32;
	for (int r = threadIdx.y; r < 32; r += blockDim.y)
		if (i0 + r < n && j0 + threadIdx.x < n)
			tile[r][threadIdx.x] = in[(i0 + r) * n + j0 + threadIdx.x];
	__syncthreads();
	for (int r = threadIdx.y; r < 32; r += blockDim.y)
		if (j0 + r < n && i0 + threadIdx.x < n)
			out[(j0 + r) * stride + i0 + threadIdx.x] = tile[threadIdx.x][r];
}

fp_status fp_cuda_eigen(fp_backend *be, fp_matrix A, fp_matrix values)
{
	FP_REQUIRE(be, fp_cuda_is_f32(A) && A.rows == A.cols && fp_cuda_is_vector(values, A.rows));
	int64_t n = A.rows, refused = 0;
	if (n == 0)
		return FP_OK;
	FP_REQUIRE(be, (n + 31) / 32 <= 65535);
	fp_cuda_state *state = fp_cuda_state_of(be);
	fp_cuda_scratch packed;
	solver_space space;
	size_t device_bytes = 0, host_bytes = 0;
	FP_OR_RETURN(packed.take(be, n * n * (int64_t)sizeof(float)));
	FP_CUDA(be,
			cudaMemcpy2DAsync(packed.as<void>(), (size_t)n * 4, fp_cuda_floats(A), (size_t)(n > 1 ? A.stride : n) * 4,
							  (size_t)n * 4, (size_t)n, cudaMemcpyDeviceToDevice, state->stream));
	FP_OR_RETURN(space.open(be));
	FP_SOLVER(be, cusolverDnXsyevd_bufferSize(state->solver, space.parameters, CUSOLVER_EIG_MODE_VECTOR,
											  CUBLAS_FILL_MODE_LOWER, n, CUDA_R_32F, packed.as<void>(), n, CUDA_R_32F,
											  fp_cuda_floats(values), CUDA_R_32F, &device_bytes, &host_bytes));
	FP_OR_RETURN(space.take(device_bytes, host_bytes));
	FP_SOLVER(be,
			  cusolverDnXsyevd(state->solver, space.parameters, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n,
							   CUDA_R_32F, packed.as<void>(), n, CUDA_R_32F, fp_cuda_floats(values), CUDA_R_32F,
							   space.device.as<void>(), device_bytes, space.host, host_bytes, space.info.as<int>()));
	FP_OR_RETURN(read_info(be, &space, &refused));
	if (refused != 0)
		return fp_fail(be->ctx, FP_ERROR_NUMERIC,
					   "the eigenvalues of a %lld × %lld matrix did not converge (cuSOLVER status %lld)", (long long)n,
					   (long long)n, (long long)refused);
	unsigned tiles = (unsigned)((n + 31) / 32);
	transpose_kernel<<<dim3(tiles, tiles), dim3(32, 8), 0, state->stream>>>(packed.as<float>(), fp_cuda_floats(A), n,
																			A.stride);
	FP_LAUNCHED(be);
	return FP_OK;
}
