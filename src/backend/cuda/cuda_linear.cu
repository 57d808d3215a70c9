/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_linear.cu: matrix products.
 *
 * cuBLAS is column-major: our row-major C = op(A) op(B) is its Cᵀ = op(B)ᵀ op(A)ᵀ, so the operands are swapped and the
 * transpose flags stay. be->use and be->precision select the arithmetic. Sums are in float in every case.
 *   float    operands in single precision
 *   tf32     operands truncated to 11 bits by the tensor cores
 *   bf16     operands rounded to 8 bits first
 *   half     operands that are F16 already: 11 bits, as tf32, at the speed of bf16
 *   split    each operand is the sum of two bf16 numbers, high and low: 16 bits. Three of the four partial products
 *            (low·low is dropped) are computed as one longer product:
 *                C = [Aʰ Aʰ Aˡ]·[Bʰ; Bˡ; Bʰ]
 */
#include "backend/cuda/cuda_backend.cuh"

using product = fp_cuda_product;

/* Rows: be->use; columns: be->precision. */
product fp_cuda_product_of(const fp_backend *be)
{
	static const product table[FP_USE_COUNT][FP_PRECISION_COUNT] = {
		/* exact      */ {PRODUCT_FLOAT, PRODUCT_FLOAT, PRODUCT_FLOAT, PRODUCT_FLOAT},
		/* refinement */ {PRODUCT_FLOAT, PRODUCT_SPLIT, PRODUCT_SPLIT, PRODUCT_SPLIT},
		/* activation */ {PRODUCT_FLOAT, PRODUCT_SPLIT, PRODUCT_TF32, PRODUCT_BF16},
		/* iteration  */ {PRODUCT_FLOAT, PRODUCT_SPLIT, PRODUCT_TF32, PRODUCT_TF32},
	};
	return table[be->use][be->precision];
}

/* BLAS requires a leading dimension of at least max(1, cols), also for empty matrices and single rows. */
static int64_t leading(fp_matrix m)
{
	int64_t stride = m.stride > m.cols ? m.stride : m.cols;
	return stride > 0 ? stride : 1;
}

/* An operand of cuBLAS. */
struct operand {
	const void *data;
	int64_t stride;
	cudaDataType_t type;
};

static operand operand_of(fp_matrix m)
{
	cudaDataType_t type = m.dtype == FP_F32 ? CUDA_R_32F : m.dtype == FP_F16 ? CUDA_R_16F : CUDA_R_16BF;
	return operand{(char *)m.buffer->data + m.offset * fp_dtype_size(m.dtype), leading(m), type};
}

static fp_status multiply(fp_backend *be, product how, int64_t m, int64_t n, int64_t k, float alpha, operand A,
						  fp_transpose ta, operand B, fp_transpose tb, float beta, fp_matrix C)
{
	cublasComputeType_t compute = how == PRODUCT_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	operand result = operand_of(C);
	FP_BLAS(be, cublasGemmEx_64(fp_cuda_state_of(be)->blas, tb == FP_PLAIN ? CUBLAS_OP_N : CUBLAS_OP_T,
								ta == FP_PLAIN ? CUBLAS_OP_N : CUBLAS_OP_T, n, m, k, &alpha, B.data, B.type, B.stride,
								A.data, A.type, A.stride, &beta, (void *)(uintptr_t)result.data, result.type,
								result.stride, compute, CUBLAS_GEMM_DEFAULT));
	return FP_OK;
}

/* --- bf16 --------------------------------------------------------------------------------------------------------- */

/* Four entries at a time where alignment allows, as it does for the operands of large products. */
fp_status fp_cuda_round(fp_backend *be, fp_matrix m, __nv_bfloat16 *out)
{
	const float *x = fp_cuda_floats(m);
	int64_t stride = m.stride, cols = m.cols;
	bool even = cols % 4 == 0 && stride % 4 == 0 && (uintptr_t)x % 16 == 0 && (uintptr_t)out % 8 == 0;
	if (!even)
		return fp_cuda_map(be, m.rows, m.cols, fp_cuda_is_contiguous(m), [=] __device__(int64_t i, int64_t j) {
			out[i * cols + j] = __float2bfloat16_rn(x[i * stride + j]);
		});
	return fp_cuda_map(be, m.rows, m.cols / 4, fp_cuda_is_contiguous(m), [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store4(out + i * cols + 4 * j, fp_cuda_load4(x + i * stride + 4 * j));
	});
}

/* Writes three copies of the operand along k: copy p holds the low parts where bit p of `pattern` is set, else the high
 * ones. k runs along columns (wide) or rows. */
