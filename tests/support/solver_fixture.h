/* SPDX-License-Identifier: Apache-2.0 */
/* solver_fixture.h: a pruning problem on the device, and the matrices it was made from, in double on the host. */
#ifndef FP_TESTS_SOLVER_FIXTURE_H
#define FP_TESTS_SOLVER_FIXTURE_H

#include "solver/inverse_cache.h"
#include "solver/steps.h"
#include "support.h"
#include "verify.h"

typedef struct solver_fixture {
	fp_context *ctx;
	fp_backend *be;
	fp_settings *settings;
	int64_t m, n, p;
	double *W, *X, *Xstar, *A, *C; /* A = X*ᵀX* [n × n], C = WXᵀX* [m × n], rounded to float as on the device */
	double energy;                 /* ‖WX‖² */
	fp_matrix dW, dA, dC, dR;
	fp_matrix V, mask; /* m × n, for results */
	fp_gram gram;
	fp_problem problem;
} solver_fixture;

/* Correlated inputs of different scale, about normal weights, X* = X + drift·noise (drift 0: X* = X). */
void make_fixture(solver_fixture *f, int64_t m, int64_t n, int64_t p, double drift, uint64_t seed, const char *pattern);
/* From given weights and activations, which are copied. */
void make_fixture_from(solver_fixture *f, int64_t m, int64_t n, int64_t p, const double *W, const double *X,
					   const double *Xstar, const char *pattern);
void free_fixture(solver_fixture *f);
/* Sets name=value. */
void fixture_set(solver_fixture *f, const char *assignment);
void fixture_pattern(solver_fixture *f, const char *pattern);

/* Copies to the host. The caller frees them with free(). */
float *fixture_floats(solver_fixture *f, fp_matrix matrix);
double *fixture_doubles(solver_fixture *f, fp_matrix matrix);
unsigned char *fixture_bytes(solver_fixture *f, fp_matrix matrix);
void fixture_put(solver_fixture *f, fp_matrix matrix, const double *values);
/* ‖VX* − WX‖ from the activations. */
double fixture_residual(solver_fixture *f, fp_matrix V);
double largest_of(const double *values, int64_t count); /* the largest magnitude */
double distance_of(const double *a, const double *b, int64_t count);

#endif
