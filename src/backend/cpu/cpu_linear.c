/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_linear.c: products, Gram matrices, inverses and eigenvectors by OpenBLAS and its LAPACK; products that may be
 * rounded go to an engine for BF16 (cpu_bf16.h), if the processor has one.
 *
 * LAPACK is column-major. A row-major symmetric matrix is its own transpose there, its upper triangle is LAPACK's "L",
 * and LAPACK's factor A = L Lᵀ is A = UᵀU with U upper in our rows.
 */
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/cpu_blas.h"
#include "base/memory.h"
#include "base/numbers.h"
#include <string.h>

/* LAPACK by its Fortran names: Debian's OpenBLAS has no LAPACKE. The last arguments are the lengths of the character
 * arguments, by gfortran's calling convention. */
void spotrf_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t uplo_length);
void spotri_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t uplo_length);
void ssyevd_(const char *jobz, const char *uplo, const int *n, float *a, const int *lda, float *w, float *work,
			 const int *lwork, int *iwork, const int *liwork, int *info, size_t jobz_length, size_t uplo_length);

static bool fits_blas(fp_matrix m)
{
	return m.rows <= INT32_MAX && m.cols <= INT32_MAX && m.stride <= INT32_MAX;
}

/* BLAS requires a leading dimension of at least one, for empty matrices too. */
static int leading(fp_matrix m)
{
	int64_t stride = m.stride > m.cols ? m.stride : m.cols;
	return stride > 0 ? (int)stride : 1;
}

static void scale_all(fp_backend *be, float beta, fp_matrix C)
{
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	for (int64_t i = 0; i < C.rows; i++) {
		float *row = fp_cpu_floats(C) + i * C.stride;
		if (beta == 0.0f)
			memset(row, 0, (size_t)C.cols * sizeof *row);
		else
			loops->scale(row, row, C.cols, beta);
	}
}

/*
 * Threads for a product of so many operations: one for every four million, which take one core about 40 µs. With less
 * work a thread costs more than it saves, on a busy machine many times more. The number depends on the shapes only, so
 * results do not change with the load.
 */
static int threads_for(const fp_backend *be, double operations)
{
	double useful = operations / 4e6;
	return useful < be->threads ? (useful < 1 ? 1 : (int)useful) : be->threads;
}

/* A product by the engine for BF16. */
static fp_status multiply_rounded(fp_backend *be, fp_cpu_arithmetic how, fp_cpu_product *product)
{
	fp_cpu_bf16 *bf16 = &((fp_cpu_state *)be->state)->bf16;
	double operations = 2.0 * (double)product->m * (double)product->n * (double)product->k;
	product->split = how == FP_CPU_SPLIT;
	product->threads = threads_for(be, operations / bf16->engine->speed);
	return bf16->engine->multiply(bf16, be->ctx, product);
}

/* c ← α aB + βc for a row a of k entries: every row of B is read once, in order. B is cut into parts by the shape only, so
 * that the sums do not depend on the number of threads. sgemm takes three times as long. */
static fp_status multiply_row(fp_backend *be, float alpha, const float *a, fp_matrix B, float beta, float *c)
{
	enum { FEWEST = 64 }; /* rows of a part */
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	int64_t n = B.cols, parts = fp_larger(1, fp_smaller(FP_CPU_SUMS, B.rows / FEWEST));
	float *sums = NULL;
	fp_status status = fp_allocate_undefined(be->ctx, (void **)&sums, parts * n * (int64_t)sizeof *sums);
	if (status != FP_OK)
		return status;
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(B) >= FP_CPU_PARALLEL_FROM)
	for (int64_t part = 0; part < parts; part++) {
		int64_t begin = B.rows * part / parts, end = B.rows * (part + 1) / parts;
		for (int64_t i = begin; i < end; i++)
			loops->axpby(sums + part * n, fp_cpu_floats(B) + i * B.stride, n, a[i], i > begin ? 1.0f : 0.0f);
	}
	for (int64_t part = 0; part < parts; part++)
		loops->axpby(c, sums + part * n, n, alpha, part > 0 ? 1.0f : beta);
	fp_free(sums);
	return FP_OK;
}

