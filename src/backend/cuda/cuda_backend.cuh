/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_backend.cuh: declarations shared by the files of the CUDA backend: buffer, state, checks, launches.
 *
 * Everything except begin_download() and upload_async() runs on one stream, so an operation sees the results of earlier
 * ones. Memory comes from a stream-ordered pool, which makes scratch space cheap. Host code uses C++ destructors only
 * to free scratch space.
 */
#ifndef FP_BACKEND_CUDA_BACKEND_CUH
#define FP_BACKEND_CUDA_BACKEND_CUH

extern "C" {
#include "backend/work_space.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
}

#include "backend/cuda/cuda_entries.cuh"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

struct fp_buffer {
	void *data;
	int64_t bytes;
};

enum { FP_CUDA_PARTS = 1024 }; /* partial sums of a reduction; constant, so that the order of additions is too */

struct fp_cuda_state {
	int device;
	int processors;    /* multiprocessors */
	bool begins_early; /* a kernel may begin before the one before it has ended (sm_90 and newer) */
	bool is_hopper;    /* sm_90: the instructions of backend/cuda/hopper */
	cudaStream_t stream;
	cudaMemPool_t pool;
	cublasHandle_t blas;
	cusolverDnHandle_t solver;
	void *blas_space;
	char *staging[2];             /* pinned, FP_CUDA_STAGING bytes each: buffers for uploads and downloads */
	cudaEvent_t staged[2];        /* the last copy from or to the buffer has finished */
	void *numbers;                /* pinned, FP_CUDA_NUMBERS bytes: results that the host reads */
	void *device_numbers;         /* the same on the device */
	double *parts;                /* on the device: FP_CUDA_PARTS partial sums */
	cudaStream_t download_stream; /* of begin_download() */
	cudaEvent_t ready;            /* the data to download has been computed */
	cudaStream_t upload_stream;   /* of upload_async() */
	cudaEvent_t uploaded;         /* its data has arrived */
	int64_t held;                 /* bytes in buffers now */
};

enum { FP_CUDA_NUMBERS = 256, FP_CUDA_STAGING = 32 << 20 };

static inline fp_cuda_state *fp_cuda_state_of(const fp_backend *be)
{
	return (fp_cuda_state *)be->state;
}
static inline cudaStream_t fp_cuda_stream(const fp_backend *be)
{
	return fp_cuda_state_of(be)->stream;
}

/* Record an error of CUDA, cuBLAS or cuSOLVER with the name of the operation; return its status. */
fp_status fp_cuda_failed(fp_backend *be, cudaError_t error, const char *where);
fp_status fp_cuda_blas_failed(fp_backend *be, int code, const char *library, const char *where);

/* Return from the function if a call fails. Only for functions that own nothing but scratch space. */
#define FP_CUDA(be, call)                                                                                              \
	do {                                                                                                               \
		cudaError_t cuda_error_ = (call);                                                                              \
		if (cuda_error_ != cudaSuccess)                                                                                \
			return fp_cuda_failed((be), cuda_error_, __func__);                                                        \
	} while (0)
#define FP_BLAS(be, call)                                                                                              \
	do {                                                                                                               \
		cublasStatus_t blas_status_ = (call);                                                                          \
		if (blas_status_ != CUBLAS_STATUS_SUCCESS)                                                                     \
			return fp_cuda_blas_failed((be), (int)blas_status_, "cuBLAS", __func__);                                   \
	} while (0)
#define FP_SOLVER(be, call)                                                                                            \
	do {                                                                                                               \
		cusolverStatus_t solver_status_ = (call);                                                                      \
		if (solver_status_ != CUSOLVER_STATUS_SUCCESS)                                                                 \
			return fp_cuda_blas_failed((be), (int)solver_status_, "cuSOLVER", __func__);                               \
	} while (0)
#define FP_OR_RETURN(call)                                                                                             \
	do {                                                                                                               \
		fp_status status_ = (call);                                                                                    \
		if (status_ != FP_OK)                                                                                          \
			return status_;                                                                                            \
	} while (0)
/* Checks that the kernel launch before it succeeded. */
#define FP_LAUNCHED(be) FP_CUDA(be, cudaPeekAtLastError())