static fp_status split_to_bf16(fp_backend *be, fp_matrix m, bool wide, int pattern, __nv_bfloat16 *out)
{
	const float *x = fp_cuda_floats(m);
	int64_t stride = m.stride, cols = m.cols, size = m.rows * m.cols;
	return fp_cuda_map(be, m.rows, m.cols, false, [=] __device__(int64_t i, int64_t j) {
		float value = x[i * stride + j];
		__nv_bfloat16 high = __float2bfloat16_rn(value);
		__nv_bfloat16 low = __float2bfloat16_rn(value - __bfloat162float(high));
		for (int p = 0; p < 3; p++) {
			int64_t at = wide ? (i * 3 + p) * cols + j : p * size + i * cols + j;
			out[at] = pattern >> p & 1 ? low : high;
		}
	});
}

/* *out ← the operand in bf16: m itself if it is bf16, else rounded or split (by `pattern`) in `space`. */
static fp_status narrow(fp_backend *be, product how, fp_matrix m, bool wide, int pattern, fp_cuda_scratch *space,
						operand *out)
{
	int times = how == PRODUCT_SPLIT ? 3 : 1;
	if (m.dtype == FP_BF16) {
		*out = operand_of(m);
		return FP_OK;
	}
	FP_OR_RETURN(space->take(be, times * fp_matrix_size(m) * 2));
	*out = operand{space->as<void>(), wide ? times * m.cols : m.cols, CUDA_R_16BF};
	if (how == PRODUCT_SPLIT)
		return split_to_bf16(be, m, wide, pattern, space->as<__nv_bfloat16>());
	return fp_cuda_copy(be, fp_matrix{space->buffer, 0, m.rows, m.cols, m.cols, FP_BF16}, m);
}

/* The product of bf16 operands. A large right operand that has to be split (a Gram matrix) is split one panel at a time
 * to save memory; the result is the same. */
static fp_status multiply_narrow(fp_backend *be, product how, int64_t m, int64_t n, int64_t k, float alpha, fp_matrix A,
								 fp_transpose ta, fp_matrix B, fp_transpose tb, float beta, fp_matrix C)
{
	fp_cuda_scratch a, b;
	operand left, right;
	bool a_wide = ta == FP_PLAIN, b_wide = tb == FP_TRANSPOSED; /* k runs along the columns */
	FP_OR_RETURN(narrow(be, how, A, a_wide, 4, &a, &left));
	if (how != PRODUCT_SPLIT || n * k * 6 <= FP_PANEL_BYTES) {
		FP_OR_RETURN(narrow(be, how, B, b_wide, 2, &b, &right));
		return multiply(be, how, m, n, how == PRODUCT_SPLIT ? 3 * k : k, alpha, left, ta, right, tb, beta, C);
	}
	int64_t panel = FP_PANEL_BYTES / (k * 6) / 256 * 256;
	panel = panel > 0 ? panel : 256;
	for (int64_t j = 0; j < n; j += panel) {
		int64_t cols = fp_smaller(panel, n - j);
		fp_cuda_scratch space;
		fp_matrix part = b_wide ? fp_matrix_rows(B, j, cols) : fp_matrix_cols(B, j, cols);
		FP_OR_RETURN(narrow(be, how, part, b_wide, 2, &space, &right));
		FP_OR_RETURN(multiply(be, how, m, cols, 3 * k, alpha, left, ta, right, tb, beta, fp_matrix_cols(C, j, cols)));
	}
	return FP_OK;
}

static fp_status scale_all(fp_backend *be, float beta, fp_matrix C)
{
	return beta == 0.0f ? fp_cuda_fill(be, C, 0.0f) : fp_cuda_axpby(be, 0.0f, C, beta, C);
}

/* A single row is limited by memory bandwidth; gemv reads B at full speed. */
static fp_status multiply_row(fp_backend *be, float alpha, fp_matrix A, fp_matrix B, fp_transpose tb, float beta,
							  fp_matrix C)
{
	FP_BLAS(be,
			cublasSgemv_64(fp_cuda_state_of(be)->blas, tb == FP_PLAIN ? CUBLAS_OP_N : CUBLAS_OP_T, B.cols, B.rows,
						   &alpha, fp_cuda_floats(B), leading(B), fp_cuda_floats(A), 1, &beta, fp_cuda_floats(C), 1));
	return FP_OK;
}

