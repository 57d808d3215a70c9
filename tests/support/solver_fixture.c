/* SPDX-License-Identifier: Apache-2.0 */
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double largest_of(const double *values, int64_t count)
{
	double largest = 0;
	for (int64_t i = 0; i < count; i++)
		largest = fmax(largest, fabs(values[i]));
	return largest;
}

double distance_of(const double *a, const double *b, int64_t count)
{
	double sum = 0;
	for (int64_t i = 0; i < count; i++)
		sum += (a[i] - b[i]) * (a[i] - b[i]);
	return sqrt(sum);
}

float *fixture_floats(solver_fixture *f, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_F32, matrix.cols, matrix));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	return out;
}

double *fixture_doubles(solver_fixture *f, fp_matrix matrix)
{
	float *floats = fixture_floats(f, matrix);
	double *out = to_double(floats, fp_matrix_size(matrix));
	free(floats);
	return out;
}

unsigned char *fixture_bytes(solver_fixture *f, fp_matrix matrix)
{
	unsigned char *out = malloc((size_t)fp_matrix_size(matrix));
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_U8, matrix.cols, matrix));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	return out;
}

void fixture_put(solver_fixture *f, fp_matrix matrix, const double *values)
{
	float *floats = to_float(values, fp_matrix_size(matrix));
	assert_ok(f->ctx, f->be->memory->upload(f->be, matrix, floats, FP_F32, matrix.cols));
	free(floats);
}

/* Uploads a matrix and rounds `values` to what the device holds. */
static void place(solver_fixture *f, fp_matrix *out, int64_t rows, int64_t cols, double *values)
{
	assert_ok(f->ctx, fp_matrix_new(f->be, out, rows, cols, FP_F32));
	for (int64_t i = 0; i < rows * cols; i++)
		values[i] = (float)values[i];
	fixture_put(f, *out, values);
}

static double *copy_of(const double *values, int64_t count)
{
	double *out = malloc((size_t)count * sizeof *out);
	memcpy(out, values, (size_t)count * sizeof *out);
	return out;
}

void fixture_pattern(solver_fixture *f, const char *pattern)
{
	fp_pattern *out = &f->problem.pattern;
	assert_ok(f->ctx, fp_parse_sparsity(f->ctx, pattern, &out->sparsity, &out->kept, &out->group));
}

void fixture_set(solver_fixture *f, const char *assignment)
{
	assert_ok(f->ctx, fp_settings_assign(f->settings, f->ctx, assignment));
}

void make_fixture_from(solver_fixture *f, int64_t m, int64_t n, int64_t p, const double *W, const double *X,
					   const double *Xstar, const char *pattern)
{
	memset(f, 0, sizeof *f);
	f->m = m;
	f->n = n;
	f->p = p;
	f->ctx = fp_context_new();
	assert_ok(f->ctx, fp_backend_open(&f->be, f->ctx, "cpu", 1));
	assert_ok(f->ctx, fp_settings_new(&f->settings, f->ctx));
	f->W = copy_of(W, m * n);
	f->X = copy_of(X, p * n);
	f->Xstar = copy_of(Xstar, p * n);
	f->A = malloc((size_t)(n * n) * sizeof *f->A);
	f->C = malloc((size_t)(m * n) * sizeof *f->C);
	place(f, &f->dW, m, n, f->W);
	double *B = malloc((size_t)(n * n) * sizeof *B);
	double *R = malloc((size_t)(m * n) * sizeof *R);
	verify_inner(B, f->X, f->Xstar, p, n, n);
	verify_product(f->C, f->W, B, m, n, n);
	verify_inner(f->A, f->Xstar, f->Xstar, p, n, n);
	verify_product(R, f->W, f->A, m, n, n);
	for (int64_t i = 0; i < m * n; i++)
		R[i] = f->C[i] - R[i];
	verify_inner(B, f->X, f->X, p, n, n);
	double *WB = malloc((size_t)(m * n) * sizeof *WB);
	verify_product(WB, f->W, B, m, n, n);
	f->energy = verify_dot(WB, f->W, m * n);
	double constant = verify_residual(f->W, f->Xstar, f->W, f->X, m, n, p);
	place(f, &f->dA, n, n, f->A);
	place(f, &f->dC, m, n, f->C);
	place(f, &f->dR, m, n, R);
	free(B);
	free(R);
	free(WB);
	assert_ok(f->ctx, fp_matrix_new(f->be, &f->V, m, n, FP_F32));
	assert_ok(f->ctx, fp_matrix_new(f->be, &f->mask, m, n, FP_U8));
	assert_ok(f->ctx, fp_gram_new(&f->gram, f->be, f->dA));
	f->problem = (fp_problem){.gram = &f->gram, .W = f->dW, .C = f->dC, .R = f->dR, .constant = constant * constant};
	fixture_pattern(f, pattern);
}

void make_fixture(solver_fixture *f, int64_t m, int64_t n, int64_t p, double drift, uint64_t seed, const char *pattern)
{
	enum { SOURCES = 5 };
	double *W = malloc((size_t)(m * n) * sizeof *W);
	double *X = malloc((size_t)(p * n) * sizeof *X);
	double *Xstar = malloc((size_t)(p * n) * sizeof *Xstar);
	double *mixing = malloc((size_t)(n * SOURCES) * sizeof *mixing);
	for (int64_t i = 0; i < m * n; i++)
		W[i] = (double)random_normal(&seed);
	for (int64_t i = 0; i < n * SOURCES; i++)
		mixing[i] = 0.5 * (double)random_normal(&seed);
	for (int64_t t = 0; t < p; t++) {
		double source[SOURCES];
		for (int s = 0; s < SOURCES; s++)
			source[s] = (double)random_normal(&seed);
		for (int64_t j = 0; j < n; j++) {
			double x = (double)random_normal(&seed);
			for (int s = 0; s < SOURCES; s++)
				x += mixing[j * SOURCES + s] * source[s];
			X[t * n + j] = x * (1.0 + (double)(j % 3));
			Xstar[t * n + j] = X[t * n + j] + drift * (double)random_normal(&seed);
		}
	}
	make_fixture_from(f, m, n, p, W, X, Xstar, pattern);
	free(W);
	free(X);
	free(Xstar);
	free(mixing);
}

void free_fixture(solver_fixture *f)
{
	fp_gram_free(&f->gram);
	fp_matrix *all[] = {&f->dW, &f->dA, &f->dC, &f->dR, &f->V, &f->mask};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(f->be, all[i]);
	fp_settings_free(f->settings);
	fp_backend_close(f->be);
	fp_context_free(f->ctx);
	free(f->W);
	free(f->X);
	free(f->Xstar);
	free(f->A);
	free(f->C);
	memset(f, 0, sizeof *f);
}

double fixture_residual(solver_fixture *f, fp_matrix V)
{
	double *values = fixture_doubles(f, V);
	double out = verify_residual(values, f->Xstar, f->W, f->X, f->m, f->n, f->p);
	free(values);
	return out;
}
