/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_inverse.cu: inverses of symmetric positive definite matrices, by products.
 *
 * For A = FᵀF with an upper F, the inverse R = F⁻¹ is computed by halves:
 *
 *     A  = [A₁ B; Bᵀ C]
 *     R₁ = F₁⁻¹, from A₁
 *     W  = R₁ᵀB
 *     R₂ = F₂⁻¹, from C − WᵀW
 *     R  = [R₁ −R₁WR₂; 0 R₂]
 *
 * Then A⁻¹ = RRᵀ. Everything but blocks of LEAF rows is products, where a factorisation by panels leaves most of the
 * device idle. A₁⁻¹B in place of W would save products, but errors grow with the condition number of R₁ here and with
 * its square there.
 */
#include "backend/cuda/cuda_backend.cuh"

enum { LEAF = FP_INVERSE_LEAF, SIDE = 16, OWN = LEAF / SIDE, SMALLEST_PANEL = 1024 };

/* --- a leaf ------------------------------------------------------------------------------------------------------- */

/*
 * One block of SIDE × SIDE threads; a thread holds rows x + SIDE·r and columns y + SIDE·c of an array of LEAF × LEAF.
 * Elimination in place: after step k, columns up to k of the rows below k hold L⁻¹, which has a unit diagonal, and the
 * rest holds what is left of A. In the end the diagonal is D of A = LDLᵀ, and R = L⁻ᵀD^-½.
 * Rows from n on are those of the identity. *bad ← the order of the first leading minor that is not positive, if it is
 * less than *bad; the leaf begins at row `first` of the whole matrix.
 */
__global__ static void __launch_bounds__(SIDE *SIDE)
	leaf_kernel(float *a, int64_t stride, int n, int64_t first, int *bad)
{
	__shared__ float rows[2][LEAF], columns[2][LEAF];
	int x = threadIdx.x, y = threadIdx.y;
	float own[OWN][OWN];
#pragma unroll
	for (int r = 0; r < OWN; r++)
#pragma unroll
		for (int c = 0; c < OWN; c++) {
			int i = x + SIDE * r, j = y + SIDE * c;
			bool inside = i < n && j < n;
			own[r][c] = inside ? a[(int64_t)min(i, j) * stride + max(i, j)] : i == j ? 1.0f : 0.0f;
		}
#pragma unroll
	for (int kr = 0; kr < OWN; kr++) /* static, so that own[][] stays in registers */
		for (int ks = 0; ks < SIDE; ks++) {
			int k = SIDE * kr + ks;
			float *row = rows[k % 2], *column = columns[k % 2];
			if (x == ks)
#pragma unroll
				for (int c = 0; c < OWN; c++)
					row[y + SIDE * c] = own[kr][c];
			if (y == ks)
#pragma unroll
				for (int r = 0; r < OWN; r++)
					column[x + SIDE * r] = own[r][kr];
			__syncthreads(); /* two copies in turn: one barrier a step is enough */
			float pivot = row[k], scale = 1.0f / pivot, across[OWN];
			if (x == 0 && y == 0 && !(pivot > 0.0f))
				atomicMin(bad, (int)first + k + 1);
#pragma unroll
			for (int c = 0; c < OWN; c++)
				across[c] = c == kr && y == ks ? 1.0f : row[y + SIDE * c];
#pragma unroll
			for (int r = kr; r < OWN; r++) {
				float factor = column[x + SIDE * r] * scale;
				if (r > kr || x > ks) {
					if (y == ks)
						own[r][kr] = 0.0f;
#pragma unroll
					for (int c = 0; c < OWN; c++)
						own[r][c] -= factor * across[c];
				}
			}
		}
	__syncthreads();
	if (x == y)
#pragma unroll
		for (int r = 0; r < OWN; r++)
			rows[0][x + SIDE * r] = 1.0f / sqrtf(own[r][r]);
	__syncthreads();
#pragma unroll
	for (int r = 0; r < OWN; r++)
#pragma unroll
		for (int c = 0; c < OWN; c++) {
			int i = x + SIDE * r, j = y + SIDE * c; /* R[j, i] from row i of L⁻¹ */
			if (i < n && j < n)
				a[(int64_t)j * stride + i] = j > i ? 0.0f : (j == i ? 1.0f : own[r][c]) * rows[0][i];
		}
}

