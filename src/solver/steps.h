/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.h: the steps that methods consist of, each in a file of its own, with estimates of their memory and products
 * (method.h).
 */
#ifndef FP_SOLVER_STEPS_H
#define FP_SOLVER_STEPS_H

#include "solver/fista_batch.h"
#include "solver/method.h"

/* Upper triangle of C ← α ST + β C for symmetric S and T that commute, so that C is symmetric too (symmetric.c). */
fp_status fp_multiply_symmetric(fp_backend *be, float alpha, fp_matrix S, fp_matrix T, float beta, fp_matrix C);

/* Warm start (warm_start.c): V and mask ← the solution of that name, with the pattern; "dense" gives V = W and a mask of
 * ones. */
fp_status fp_warm_start(const fp_problem *problem, const char *name, const fp_settings *settings, fp_matrix V,
						fp_matrix mask);
/* SparseGPT's sweep over the problem's own Gram matrix (sparsegpt.c). */
fp_status fp_sparsegpt(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask);
fp_solve_memory fp_sparsegpt_memory(const fp_backend *be, const fp_solve_size *size);

/* FISTA (fista.c): P ← the result of at most settings->iterations steps for λ, starting from `start`. L = λ_max(A).
 * *steps += the number of steps. `batch` belongs to the search of which this is a round; NULL: steps are not batched. */
fp_status fp_fista(const fp_problem *problem, const fp_settings *settings, double lambda, double L, fp_batch *batch,
				   fp_matrix start, fp_matrix P, int64_t *steps);
/* Returns the next step's momentum (t − 1)/t₊; *t ← t₊. t starts at 1. */
double fp_fista_momentum(double *t);

/* The λ search (lambda_search.c): V ← the best rounded solution, starting from V, which has the pattern if `feasible`. */
fp_status fp_lambda_search(const fp_problem *problem, const fp_settings *settings, bool feasible, fp_matrix V,
						   fp_matrix mask, fp_solution *solution);
fp_solve_memory fp_lambda_search_memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size);
fp_solve_products fp_lambda_search_products(const fp_backend *be, const fp_settings *settings);

/* Refit (refit.c): V ← the least-squares solution on the support `mask`, by `steps` conjugate-gradient steps. */
fp_status fp_refit(const fp_problem *problem, int64_t steps, fp_matrix mask, fp_matrix V);
fp_solve_memory fp_refit_memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size);

/* Support search by ADMM with an ℓ₀ projection (support_admm.c): V and mask ← a better solution with the pattern,
 * starting from V. The problem should be scaled to a unit diagonal. *steps += the number of steps. */
fp_status fp_support_admm(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
						  int64_t *steps);
fp_solve_memory fp_support_admm_memory(const fp_backend *be, const fp_solve_size *size);
double fp_support_admm_products(const fp_settings *settings);

/* Adds δ = ridge · mean diagonal to A's diagonal, scales the columns as `kind` says and the rows by their importance,
 * calls `solve`, and scales back (scaling.c). */
typedef fp_status (*fp_solve_function)(const fp_problem *problem, const fp_settings *settings, fp_matrix V,
									   fp_matrix mask, fp_solution *solution);
fp_status fp_solve_scaled(const fp_problem *problem, const fp_settings *settings, double ridge, fp_scaling kind,
						  fp_solve_function solve, fp_matrix V, fp_matrix mask, fp_solution *solution);
fp_solve_memory fp_scaled_memory(const fp_solve_size *size);
double fp_scaled_copies(const fp_solve_size *size); /* floats held while `solve` runs */

#endif
