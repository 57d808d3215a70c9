/* SPDX-License-Identifier: Apache-2.0 */
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double verify_dot(const double *P, const double *Q, int64_t count)
{
	double sum = 0;
	for (int64_t i = 0; i < count; i++)
		sum += P[i] * Q[i];
	return sum;
}

void verify_product(double *out, const double *P, const double *Q, int64_t a, int64_t b, int64_t c)
{
	memset(out, 0, (size_t)(a * c) * sizeof *out);
	for (int64_t i = 0; i < a; i++)
		for (int64_t k = 0; k < b; k++)
			for (int64_t j = 0; j < c; j++)
				out[i * c + j] += P[i * b + k] * Q[k * c + j];
}

void verify_inner(double *out, const double *P, const double *Q, int64_t tokens, int64_t a, int64_t b)
{
	memset(out, 0, (size_t)(a * b) * sizeof *out);
	for (int64_t t = 0; t < tokens; t++)
		for (int64_t i = 0; i < a; i++)
			for (int64_t j = 0; j < b; j++)
				out[i * b + j] += P[t * a + i] * Q[t * b + j];
}

double verify_lasso(const double *V, const double *A, const double *C, int64_t m, int64_t n, double lambda)
{
	double *G = malloc((size_t)(m * n) * sizeof *G);
	double worst = 0;
	verify_product(G, V, A, m, n, n);
	for (int64_t i = 0; i < m * n; i++) {
		double g = G[i] - C[i];
		if (V[i] > 0)
			worst = fmax(worst, fabs(g + lambda));
		else if (V[i] < 0)
			worst = fmax(worst, fabs(g - lambda));
		else
			worst = fmax(worst, fabs(g) - lambda);
	}
	free(G);
	return worst;
}

double verify_objective(const double *V, const double *A, const double *C, int64_t m, int64_t n, double lambda)
{
	double *VA = malloc((size_t)(m * n) * sizeof *VA);
	double sum = 0;
	verify_product(VA, V, A, m, n, n);
	for (int64_t i = 0; i < m * n; i++)
		sum += 0.5 * VA[i] * V[i] - V[i] * C[i] + lambda * fabs(V[i]);
	free(VA);
	return sum;
}

double verify_residual(const double *V, const double *Xstar, const double *W, const double *X, int64_t m, int64_t n,
					   int64_t tokens)
{
	double sum = 0;
	for (int64_t t = 0; t < tokens; t++)
		for (int64_t i = 0; i < m; i++) {
			double difference = 0;
			for (int64_t j = 0; j < n; j++)
				difference += V[i * n + j] * Xstar[t * n + j] - W[i * n + j] * X[t * n + j];
			sum += difference * difference;
		}
	return sqrt(sum);
}

double verify_gram_error(const double *V, const double *A, const double *C, int64_t m, int64_t n, double energy)
{
	double *VA = malloc((size_t)(m * n) * sizeof *VA);
	verify_product(VA, V, A, m, n, n);
	double error = verify_dot(VA, V, m * n) - 2 * verify_dot(V, C, m * n) + energy;
	free(VA);
	return error;
}

int64_t verify_zeros(const float *V, int64_t count)
{
	int64_t zeros = 0;
	for (int64_t i = 0; i < count; i++)
		zeros += V[i] == 0.0F;
	return zeros;
}

int64_t verify_negative_zeros(const float *V, int64_t count)
{
	int64_t found = 0;
	for (int64_t i = 0; i < count; i++)
		found += V[i] == 0.0F && signbit(V[i]);
	return found;
}

int64_t verify_full_groups(const float *V, int64_t m, int64_t n, int64_t kept, int64_t group)
{
	int64_t found = 0;
	for (int64_t i = 0; i < m; i++)
		for (int64_t first = 0; first < n; first += group) {
			int64_t size = n - first < group ? n - first : group;
			int64_t allowed = (kept * size + group - 1) / group;
			found += size - verify_zeros(V + i * n + first, size) > allowed;
		}
	return found;
}

int verify_pattern(const float *V, int64_t m, int64_t n, const fp_pattern *pattern)
{
	if (verify_negative_zeros(V, m * n) > 0)
		return 0;
	if (pattern->group > 0)
		return verify_full_groups(V, m, n, pattern->kept, pattern->group) == 0;
	return verify_zeros(V, m * n) >= (int64_t)floor(pattern->sparsity * (double)(m * n));
}

void verify_solve(double *A, double *b, double *x, int64_t n)
{
	for (int64_t k = 0; k < n; k++) {
		int64_t best = k;
		for (int64_t i = k + 1; i < n; i++)
			if (fabs(A[i * n + k]) > fabs(A[best * n + k]))
				best = i;
		for (int64_t j = 0; j < n; j++) {
			double held = A[k * n + j];
			A[k * n + j] = A[best * n + j];
			A[best * n + j] = held;
		}
		double held = b[k];
		b[k] = b[best];
		b[best] = held;
		for (int64_t i = k + 1; i < n; i++) {
			double factor = A[i * n + k] / A[k * n + k];
			for (int64_t j = k; j < n; j++)
				A[i * n + j] -= factor * A[k * n + j];
			b[i] -= factor * b[k];
		}
	}
	for (int64_t i = n - 1; i >= 0; i--) {
		x[i] = b[i];
		for (int64_t j = i + 1; j < n; j++)
			x[i] -= A[i * n + j] * x[j];
		x[i] /= A[i * n + i];
	}
}

void verify_least_squares(double *V, const double *A, const double *C, const unsigned char *mask, int64_t m, int64_t n)
{
	double *small = malloc((size_t)(n * n) * sizeof *small);
	double *right = malloc((size_t)n * sizeof *right);
	double *x = malloc((size_t)n * sizeof *x);
	int64_t *index = malloc((size_t)n * sizeof *index);
	for (int64_t i = 0; i < m; i++) {
		int64_t k = 0;
		for (int64_t j = 0; j < n; j++) {
			V[i * n + j] = 0;
			if (mask[i * n + j])
				index[k++] = j;
		}
		for (int64_t a = 0; a < k; a++) {
			right[a] = C[i * n + index[a]];
			for (int64_t b = 0; b < k; b++)
				small[a * k + b] = A[index[a] * n + index[b]];
		}
		verify_solve(small, right, x, k);
		for (int64_t a = 0; a < k; a++)
			V[i * n + index[a]] = x[a];
	}
	free(small);
	free(right);
	free(x);
	free(index);
}

double *to_double(const float *values, int64_t count)
{
	double *out = malloc((size_t)(count > 0 ? count : 1) * sizeof *out);
	for (int64_t i = 0; i < count; i++)
		out[i] = values[i];
	return out;
}

float *to_float(const double *values, int64_t count)
{
	float *out = malloc((size_t)(count > 0 ? count : 1) * sizeof *out);
	for (int64_t i = 0; i < count; i++)
		out[i] = (float)values[i];
	return out;
}