/* --- halves ------------------------------------------------------------------------------------------------------- */

static fp_matrix block(fp_matrix m, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
	return fp_matrix_cols(fp_matrix_rows(m, row, rows), col, cols);
}

/* A product with a triangle is computed in panels that leave out its zeros. With more panels fewer zeros are multiplied,
 * but each product must be large enough to keep the device busy. */
static int64_t panel_of(int64_t n)
{
	int64_t panel = fp_larger((n + 3) / 4, SMALLEST_PANEL);
	return (panel + LEAF - 1) / LEAF * LEAF;
}

/* W ← RᵀB */
static fp_status multiply_by_transpose(fp_backend *be, fp_matrix R, fp_matrix B, fp_matrix W)
{
	int64_t n = R.rows, panel = panel_of(n);
	for (int64_t i = 0; i < n; i += panel) {
		int64_t rows = fp_smaller(panel, n - i);
		FP_OR_RETURN(fp_cuda_gemm(be, 1.0f, block(R, 0, i, i + rows, rows), FP_TRANSPOSED,
								  fp_matrix_rows(B, 0, i + rows), FP_PLAIN, 0.0f, fp_matrix_rows(W, i, rows)));
	}
	return FP_OK;
}

/* Upper triangle of C ← C − WᵀW */
static fp_status subtract_gram(fp_backend *be, fp_matrix W, fp_matrix C)
{
	int64_t n = C.rows, panel = panel_of(n);
	for (int64_t i = 0; i < n; i += panel) {
		int64_t rows = fp_smaller(panel, n - i);
		FP_OR_RETURN(fp_cuda_gemm(be, -1.0f, fp_matrix_cols(W, i, rows), FP_TRANSPOSED, fp_matrix_cols(W, i, n - i),
								  FP_PLAIN, 1.0f, block(C, i, i, rows, n - i)));
	}
	return FP_OK;
}

/* V ← WR */
static fp_status multiply_right(fp_backend *be, fp_matrix W, fp_matrix R, fp_matrix V)
{
	int64_t n = R.rows, panel = panel_of(n);
	for (int64_t j = 0; j < n; j += panel) {
		int64_t cols = fp_smaller(panel, n - j);
		FP_OR_RETURN(fp_cuda_gemm(be, 1.0f, fp_matrix_cols(W, 0, j + cols), FP_PLAIN, block(R, 0, j, j + cols, cols),
								  FP_PLAIN, 0.0f, fp_matrix_cols(V, j, cols)));
	}
	return FP_OK;
}

/* W ← −RV */
static fp_status multiply_left(fp_backend *be, fp_matrix R, fp_matrix V, fp_matrix W)
{
	int64_t n = R.rows, panel = panel_of(n);
	for (int64_t i = 0; i < n; i += panel) {
		int64_t rows = fp_smaller(panel, n - i);
		FP_OR_RETURN(fp_cuda_gemm(be, -1.0f, block(R, i, i, rows, n - i), FP_PLAIN, fp_matrix_rows(V, i, n - i),
								  FP_PLAIN, 0.0f, fp_matrix_rows(W, i, rows)));
	}
	return FP_OK;
}

/* A ← R, from the upper triangle of A, zero below the diagonal. A begins at row `first` of the whole matrix; space is a
 * row of floats. A minor that is not positive is noted in *bad; the work goes on, because to look costs a wait. */