/* Device memory that is released at the end of its scope. */
struct fp_cuda_scratch {
	fp_backend *be = nullptr;
	fp_buffer *buffer = nullptr;
	~fp_cuda_scratch()
	{
		if (buffer)
			be->memory->release(be, buffer);
	}
	fp_status take(fp_backend *backend, int64_t bytes)
	{
		be = backend;
		return be->memory->allocate(be, &buffer, bytes > 0 ? bytes : 1);
	}
	template <typename T> T *as() const
	{
		return (T *)buffer->data;
	}
};

/* The first element of a view. */
template <typename T> static inline T *fp_cuda_at(fp_matrix m)
{
	return (T *)m.buffer->data + m.offset;
}
static inline float *fp_cuda_floats(fp_matrix m)
{
	return fp_cuda_at<float>(m);
}
static inline uint8_t *fp_cuda_bytes(fp_matrix m)
{
	return fp_cuda_at<uint8_t>(m);
}

/* True when a view has this type and lies inside its buffer. */
bool fp_cuda_is_view(fp_matrix m, fp_dtype dtype);
static inline bool fp_cuda_is_f32(fp_matrix m)
{
	return fp_cuda_is_view(m, FP_F32);
}
static inline bool fp_cuda_is_u8(fp_matrix m)
{
	return fp_cuda_is_view(m, FP_U8);
}
/* Of any weight type. */
static inline bool fp_cuda_is_weight(fp_matrix m)
{
	return fp_dtype_is_weight(m.dtype) && fp_cuda_is_view(m, m.dtype);
}
/* F32, or BF16 where an operation allows that. */
static inline bool fp_cuda_is_f32_or_bf16(fp_matrix m)
{
	return fp_cuda_is_view(m, m.dtype == FP_BF16 ? FP_BF16 : FP_F32);
}
/* F32 to either type, or BF16 to BF16. */
static inline bool fp_cuda_narrows(fp_matrix in, fp_matrix out)
{
	return fp_cuda_is_f32_or_bf16(in) && fp_cuda_is_f32_or_bf16(out) && (in.dtype == FP_F32 || out.dtype == FP_BF16);
}
static inline bool fp_cuda_same_shape(fp_matrix a, fp_matrix b)
{
	return a.rows == b.rows && a.cols == b.cols;
}
static inline bool fp_cuda_is_vector(fp_matrix m, int64_t length)
{
	return fp_cuda_is_f32(m) && m.rows == 1 && m.cols == length;
}
static inline bool fp_cuda_is_contiguous(fp_matrix m)
{
	return m.stride == m.cols || m.rows <= 1;
}
/* True when a view can be read in groups of four entries. True for an absent one. */
static inline bool fp_cuda_in_fours(fp_matrix m)
{
	if (fp_matrix_is_absent(m))
		return true;
	uintptr_t at = (uintptr_t)m.buffer->data + (uintptr_t)(m.offset * fp_dtype_size(m.dtype));
	return m.cols % 4 == 0 && (m.rows <= 1 || m.stride % 4 == 0) && at % (uintptr_t)(4 * fp_dtype_size(m.dtype)) == 0;
}
/* True when a view can be treated as one long row. True for an absent one. */
static inline bool fp_cuda_is_flat(fp_matrix m)
{
	return fp_matrix_is_absent(m) || fp_cuda_is_contiguous(m);
}

/* --- element by element ------------------------------------------------------------------------------------------ */

/* Calls f(row, col) for every entry. Contiguous operands are treated as one long row. */
template <typename F> __global__ void fp_cuda_map_kernel(int64_t rows, int64_t cols, F f)
{
	for (int64_t row = blockIdx.y; row < rows; row += gridDim.y)
		for (int64_t col = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; col < cols;
			 col += (int64_t)gridDim.x * blockDim.x)
			f(row, col);
}

