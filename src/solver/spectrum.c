/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spectrum.c: L = λ_max(A), the Lipschitz constant of FISTA's gradient.
 *
 * Lanczos with full re-orthogonalisation. The largest Ritz value θ is at most λ_max, and A has an eigenvalue within the
 * residual β|s| of it, so the bound is θ + β|s|, with a small margin for float arithmetic. FISTA needs an upper bound:
 * steps that are too long diverge.
 */
#include "base/memory.h"
#include "base/mersenne.h"
#include "solver/steps.h"

#include <math.h>

enum { LANCZOS_STEPS = 48 };
static const double RELATIVE_RESIDUAL = 1e-4; /* at which Lanczos stops: L is known to 0.01% */
static const double MARGIN = 1.0 + 1e-5;

/* The number of eigenvalues of the symmetric tridiagonal matrix above x, by a Sturm count. */
static int count_above(const double *alpha, const double *beta, int k, double x)
{
	int above = 0;
	double pivot = 1;
	for (int i = 0; i < k; i++) {
		pivot = alpha[i] - x - (i > 0 ? beta[i - 1] * beta[i - 1] / pivot : 0);
		if (pivot == 0)
			pivot = 1e-300;
		above += pivot > 0;
	}
	return above;
}

/* The largest eigenvalue of the tridiagonal matrix, by bisection. *last ← the magnitude of its eigenvector's last
 * component. */
static double tridiagonal_largest(const double *alpha, const double *beta, int k, double *last)
{
	double low = alpha[0];
	double high = alpha[0];
	for (int i = 0; i < k; i++) {
		double radius = (i > 0 ? beta[i - 1] : 0) + (i + 1 < k ? beta[i] : 0);
		low = fmin(low, alpha[i] - radius);
		high = fmax(high, alpha[i] + radius);
	}
	for (int step = 0; step < 100 && high - low > 1e-14 * fabs(high); step++) {
		double middle = 0.5 * (low + high);
		if (count_above(alpha, beta, k, middle) > 0)
			low = middle;
		else
			high = middle;
	}
	double norm = 1;
	double previous = 0;
	double current = 1;
	for (int i = 0; i + 1 < k; i++) {
		double next = ((high - alpha[i]) * current - (i > 0 ? beta[i - 1] * previous : 0)) / fmax(beta[i], 1e-300);
		previous = current;
		current = next;
		norm += current * current;
	}
	*last = fabs(current) / sqrt(norm);
	return high;
}

/* Eight independent sums, so that additions need not wait for each other. */
static double dot_product(const double *a, const double *b, int64_t n)
{
	double sums[8] = {0};
	int64_t i = 0;
	for (; i + 8 <= n; i += 8)
		for (int k = 0; k < 8; k++)
			sums[k] += a[i + k] * b[i + k];
	for (; i < n; i++)
		sums[0] += a[i] * b[i];
	return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/* Makes w orthogonal to the first `count` basis vectors; two passes are enough. */
static void orthogonalise(double *w, const double *basis, int count, int64_t n)
{
	for (int pass = 0; pass < 2; pass++)
		for (int j = 0; j < count; j++) {
			const double *q = basis + (int64_t)j * n;
			double c = dot_product(q, w, n);
			for (int64_t i = 0; i < n; i++)
				w[i] -= c * q[i];
		}
}

/* w ← A·q, computed on the device; x and y are 1 × n device buffers */
static fp_status multiply(const fp_gram *gram, fp_matrix x, fp_matrix y, float *host, const double *q, double *w)
{
	fp_backend *be = gram->be;
	int64_t n = gram->A.rows;
	fp_status status;
	for (int64_t i = 0; i < n; i++)
		host[i] = (float)q[i];
	FP_TRY(be->memory->upload(be, x, host, FP_F32, n));
	FP_TRY(be->linear->gemm(be, 1.0F, x, FP_PLAIN, gram->A, FP_PLAIN, 0.0F, y));
	FP_TRY(be->memory->download(be, host, FP_F32, n, y));
	for (int64_t i = 0; i < n; i++)
		w[i] = host[i];
cleanup:
	return status;
}

fp_status fp_gram_largest(fp_gram *gram, double *out)
{
	fp_backend *be = gram->be;
	int64_t n = gram->A.rows;
	int most = n < LANCZOS_STEPS ? (int)n : LANCZOS_STEPS;
	double alpha[LANCZOS_STEPS];
	double beta[LANCZOS_STEPS];
	double *basis = NULL;
	double *w = NULL;
	float *host = NULL;
	fp_matrix x = {0};
	fp_matrix y = {0};
	fp_status status = FP_OK;
	*out = gram->largest;
	if (gram->largest > 0 || n == 0)
		return FP_OK;

	FP_TRY(FP_NEW(be->ctx, &basis, (int64_t)most * n));
	FP_TRY(FP_NEW(be->ctx, &w, n));
	FP_TRY(FP_NEW(be->ctx, &host, n));
	FP_TRY(fp_matrix_new(be, &x, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &y, 1, n, FP_F32));

	fp_mersenne random = {.state = {0}};
	fp_mersenne_seed(&random, 0);
	for (int64_t i = 0; i < n; i++)
		w[i] = fp_mersenne_unit(&random) - 0.5;
	double norm = sqrt(dot_product(w, w, n));
	double bound = 0;
	for (int k = 0; k < most; k++) {
		double *q = basis + (int64_t)k * n;
		for (int64_t i = 0; i < n; i++)
			q[i] = w[i] / norm;
		FP_TRY(multiply(gram, x, y, host, q, w));
		alpha[k] = dot_product(q, w, n);
		orthogonalise(w, basis, k + 1, n);
		beta[k] = norm = sqrt(dot_product(w, w, n));
		double last;
		double ritz = tridiagonal_largest(alpha, beta, k + 1, &last);
		bound = ritz + beta[k] * last;
		if (beta[k] * last <= RELATIVE_RESIDUAL * fabs(ritz))
			break;
	}
	if (!isfinite(bound))
		FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "the Gram matrix has no finite largest eigenvalue"));
	gram->largest = bound > 0 ? bound * MARGIN : 0;
	*out = gram->largest;
cleanup:
	fp_free(basis);
	fp_free(w);
	fp_free(host);
	fp_matrix_free(be, &x);
	fp_matrix_free(be, &y);
	return status;
}