fp_status fp_cuda_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
					   float beta, fp_matrix C)
{
	bool rounded = A.dtype != FP_F32 || B.dtype != FP_F32; /* the caller has rounded an operand */
	bool halves = A.dtype == FP_F16 && B.dtype == FP_F16;
	FP_REQUIRE(be, fp_cuda_is_weight(A) && fp_cuda_is_weight(B));
	FP_REQUIRE(be, fp_cuda_is_f32(C) || (rounded && fp_cuda_is_view(C, halves ? FP_F16 : FP_BF16)));
	int64_t m = ta == FP_PLAIN ? A.rows : A.cols, k = ta == FP_PLAIN ? A.cols : A.rows;
	int64_t k2 = tb == FP_PLAIN ? B.rows : B.cols, n = tb == FP_PLAIN ? B.cols : B.rows;
	FP_REQUIRE(be, k == k2 && C.rows == m && C.cols == n);
	if (m == 0 || n == 0)
		return FP_OK;
	FP_REQUIRE(be, k > 0 || fp_cuda_is_f32(C));
	if (k == 0)
		return scale_all(be, beta, C);
	product how = rounded ? PRODUCT_BF16 : fp_cuda_product_of(be);
	if (!halves && (how == PRODUCT_BF16 || how == PRODUCT_SPLIT))
		return multiply_narrow(be, how, m, n, k, alpha, A, ta, B, tb, beta, C);
	if (m == 1 && ta == FP_PLAIN && how == PRODUCT_FLOAT)
		return multiply_row(be, alpha, A, B, tb, beta, C);
	return multiply(be, how, m, n, k, alpha, operand_of(A), ta, operand_of(B), tb, beta, C);
}

/* The block at the end of a row of blocks. */
static fp_matrix last_block(fp_matrix m, int64_t count, int64_t step)
{
	m.offset += (count - 1) * step;
	return m;
}

fp_status fp_cuda_gemm_blocks(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							  float beta, fp_matrix C, fp_blocks blocks)
{
	int64_t m = ta == FP_PLAIN ? A.rows : A.cols, k = ta == FP_PLAIN ? A.cols : A.rows;
	int64_t k2 = tb == FP_PLAIN ? B.rows : B.cols, n = tb == FP_PLAIN ? B.cols : B.rows;
	FP_REQUIRE(be, blocks.count >= 0 && blocks.a >= 0 && blocks.b >= 0 && blocks.c >= 0);
	if (blocks.count == 0 || m == 0 || n == 0)
		return FP_OK;
	FP_REQUIRE(be, k == k2 && k > 0 && C.rows == m && C.cols == n);
	FP_REQUIRE(be, fp_cuda_is_f32(A) && fp_cuda_is_f32(last_block(A, blocks.count, blocks.a)));
	FP_REQUIRE(be, fp_cuda_is_f32(B) && fp_cuda_is_f32(last_block(B, blocks.count, blocks.b)));
	FP_REQUIRE(be, fp_cuda_is_f32(C) && fp_cuda_is_f32(last_block(C, blocks.count, blocks.c)));
	product how = fp_cuda_product_of(be);
	cublasComputeType_t compute =
		how == PRODUCT_FLOAT || how == PRODUCT_SPLIT ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
	FP_BLAS(be, cublasGemmStridedBatchedEx_64(fp_cuda_state_of(be)->blas, tb == FP_PLAIN ? CUBLAS_OP_N : CUBLAS_OP_T,
											  ta == FP_PLAIN ? CUBLAS_OP_N : CUBLAS_OP_T, n, m, k, &alpha,
											  fp_cuda_floats(B), CUDA_R_32F, leading(B), blocks.b, fp_cuda_floats(A),
											  CUDA_R_32F, leading(A), blocks.a, &beta, fp_cuda_floats(C), CUDA_R_32F,
											  leading(C), blocks.c, blocks.count, compute, CUBLAS_GEMM_DEFAULT));
	return FP_OK;
}

/* --- Gram --------------------------------------------------------------------------------------------------------- */

/* Computes only the upper triangle, in P panels of rows: (P + 1)/2P of the full product. */
static fp_status gram_panels(fp_backend *be, product how, const void *data, cudaDataType_t type, int64_t size,
							 int64_t stride, int64_t k, float beta, fp_matrix A, const void *right)
{
	int64_t n = A.rows, panel = fp_symmetric_strip(n);
	for (int64_t i = 0; i < n; i += panel) {
		int64_t rows = fp_smaller(panel, n - i);
		operand left = {(const char *)data + i * size, stride, type};
		operand rest = {(const char *)right + i * size, stride, type};
		fp_matrix part = fp_matrix{A.buffer, A.offset + i * A.stride + i, rows, n - i, A.stride, FP_F32};
		FP_OR_RETURN(multiply(be, how, rows, n - i, k, 1.0f, left, FP_TRANSPOSED, rest, FP_PLAIN, beta, part));
	}
	return FP_OK;
}