template <typename F>
static inline fp_status fp_cuda_map(fp_backend *be, int64_t rows, int64_t cols, bool contiguous, F f)
{
	if (rows == 0 || cols == 0)
		return FP_OK;
	if (contiguous) {
		cols *= rows;
		rows = 1;
	}
	const int threads = 256;
	int64_t wide = (cols + threads - 1) / threads;
	int64_t most = (int64_t)fp_cuda_state_of(be)->processors * 32;
	dim3 grid((unsigned)fp_smaller(wide, most), (unsigned)fp_smaller(rows, 65535));
	fp_cuda_map_kernel<<<grid, threads, 0, fp_cuda_stream(be)>>>(rows, cols, f);
	FP_LAUNCHED(be);
	return FP_OK;
}

/* f(pointer to the first entry), typed by the matrix: F32 or BF16. */
template <typename F> static inline fp_status fp_cuda_by_type(fp_matrix m, F f)
{
	return m.dtype == FP_BF16 ? f(fp_cuda_at<__nv_bfloat16>(m)) : f(fp_cuda_floats(m));
}

/* The same for any weight type. */
template <typename F> static inline fp_status fp_cuda_by_weight_type(fp_matrix m, F f)
{
	return m.dtype == FP_F16 ? f(fp_cuda_at<__half>(m)) : fp_cuda_by_type(m, f);
}

/* --- sums -------------------------------------------------------------------------------------------------------- */

/* Sum over a warp, in every lane; the order is fixed. */
template <typename T> __device__ static inline T fp_cuda_warp_sum(T value)
{
	for (int offset = 16; offset > 0; offset /= 2)
		value += __shfl_xor_sync(0xffffffffU, value, offset);
	return value;
}

/* Sum over a block of whole warps, in every thread. `shared` holds 33 values. */
template <typename T> __device__ static inline T fp_cuda_block_sum(T value, T *shared)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	value = fp_cuda_warp_sum(value);
	if (lane == 0)
		shared[warp] = value;
	__syncthreads();
	if (warp == 0) {
		T total = fp_cuda_warp_sum(lane < warps ? shared[lane] : T(0));
		if (lane == 0)
			shared[32] = total;
	}
	__syncthreads();
	T total = shared[32];
	__syncthreads();
	return total;
}

/* Copies `bytes` bytes (at most FP_CUDA_NUMBERS) from the device to `host` and waits. */
fp_status fp_cuda_fetch(fp_backend *be, void *host, const void *device, int64_t bytes);
/* *out (host) ← the sum of state->parts. */
fp_status fp_cuda_sum_parts(fp_backend *be, double *out);

/* --- shared between files ---------------------------------------------------------------------------------------- */

/* How a product is computed (cuda_linear.cu), chosen from be->use and be->precision. */
enum fp_cuda_product { PRODUCT_FLOAT, PRODUCT_TF32, PRODUCT_BF16, PRODUCT_SPLIT };
fp_cuda_product fp_cuda_product_of(const fp_backend *be);
/* out (m's shape, contiguous) ← m rounded to bf16 (cuda_linear.cu). */
fp_status fp_cuda_round(fp_backend *be, fp_matrix m, __nv_bfloat16 *out);

/* A ← upper R with RRᵀ = A⁻¹, zero below the diagonal, for a symmetric positive definite A of which only the upper
 * triangle is read (cuda_inverse.cu); *refused as in inverse(). */
fp_status fp_cuda_invert_factor(fp_backend *be, fp_matrix A, int64_t *refused);

/* mask ← 0 at the `zeros` smallest magnitudes of a rows × cols view of scores, 1 elsewhere (cuda_select.cu). */
fp_status fp_cuda_prune_smallest(fp_backend *be, const float *scores, int64_t stride, int64_t rows, int64_t cols,
								 int64_t zeros, uint8_t *mask, int64_t mask_stride);

/* --- the operations, by file ------------------------------------------------------------------------------------- */
/* cuda_memory.cu */
fp_status fp_cuda_allocate(fp_backend *be, fp_buffer **out, int64_t bytes);
void fp_cuda_release(fp_backend *be, fp_buffer *buffer);
fp_status fp_cuda_upload(fp_backend *be, fp_matrix out, const void *host, fp_dtype dtype, int64_t stride);
fp_status fp_cuda_upload_async(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype type,
							   const void *host, fp_dtype dtype);
