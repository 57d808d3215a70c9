/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problem.h: the problem of one operator, in Gram form.
 *
 *     min ‖VX* − T‖²_F over V (m × n) with the pattern;   T = WX + what else the target holds
 *     A = X*X*ᵀ   C = TX*ᵀ   R = C − WA   e₀ = ‖WX* − T‖²
 *     ‖VX* − T‖² = ⟨DA, D⟩ − 2⟨D, R⟩ + e₀   with D = V − W
 * The last form has no cancellation against ‖WX‖²: every term is of the size of the errors themselves.
 *
 * Solver files take a problem and know no model, no file and no rank.
 */
#ifndef FP_SOLVER_PROBLEM_H
#define FP_SOLVER_PROBLEM_H

#include "backend/backend.h"
#include "base/settings.h"

/* What the operators of a group share. The matrices made on demand belong to it. Freed with fp_gram_free(). */
typedef struct fp_gram {
	fp_backend *be;
	fp_matrix A;        /* borrowed; symmetric to the bit: products take it transposed, which GPUs like better */
	fp_matrix diagonal; /* 1 × n, on the device */
	double mean_diagonal;
	double largest;        /* λ_max(A); 0 until fp_gram_largest() */
	bool unit;             /* its columns are scaled to a diagonal of ones: no entry is larger */
	fp_matrix narrow;      /* A in BF16; absent until fp_gram_narrow() */
	fp_matrix half;        /* A in F16; absent until fp_gram_half() */
	fp_matrix batched;     /* S of fista_batched_steps.c in BF16; absent until fp_gram_batched_steps() */
	int64_t batched_count; /* that it makes */
	fp_matrix factor;      /* SparseGPT's U of the damped A; absent until fp_gram_factor() */
	double factor_damping; /* the damping it took, as a share of the mean diagonal */
	bool shared;           /* by several operators: inverses are worth keeping; set by the caller */
	fp_matrix *inverses;   /* (A + ρI)⁻¹ by level, owned; absent where none is held (inverse_cache.c) */
	fp_matrix newest;      /* the one made last, F32; it may be one of them */
	int64_t newest_level;
	struct fp_gram *scaled;         /* made by fp_gram_scaled(): S(A + δI)S; owns its A */
	fp_matrix scale, inverse_scale; /* 1 × n: S⁻¹ and S of `scaled` */
} fp_gram;

fp_status fp_gram_new(fp_gram *out, fp_backend *be, fp_matrix A);
void fp_gram_free(fp_gram *gram);
typedef enum fp_scaling {
	FP_SCALING_NONE,
	FP_SCALING_MEAN,    /* the columns are unit on average */
	FP_SCALING_COLUMNS, /* every column is unit */
} fp_scaling;
/* The same problem in columns of unit norm (scaling.c): gram->scaled is S(A + δI)S with S = diag(A + δI)^-½ or the
 * like, δ = ridge · mean diagonal; kept. */
fp_status fp_gram_scaled(fp_gram *gram, double ridge, fp_scaling kind);
/* A in BF16, for products that round it; kept, borrowed. */
fp_status fp_gram_narrow(fp_gram *gram, fp_matrix *out);
/* The same in F16, for a Gram matrix that is `unit`. */
fp_status fp_gram_half(fp_gram *gram, fp_matrix *out);
/* λ_max(A) from above, by Lanczos, kept (spectrum.c). */
fp_status fp_gram_largest(fp_gram *gram, double *out);
/* S of so many FISTA steps without shrinkage, in BF16 (fista_batched_steps.c); kept, borrowed. Takes four n × n matrices meanwhile. */
fp_status fp_gram_batched_steps(fp_gram *gram, int64_t steps, fp_matrix *out);
/* The factor for SparseGPT, damped harder (×10) while Cholesky refuses; kept (sparsegpt.c). */
fp_status fp_gram_factor(fp_gram *gram, double damping);

void fp_gram_free_inverses(fp_gram *gram); /* for fp_gram_free(); inverse_cache.c */

typedef struct fp_problem {
	fp_gram *gram;  /* borrowed */
	fp_matrix W, C; /* m × n, borrowed */
	fp_matrix R;    /* C − WA, borrowed; absent: zero */
	fp_matrix held; /* W, to the bit, in another weight type, borrowed; absent: W is held as it is */
	fp_pattern pattern;
	/* 1 × m, and one over each entry: how much an error in each row counts when an unstructured pattern distributes its
	 * zeros; absent: all alike. Errors are measured without them. */
	fp_matrix importance, inverse_importance;
	bool rows_weighted; /* W, C and R are already scaled by them */
	double constant;    /* e₀ */
	bool unmeasured;    /* the caller measures fp_solve()'s result: solution->error may be anything */
} fp_problem;

/* How a solve went: not an error, but for the report. */
typedef struct fp_solution {
	double error;       /* ‖VX* − T‖_F of the result */
	double lambda;      /* that gave the best solution; 0: none did */
	int64_t iterations; /* FISTA steps in all */
	int64_t rounds;     /* of the λ search */
	int64_t search_steps;
	double damping; /* of the warm start's Cholesky factor; 0: not used */
} fp_solution;

/* G ← VA − C: half the gradient of the squared error. */
fp_status fp_problem_gradient(const fp_problem *problem, fp_matrix V, fp_matrix G);
/* *out ← ‖VX* − T‖²_F, never below 0. work: two m × n matrices; V − W and (V − W)A are left there. */
fp_status fp_problem_error(const fp_problem *problem, fp_matrix V, fp_matrix work[2], double *out);
/* The same with its product as exact as `use` asks for. */
fp_status fp_problem_error_for(const fp_problem *problem, fp_use use, fp_matrix V, fp_matrix work[2], double *out);
/* V ← V with the pattern: the smallest magnitudes become +0.0. mask (m × n, U8) is written. */
fp_status fp_round(const fp_problem *problem, fp_matrix V, fp_matrix mask);

/* V ← the pruned operator, by settings->method (method.c). */
fp_status fp_solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_solution *solution);

#endif
