/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h: checks of solutions, by plain loops in double that share no code with the solver. Matrices are row-major on the host: V, W, C [m × n], A [n × n], activations [tokens × features].
 */
#ifndef FP_TESTS_VERIFY_H
#define FP_TESTS_VERIFY_H

#include "backend/backend.h"

/* How far V is from the optimum of ½⟨VA,V⟩ − ⟨V,C⟩ + λΣ|V|: the largest violation of 0 ∈ VA − C + λ∂|V|. */
double verify_lasso(const double *V, const double *A, const double *C, int64_t m, int64_t n, double lambda);
/* That objective. */
double verify_objective(const double *V, const double *A, const double *C, int64_t m, int64_t n, double lambda);
/* ‖VX* − WX‖_F from the activations. */
double verify_residual(const double *V, const double *Xstar, const double *W, const double *X, int64_t m, int64_t n,
					   int64_t tokens);
/* ‖VX* − WX‖² in Gram form, in double. */
double verify_gram_error(const double *V, const double *A, const double *C, int64_t m, int64_t n, double energy);
/* Zeros in V, and zeros with the sign bit set. */
int64_t verify_zeros(const float *V, int64_t count);
int64_t verify_negative_zeros(const float *V, int64_t count);
/* Groups of `group` in a row (the last may be short) that keep more than their share, ⌈kept·size/group⌉. */
int64_t verify_full_groups(const float *V, int64_t m, int64_t n, int64_t kept, int64_t group);
/* 1 if V has the pattern: at least ⌊s·m·n⌋ zeros (more if the solution itself has zeros), and no group keeps too many. */
int verify_pattern(const float *V, int64_t m, int64_t n, const fp_pattern *pattern);
/* x ← the solution of Ax = b by elimination with pivots; A and b are destroyed. */
void verify_solve(double *A, double *b, double *x, int64_t n);
/* V ← argmin of the squared error on a support: the normal equations of each row, by verify_solve(). */
void verify_least_squares(double *V, const double *A, const double *C, const unsigned char *mask, int64_t m, int64_t n);

/* Products. out ← PᵀQ for P [tokens × a], Q [tokens × b]; out ← PQ for P [a × b], Q [b × c]. */
void verify_inner(double *out, const double *P, const double *Q, int64_t tokens, int64_t a, int64_t b);
void verify_product(double *out, const double *P, const double *Q, int64_t a, int64_t b, int64_t c);
double verify_dot(const double *P, const double *Q, int64_t count);

/* New arrays, for free(). */
double *to_double(const float *values, int64_t count);
float *to_float(const double *values, int64_t count);

#endif