fp_status fp_cuda_download(fp_backend *be, void *host, fp_dtype dtype, int64_t stride, fp_matrix in);
fp_status fp_cuda_copy(fp_backend *be, fp_matrix out, fp_matrix in);
fp_status fp_cuda_fill(fp_backend *be, fp_matrix out, float value);
fp_status fp_cuda_available(fp_backend *be, int64_t *available, int64_t *total);
/* cuda_output.cu */
fp_status fp_cuda_round_weights(fp_backend *be, fp_matrix X, fp_matrix out, int64_t *zeros, int *finite);
fp_status fp_cuda_allocate_host(fp_backend *be, void **out, int64_t bytes);
void fp_cuda_release_host(fp_backend *be, void *host);
fp_status fp_cuda_begin_download(fp_backend *be, void *host, fp_matrix in);
fp_status fp_cuda_end_download(fp_backend *be);
/* cuda_linear.cu */
fp_status fp_cuda_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
					   float beta, fp_matrix C);
fp_status fp_cuda_gram(fp_backend *be, fp_matrix X, float beta, fp_matrix A);
fp_status fp_cuda_mirror(fp_backend *be, fp_matrix A);
/* cuda_factor.cu */
fp_status fp_cuda_inverse_factor(fp_backend *be, fp_matrix A, int64_t *refused);
fp_status fp_cuda_eigen(fp_backend *be, fp_matrix A, fp_matrix values);
/* cuda_inverse.cu */
fp_status fp_cuda_inverse(fp_backend *be, fp_matrix A, int64_t *refused);
/* cuda_elementwise.cu */
fp_status fp_cuda_axpby(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y);
fp_status fp_cuda_combine(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y, fp_matrix Z);
fp_status fp_cuda_row_axpby(fp_backend *be, fp_matrix a, fp_matrix X, fp_matrix b, fp_matrix Y);
fp_status fp_cuda_scale_columns(fp_backend *be, fp_matrix s, fp_matrix X, fp_matrix Y);
fp_status fp_cuda_gemm_blocks(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							  float beta, fp_matrix C, fp_blocks blocks);
fp_status fp_cuda_permute_rows(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y);
fp_status fp_cuda_permute_columns(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y);
fp_status fp_cuda_diagonal(fp_backend *be, fp_matrix A, fp_matrix out);
fp_status fp_cuda_add_diagonal(fp_backend *be, fp_matrix A, fp_matrix d);
fp_status fp_cuda_add_bias(fp_backend *be, fp_matrix bias, fp_matrix X);
fp_status fp_cuda_activate(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix Y);
fp_status fp_cuda_activate_gated(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y);
fp_status fp_cuda_rotate(fp_backend *be, fp_pairing pairing, fp_matrix cosine, fp_matrix sine, int64_t heads,
						 fp_matrix X);
fp_status fp_cuda_soft_cap(fp_backend *be, float cap, fp_matrix X);
fp_status fp_cuda_soft_cap_backward(fp_backend *be, float cap, fp_matrix Y, fp_matrix dX);
fp_status fp_cuda_mask_nonzero(fp_backend *be, fp_matrix X, fp_matrix mask);
fp_status fp_cuda_apply_mask(fp_backend *be, fp_matrix mask, fp_matrix X);
/* cuda_gather.cu */
fp_status fp_cuda_gather_rows(fp_backend *be, const int32_t *rows, fp_matrix scale, fp_matrix X, fp_matrix Y);
fp_status fp_cuda_add_rows(fp_backend *be, const int32_t *rows, int64_t count, fp_matrix X, float beta, fp_matrix Y);
/* cuda_reduce.cu */
fp_status fp_cuda_dot(fp_backend *be, fp_matrix X, fp_matrix Y, double *out);
fp_status fp_cuda_row_dot(fp_backend *be, fp_matrix X, fp_matrix Y, fp_matrix out);
fp_status fp_cuda_max_abs(fp_backend *be, fp_matrix X, double *out);
fp_status fp_cuda_finite(fp_backend *be, fp_matrix X, int *out);
fp_status fp_cuda_mask_distance(fp_backend *be, fp_matrix a, fp_matrix b, int64_t *out);
/* cuda_fista.cu */
fp_status fp_cuda_fista_step(fp_backend *be, fp_momentum rule, float step, float threshold, float momentum, fp_matrix G,
							 fp_matrix Y, fp_matrix P, double *change);