static void multiply_rows(float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb, float beta,
						  fp_matrix C, int64_t first, int64_t rows)
{
	fp_matrix own = ta == FP_PLAIN ? fp_matrix_rows(A, first, rows) : fp_matrix_cols(A, first, rows);
	cblas_sgemm(CblasRowMajor, ta == FP_PLAIN ? CblasNoTrans : CblasTrans, tb == FP_PLAIN ? CblasNoTrans : CblasTrans,
				(int)rows, (int)C.cols, (int)(ta == FP_PLAIN ? A.cols : A.rows), alpha, fp_cpu_floats(own), leading(A),
				fp_cpu_floats(B), leading(B), beta, fp_cpu_floats(C) + first * C.stride, leading(C));
}

/* By OpenBLAS's threads, or where the number of rows in a call changes bits by ours, with whole strips each. */
static void multiply_in_float(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							  float beta, fp_matrix C)
{
	double inner = (double)(ta == FP_PLAIN ? A.cols : A.rows);
	int threads = threads_for(be, 2.0 * (double)C.rows * (double)C.cols * inner);
	int64_t strips = C.rows / be->strip_rows, parts = fp_smaller(threads, strips);
	if (!((const fp_cpu_state *)be->state)->counts_rows || parts < 2) {
		int before = fp_cpu_blas_begin(threads);
		multiply_rows(alpha, A, ta, B, tb, beta, C, 0, C.rows);
		fp_cpu_blas_end(before);
		return;
	}
#pragma omp parallel for num_threads((int)parts)
	for (int64_t part = 0; part < parts; part++) {
		int64_t first = strips * part / parts * be->strip_rows;
		int64_t end = part + 1 < parts ? strips * (part + 1) / parts * be->strip_rows : C.rows;
		multiply_rows(alpha, A, ta, B, tb, beta, C, first, end - first);
	}
}

static fp_status multiply(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
						  float beta, fp_matrix C, bool exact)
{
	FP_REQUIRE(be, fp_cpu_is_f32(A) && fp_cpu_is_f32(B) && fp_cpu_is_f32(C));
	FP_REQUIRE(be, fits_blas(A) && fits_blas(B) && fits_blas(C));
	int64_t m = ta == FP_PLAIN ? A.rows : A.cols, k = ta == FP_PLAIN ? A.cols : A.rows;
	int64_t k2 = tb == FP_PLAIN ? B.rows : B.cols, n = tb == FP_PLAIN ? B.cols : B.rows;
	FP_REQUIRE(be, k == k2 && C.rows == m && C.cols == n);
	if (m == 0 || n == 0)
		return FP_OK;
	if (k == 0) {
		scale_all(be, beta, C);
		return FP_OK;
	}
	fp_cpu_arithmetic how = exact ? FP_CPU_FLOAT : fp_cpu_arithmetic_of(be, m, n, k);
	if (how != FP_CPU_FLOAT) {
		fp_cpu_product product = {.m = m,
								  .n = n,
								  .k = k,
								  .A = fp_cpu_floats(A),
								  .B = fp_cpu_floats(B),
								  .C = fp_cpu_floats(C),
								  .lda = A.stride,
								  .ldb = B.stride,
								  .ldc = C.stride,
								  .ta = ta == FP_TRANSPOSED,
								  .tb = tb == FP_TRANSPOSED,
								  .alpha = alpha,
								  .beta = beta};
		return multiply_rounded(be, how, &product);
	}
	if (m == 1 && ta == FP_PLAIN && tb == FP_PLAIN)
		return multiply_row(be, alpha, fp_cpu_floats(A), B, beta, fp_cpu_floats(C));
	multiply_in_float(be, alpha, A, ta, B, tb, beta, C);
	return FP_OK;
}

fp_status fp_cpu_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
					  float beta, fp_matrix C)
{
	return multiply(be, alpha, A, ta, B, tb, beta, C, false);
}