static fp_status factor(fp_backend *be, fp_matrix A, int64_t first, fp_matrix space, int *bad)
{
	int64_t n = A.rows, half = (n / 2 + LEAF - 1) / LEAF * LEAF, rest = n - half;
	if (n <= LEAF) {
		leaf_kernel<<<1, dim3(SIDE, SIDE), 0, fp_cuda_stream(be)>>>(fp_cuda_floats(A), A.stride, (int)n, first, bad);
		FP_LAUNCHED(be);
		return FP_OK;
	}
	fp_matrix upper = block(A, 0, 0, half, half), corner = block(A, 0, half, half, rest);
	fp_matrix lower = block(A, half, half, rest, rest), W = fp_matrix_reshape(space, half, rest);
	FP_OR_RETURN(factor(be, upper, first, space, bad));
	FP_OR_RETURN(multiply_by_transpose(be, upper, corner, W));
	FP_OR_RETURN(subtract_gram(be, W, lower));
	FP_OR_RETURN(factor(be, lower, first + half, fp_matrix_cols(space, half * rest, space.cols - half * rest), bad));
	FP_OR_RETURN(multiply_right(be, W, lower, corner));
	FP_OR_RETURN(multiply_left(be, upper, corner, W));
	FP_OR_RETURN(fp_cuda_copy(be, corner, W));
	return fp_cuda_fill(be, block(A, half, 0, rest, half), 0.0f);
}

/* A ← R, as above; space is allocated. */
static fp_status factor_all(fp_backend *be, fp_matrix A, fp_cuda_scratch *space, int64_t *refused)
{
	const int none = INT32_MAX;
	int bad = none, *noted = (int *)fp_cuda_state_of(be)->device_numbers;
	FP_OR_RETURN(space->take(be, fp_inverse_bytes(be, A.rows)));
	FP_CUDA(be, cudaMemcpyAsync(noted, &none, sizeof none, cudaMemcpyHostToDevice, fp_cuda_stream(be)));
	int64_t floats = space->buffer->bytes / (int64_t)sizeof(float);
	FP_OR_RETURN(factor(be, A, 0, fp_matrix{space->buffer, 0, 1, floats, floats, FP_F32}, noted));
	FP_OR_RETURN(fp_cuda_fetch(be, &bad, noted, sizeof bad));
	*refused = bad == none ? 0 : bad;
	return FP_OK;
}

fp_status fp_cuda_invert_factor(fp_backend *be, fp_matrix A, int64_t *refused)
{
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_cuda_scratch space;
	return factor_all(be, A, &space, refused);
}

/*
 * Upper triangle of R ← that of RRᵀ:
 *     (RRᵀ)[i, j] = Σ_{k ≥ j} R[i, k] R[j, k],  j ≥ i
 * A panel of columns needs no column before it. Panels are therefore overwritten from the first to the last.
 */
static fp_status multiply_by_own_transpose(fp_backend *be, fp_matrix R, fp_matrix space)
{
	int64_t n = R.rows, panel = fp_smaller(panel_of(n), n / 3 / LEAF * LEAF); /* space has n²/3 + LEAF·n entries */
	panel = fp_larger(panel, LEAF);
	for (int64_t j = 0; j < n; j += panel) {
		int64_t cols = fp_smaller(panel, n - j), rows = j + cols;
		fp_matrix product = fp_matrix_reshape(space, rows, cols);
		FP_OR_RETURN(fp_cuda_gemm(be, 1.0f, block(R, 0, j, rows, n - j), FP_PLAIN, block(R, j, j, cols, n - j),
								  FP_TRANSPOSED, 0.0f, product));
		FP_OR_RETURN(fp_cuda_copy(be, block(R, 0, j, rows, cols), product));
	}
	return FP_OK;
}

fp_status fp_cuda_inverse(fp_backend *be, fp_matrix A, int64_t *refused)
{
	FP_REQUIRE(be, fp_cuda_is_f32(A) && A.rows == A.cols && A.rows <= INT32_MAX);
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_cuda_scratch space;
	*refused = 0;
	if (A.rows == 0)
		return FP_OK;
	FP_OR_RETURN(factor_all(be, A, &space, refused));
	if (*refused != 0)
		return FP_OK;
	int64_t floats = space.buffer->bytes / (int64_t)sizeof(float);
	FP_OR_RETURN(multiply_by_own_transpose(be, A, fp_matrix{space.buffer, 0, 1, floats, floats, FP_F32}));
	return fp_cuda_mirror(be, A);
}