/* out ← [Xʰ; Xʰ; Xˡ; Xʰ]: the first three are the left operand of XᵀX, the last three the right one. */
static fp_status split_for_gram(fp_backend *be, fp_matrix X, __nv_bfloat16 *out)
{
	const float *x = fp_cuda_floats(X);
	int64_t stride = X.stride, cols = X.cols, size = fp_matrix_size(X);
	auto low = [] __device__(float value) { return value - __bfloat162float(__float2bfloat16_rn(value)); };
	if (fp_cuda_in_fours(X) && size % 4 == 0)
		return fp_cuda_map(be, X.rows, cols / 4, fp_cuda_is_contiguous(X), [=] __device__(int64_t i, int64_t j) {
			float4 value = fp_cuda_load4(x + i * stride + 4 * j);
			float4 rest = {low(value.x), low(value.y), low(value.z), low(value.w)};
			__nv_bfloat16 *to = out + i * cols + 4 * j;
			fp_cuda_store4(to, value);
			fp_cuda_store4(to + size, value);
			fp_cuda_store4(to + 2 * size, rest);
			fp_cuda_store4(to + 3 * size, value);
		});
	return fp_cuda_map(be, X.rows, cols, fp_cuda_is_contiguous(X), [=] __device__(int64_t i, int64_t j) {
		float value = x[i * stride + j];
		__nv_bfloat16 *to = out + i * cols + j;
		fp_cuda_store(to, value);
		fp_cuda_store(to + size, value);
		fp_cuda_store(to + 2 * size, low(value));
		fp_cuda_store(to + 3 * size, value);
	});
}

fp_status fp_cuda_gram(fp_backend *be, fp_matrix X, float beta, fp_matrix A)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && fp_cuda_is_f32(A) && A.rows == X.cols && A.cols == X.cols);
	if (X.cols == 0)
		return FP_OK;
	if (X.rows == 0)
		return scale_all(be, beta, A);
	if (X.dtype == FP_BF16) {
		const void *data = fp_cuda_at<__nv_bfloat16>(X);
		return gram_panels(be, PRODUCT_BF16, data, CUDA_R_16BF, 2, leading(X), X.rows, beta, A, data);
	}
	product how = fp_cuda_product_of(be);
	if (how == PRODUCT_FLOAT || how == PRODUCT_TF32)
		return gram_panels(be, how, fp_cuda_floats(X), CUDA_R_32F, 4, leading(X), X.rows, beta, A, fp_cuda_floats(X));
	int64_t size = fp_matrix_size(X);
	fp_cuda_scratch space;
	FP_OR_RETURN(space.take(be, (how == PRODUCT_SPLIT ? 4 : 1) * size * 2));
	__nv_bfloat16 *left = space.as<__nv_bfloat16>(), *right = left;
	if (how == PRODUCT_BF16)
		FP_OR_RETURN(fp_cuda_round(be, X, left));
	else
		FP_OR_RETURN(split_for_gram(be, X, left));
	right += how == PRODUCT_SPLIT ? size : 0;
	return gram_panels(be, how, left, CUDA_R_16BF, 2, X.cols, (how == PRODUCT_SPLIT ? 3 : 1) * X.rows, beta, A, right);
}

/* --- mirror ------------------------------------------------------------------------------------------------------- */

enum { TILE = 32 };

/* Block (x, y) with x ≥ y copies tile (y, x) of the upper triangle, transposed, to tile (x, y). */
__global__ static void mirror_kernel(float *a, int64_t n, int64_t stride)
{
	__shared__ float tile[TILE][TILE + 1];
	if (blockIdx.x < blockIdx.y)
		return;
	int64_t i0 = (int64_t)blockIdx.y * TILE, j0 = (int64_t)blockIdx.x * TILE;
	for (int r = threadIdx.y; r < TILE; r += blockDim.y)
		if (i0 + r < n && j0 + threadIdx.x < n)
			tile[r][threadIdx.x] = a[(i0 + r) * stride + j0 + threadIdx.x];
	__syncthreads();
	for (int r = threadIdx.y; r < TILE; r += blockDim.y) {
		int64_t row = j0 + r, col = i0 + threadIdx.x;
		if (row < n && col < n && col < row)
			a[row * stride + col] = tile[threadIdx.x][r];
	}
}

fp_status fp_cuda_mirror(fp_backend *be, fp_matrix A)
{
	FP_REQUIRE(be, fp_cuda_is_f32(A) && A.rows == A.cols);
	int64_t tiles = (A.rows + TILE - 1) / TILE;
	FP_REQUIRE(be, tiles <= 65535);
	if (tiles == 0)
		return FP_OK;
	mirror_kernel<<<dim3((unsigned)tiles, (unsigned)tiles), dim3(TILE, 8), 0, fp_cuda_stream(be)>>>(fp_cuda_floats(A),
																									A.rows, A.stride);
	FP_LAUNCHED(be);
	return FP_OK;
}