fp_status fp_cpu_gemm_blocks(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							 float beta, fp_matrix C, fp_blocks blocks)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < blocks.count && status == FP_OK; i++) {
		status = multiply(be, alpha, A, ta, B, tb, beta, C, true);
		A.offset += blocks.a;
		B.offset += blocks.b;
		C.offset += blocks.c;
	}
	return status;
}

fp_status fp_cpu_gram(fp_backend *be, fp_matrix X, float beta, fp_matrix A)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(A) && fits_blas(X) && fits_blas(A));
	FP_REQUIRE(be, A.rows == X.cols && A.cols == X.cols);
	if (X.cols == 0)
		return FP_OK;
	if (X.rows == 0) {
		scale_all(be, beta, A);
		return FP_OK;
	}
	fp_cpu_arithmetic how = fp_cpu_arithmetic_of(be, X.cols, X.cols, X.rows);
	if (how != FP_CPU_FLOAT) {
		fp_cpu_product product = {.m = X.cols,
								  .n = X.cols,
								  .k = X.rows,
								  .A = fp_cpu_floats(X),
								  .B = fp_cpu_floats(X),
								  .C = fp_cpu_floats(A),
								  .lda = X.stride,
								  .ldb = X.stride,
								  .ldc = A.stride,
								  .ta = true,
								  .alpha = 1,
								  .beta = beta,
								  .upper = true};
		return multiply_rounded(be, how, &product);
	}
	int before = fp_cpu_blas_begin(threads_for(be, (double)X.cols * (double)X.cols * (double)X.rows));
	cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)X.cols, (int)X.rows, 1.0f, fp_cpu_floats(X), leading(X),
				beta, fp_cpu_floats(A), leading(A));
	fp_cpu_blas_end(before);
	return FP_OK;
}

enum { MIRROR_BLOCK = 64 };

/* In square blocks, so that both the rows read and the rows written stay in the cache. */
fp_status fp_cpu_mirror(fp_backend *be, fp_matrix A)
{
	FP_REQUIRE(be, fp_cpu_is_f32(A) && A.rows == A.cols);
	float *a = fp_cpu_floats(A);
	int64_t n = A.rows, stride = A.stride;
#pragma omp parallel for num_threads(be->threads) schedule(dynamic) if (n * n >= FP_CPU_PARALLEL_FROM)
	for (int64_t i0 = 0; i0 < n; i0 += MIRROR_BLOCK) {
		int64_t i1 = n - i0 < MIRROR_BLOCK ? n : i0 + MIRROR_BLOCK;
		for (int64_t j0 = 0; j0 < i1; j0 += MIRROR_BLOCK) {
			for (int64_t i = i0; i < i1; i++) {
				int64_t j1 = i < j0 + MIRROR_BLOCK ? i : j0 + MIRROR_BLOCK;
				for (int64_t j = j0; j < j1; j++)
					a[i * stride + j] = a[j * stride + i];
			}
		}
	}
	return FP_OK;
}

/* The first row of the upper triangle, counted from 1, with an entry that is not finite or a diagonal that is not
 * positive; 0 if there is none. LAPACK does not report numbers that are too large or too small for float. */
static int64_t first_bad_row(fp_backend *be, fp_matrix A)
{
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	for (int64_t i = 0; i < A.rows; i++) {
		const float *row = fp_cpu_floats(A) + i * A.stride;
		if (!loops->finite(row + i, A.rows - i) || !(row[i] > 0.0f))
			return i + 1;
	}
	return 0;
}

/* LAPACK's factors depend on the number of threads in their last bits, and a search then chooses different masks. (Of
 * products only some do: sharing/row_slices.c.) Up to this size, where more threads save only milliseconds, one thread
 * computes the factor. */
enum { SINGLE_THREAD_UP_TO = 1536 };