/* cuda_delta.cu */
fp_status fp_cuda_split_delta(fp_backend *be, fp_matrix V, fp_matrix W, fp_matrix D);
fp_status fp_cuda_join_delta(fp_backend *be, fp_matrix W, fp_matrix D, fp_matrix V);
fp_status fp_cuda_fista_step_delta(fp_backend *be, const fp_delta_step *parameters, fp_matrix G, double *change,
								   double *bound);
fp_status fp_cuda_round_delta(fp_backend *be, const fp_pattern *pattern, fp_matrix W, fp_matrix D, fp_matrix out);
fp_status fp_cuda_delta_sum(fp_backend *be, fp_matrix D, fp_matrix G, fp_matrix R, double *out);
/* cuda_cg.cu */
fp_status fp_cuda_cg_step(fp_backend *be, const fp_cg *cg, fp_matrix q);
/* cuda_support.cu */
fp_status fp_cuda_support_step(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							   fp_matrix T);
/* cuda_rows.cu */
fp_status fp_cuda_norm(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, fp_matrix bias, float epsilon,
					   fp_matrix Y);
fp_status fp_cuda_cross_entropy(fp_backend *be, fp_matrix logits, const int32_t *targets, fp_matrix out,
								int32_t *argmax);
fp_status fp_cuda_divergence(fp_backend *be, fp_matrix P, fp_matrix Q, fp_matrix out);
fp_status fp_cuda_cross_entropy_backward(fp_backend *be, const int32_t *targets, fp_matrix logits);
/* cuda_attention.cu */
fp_status fp_cuda_attention(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
							fp_matrix out);
/* cuda_attention_backward.cu */
fp_status fp_cuda_attention_backward(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									 fp_matrix V, fp_matrix out, fp_matrix dout, fp_matrix dQ, fp_matrix dK,
									 fp_matrix dV);
/* cuda_gradients.cu */
fp_status fp_cuda_norm_backward(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, float epsilon,
								fp_matrix dY, fp_matrix dX);
fp_status fp_cuda_activate_backward(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix dY, fp_matrix dX);
fp_status fp_cuda_activate_gated_backward(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix dY,
										  fp_matrix dG, fp_matrix dU);
fp_status fp_cuda_column_sums(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
fp_status fp_cuda_column_squares(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
fp_status fp_cuda_difference(fp_backend *be, float scale, fp_matrix Y, fp_matrix T, fp_matrix D, double *squares);
/* cuda_adam.cu */
fp_status fp_cuda_adam_step(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W);
/* cuda_select.cu */
fp_status fp_cuda_mask_smallest(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
fp_status fp_cuda_mask_rows(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
/* cuda_decode_pack.cu */
fp_status fp_cuda_hold(fp_backend *be, fp_held *out, fp_matrix W, fp_dtype dtype, fp_held_form form);
/* cuda_decode.cu */
fp_status fp_cuda_expand(fp_backend *be, const fp_held *W, fp_matrix out);
fp_status fp_cuda_multiply_held(fp_backend *be, fp_matrix X, int count, const fp_held *const *W, bool add,
								const fp_matrix *Y);
fp_status fp_cuda_read_time(fp_backend *be, int64_t bytes, double *seconds);
/* cuda_grid.cu */
fp_status fp_cuda_grid_fit(fp_backend *be, fp_matrix weight, int count, float step, fp_matrix V, const fp_grid *grid);
fp_status fp_cuda_grid_round(fp_backend *be, const fp_grid *grid, fp_matrix X, fp_matrix V);
fp_status fp_cuda_grid_descend(fp_backend *be, const fp_grid *grid, fp_matrix A, fp_matrix X, fp_matrix G, fp_matrix V,
							   fp_matrix D);
fp_status fp_cuda_grid_rescale(fp_backend *be, const fp_grid *grid, fp_matrix P, fp_matrix G, fp_matrix V, fp_matrix D);
/* cuda_sparsegpt.cu */
fp_status fp_cuda_sparsegpt_sweep(fp_backend *be, fp_matrix U, const fp_pattern *pattern, const fp_grid *grid,
								  int64_t block, fp_matrix W, fp_matrix mask);

#endif
