/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h: checks of solutions, by plain loops in double that share no code with the solver. Matrices are row-major on
 * the host: V, W, C [m × n], A [n × n], activations [tokens × features].
 */
#ifndef FP_TESTS_VERIFY_H
#define FP_TESTS_VERIFY_H

#include "backend/backend.h"

/* The largest violation of 0 ∈ VA − C + λ∂|V|, the optimality condition of ½⟨VA, V⟩ − ⟨V, C⟩ + λΣ|V|. */
double verify_lasso(const double *V, const double *A, const double *C, int64_t m, int64_t n, double lambda);
/* That objective. */
double verify_objective(const double *V, const double *A, const double *C, int64_t m, int64_t n, double lambda);
/* ‖VX* − WX‖_F from the activations. */
double verify_residual(const double *V, const double *Xstar, const double *W, const double *X, int64_t m, int64_t n,
					   int64_t tokens);
/* ‖VX* − WX‖² from A and C. */
double verify_gram_error(const double *V, const double *A, const double *C, int64_t m, int64_t n, double energy);
/* The number of zeros of either sign, and of −0, in V. */
int64_t verify_zeros(const float *V, int64_t count);
int64_t verify_negative_zeros(const float *V, int64_t count);
/* The number of groups with more than ⌈kept·size/group⌉ non-zeros. The last group of a row may be short. */
int64_t verify_full_groups(const float *V, int64_t m, int64_t n, int64_t kept, int64_t group);
/* 1 if V has the pattern: at least ⌊s·m·n⌋ zeros (more if the solution itself has zeros), and no group keeps too many. */
int verify_pattern(const float *V, int64_t m, int64_t n, const fp_pattern *pattern);
/* Solves Ax = b by Gaussian elimination with pivoting; overwrites A and b. */
void verify_solve(double *A, double *b, double *x, int64_t n);
/* V ← the least-squares solution on a support, from the normal equations of each row. */
void verify_least_squares(double *V, const double *A, const double *C, const unsigned char *mask, int64_t m, int64_t n);

/* Products. out ← PᵀQ for P [tokens × a], Q [tokens × b]; out ← PQ for P [a × b], Q [b × c]. */
void verify_inner(double *out, const double *P, const double *Q, int64_t tokens, int64_t a, int64_t b);
void verify_product(double *out, const double *P, const double *Q, int64_t a, int64_t b, int64_t c);
double verify_dot(const double *P, const double *Q, int64_t count);

/* New arrays. The caller frees them with free(). */
double *to_double(const float *values, int64_t count);
float *to_float(const double *values, int64_t count);

#endif