/* The upper triangle of A ← that of A⁻¹, or with `factor` that of the Cholesky factor of A⁻¹. */
static fp_status invert(fp_backend *be, fp_matrix A, bool factor, int64_t *refused)
{
	float *a = fp_cpu_floats(A);
	int n = (int)A.rows, lda = leading(A), info = 0;
	int before = fp_cpu_blas_begin(n <= SINGLE_THREAD_UP_TO ? 1 : be->threads);
	spotrf_("L", &n, a, &lda, &info, 1);
	if (info == 0)
		spotri_("L", &n, a, &lda, &info, 1);
	if (info == 0 && factor)
		spotrf_("L", &n, a, &lda, &info, 1);
	fp_cpu_blas_end(before);
	if (info < 0)
		return fp_fail(be->ctx, FP_ERROR_INTERNAL, "LAPACK refused argument %d of a Cholesky factorisation", -info);
	*refused = info > 0 ? info : first_bad_row(be, A);
	return FP_OK;
}

fp_status fp_cpu_inverse_factor(fp_backend *be, fp_matrix A, int64_t *refused)
{
	FP_REQUIRE(be, fp_cpu_is_f32(A) && A.rows == A.cols && fits_blas(A));
	*refused = 0;
	if (A.rows == 0)
		return FP_OK;
	fp_status status = invert(be, A, true, refused);
	for (int64_t i = 1; status == FP_OK && *refused == 0 && i < A.rows; i++)
		memset(fp_cpu_floats(A) + i * A.stride, 0, (size_t)i * sizeof(float));
	return status;
}

fp_status fp_cpu_inverse(fp_backend *be, fp_matrix A, int64_t *refused)
{
	FP_REQUIRE(be, fp_cpu_is_f32(A) && A.rows == A.cols && fits_blas(A));
	*refused = 0;
	if (A.rows == 0)
		return FP_OK;
	fp_status status = invert(be, A, false, refused);
	return status == FP_OK && *refused == 0 ? fp_cpu_mirror(be, A) : status;
}

static void transpose_in_place(float *a, int64_t n, int64_t stride)
{
	for (int64_t i0 = 0; i0 < n; i0 += MIRROR_BLOCK) {
		int64_t i1 = n - i0 < MIRROR_BLOCK ? n : i0 + MIRROR_BLOCK;
		for (int64_t j0 = 0; j0 < i1; j0 += MIRROR_BLOCK) {
			for (int64_t i = i0; i < i1; i++) {
				int64_t j1 = i < j0 + MIRROR_BLOCK ? i : j0 + MIRROR_BLOCK;
				for (int64_t j = j0; j < j1; j++) {
					float held = a[i * stride + j];
					a[i * stride + j] = a[j * stride + i];
					a[j * stride + i] = held;
				}
			}
		}
	}
}

fp_status fp_cpu_eigen(fp_backend *be, fp_matrix A, fp_matrix values)
{
	FP_REQUIRE(be, fp_cpu_is_f32(A) && A.rows == A.cols && fits_blas(A) && fp_cpu_is_vector(values, A.rows));
	if (A.rows == 0)
		return FP_OK;
	fp_status status;
	float *work = NULL;
	int *integers = NULL;
	int64_t n64 = A.rows;
	int64_t work_size = 1 + 6 * n64 + 2 * n64 * n64, integers_size = 3 + 5 * n64;
	FP_REQUIRE(be, work_size <= INT32_MAX);
	FP_TRY(FP_NEW(be->ctx, &work, work_size));
	FP_TRY(FP_NEW(be->ctx, &integers, integers_size));
	int n = (int)n64, lda = leading(A), lwork = (int)work_size, liwork = (int)integers_size, info = 0;
	int before = fp_cpu_blas_begin(be->threads);
	ssyevd_("V", "L", &n, fp_cpu_floats(A), &lda, fp_cpu_floats(values), work, &lwork, integers, &liwork, &info, 1, 1);
	fp_cpu_blas_end(before);
	if (info != 0)
		FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC,
					   "the eigenvalues of a %d × %d matrix were not found (LAPACK returned %d)", n, n, info));
	transpose_in_place(fp_cpu_floats(A), n, A.stride);

cleanup:
	fp_free(integers);
	fp_free(work);
	return status;
}
