/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problem.h: the problem of one operator, in Gram form.
 *
 *     min ‖VX* − T‖²_F over V (m × n) with the pattern
 *
 * T is the target: WX, or that and corrections of earlier errors (prune_operator.c). With
 *
 *     A  = X*X*ᵀ
 *     C  = TX*ᵀ
 *     R  = C − WA
 *     e₀ = ‖WX* − T‖²
 *     D  = V − W
 *
 * the squared error is
 *
 *     ‖VX* − T‖² = ⟨DA, D⟩ − 2⟨D, R⟩ + e₀
 *
 * Every term is of the size of the error, so nothing cancels against ‖WX‖².
 *
 * Solver files take a problem; they know nothing of models, files or ranks.
 */
#ifndef FP_SOLVER_PROBLEM_H
#define FP_SOLVER_PROBLEM_H

#include "backend/backend.h"
#include "base/settings.h"

/* Processes that solve some rows of an operator each, at the same time, with Gram matrices of the same bits. All of them
 * make the same calls. */
typedef struct fp_solve_team {
	int member, members;
	int64_t rows;                                 /* of the whole operator */
	bool keeps;                                   /* inverses, as fp_gram_keeps_inverses() says for all members */
	fp_status (*sum)(void *data, int64_t *value); /* over all members */
	/* m and *number ← those of one member */
	fp_status (*give)(void *data, int from, fp_matrix m, int64_t *number);
	void *data; /* for both */
} fp_solve_team;

/* What the operators of a group share. It owns the matrices that are computed on demand. Freed with fp_gram_free(). */
typedef struct fp_gram {
	fp_backend *be;
	fp_matrix A;        /* borrowed; exactly symmetric: products take it transposed, which is faster on GPUs */
	fp_matrix diagonal; /* 1 × n, on the device */
	double mean_diagonal;
	double largest;            /* λ_max(A); 0 until fp_gram_largest() */
	bool unit;                 /* scaled to a unit diagonal, so no entry exceeds 1 */
	fp_matrix narrow;          /* A in BF16; absent until fp_gram_narrow() */
	fp_matrix half;            /* A in F16; absent until fp_gram_half() */
	fp_matrix batched;         /* S of fista_batched_steps.c; absent until fp_gram_batched_steps() */
	fp_matrix batched_Q;       /* Q of the same steps; absent until asked for */
	int64_t batched_count;     /* the number of steps in it */
	fp_matrix factor;          /* SparseGPT's U of the damped A; absent until fp_gram_factor() */
	double factor_damping;     /* used for it, relative to the mean diagonal */
	const fp_solve_team *team; /* with whom the rows of operators are solved; NULL: alone; set by the caller */
	bool shared;               /* several operators use it, so inverses are worth keeping; set by the caller */
	fp_matrix *inverses;       /* (A + ρI)⁻¹ by level, owned; absent if not kept (inverse_cache.c) */
	fp_matrix newest;          /* the inverse computed last, F32; may be one of `inverses` */
	int64_t newest_level;
	int64_t newest_refused;         /* by Cholesky; with a team only */
	struct fp_gram *scaled;         /* S(A + δI)S by fp_gram_scaled(); owns its A */
	fp_matrix scale, inverse_scale; /* 1 × n: S⁻¹ and S of `scaled` */
} fp_gram;

fp_status fp_gram_new(fp_gram *out, fp_backend *be, fp_matrix A);
void fp_gram_free(fp_gram *gram);
typedef enum fp_scaling {
	FP_SCALING_NONE,
	FP_SCALING_MEAN,    /* the mean of the diagonal becomes 1 */
	FP_SCALING_COLUMNS, /* the whole diagonal becomes 1 */
} fp_scaling;
/* gram->scaled ← S(A + δI)S with δ = ridge · mean diagonal and the diagonal S that `kind` asks for (scaling.c); kept. */
fp_status fp_gram_scaled(fp_gram *gram, double ridge, fp_scaling kind);
/* A in BF16, for products that round it; kept, borrowed. */
fp_status fp_gram_narrow(fp_gram *gram, fp_matrix *out);
/* A in F16, for a Gram matrix that is `unit`; kept, borrowed. */
fp_status fp_gram_half(fp_gram *gram, fp_matrix *out);
/* *out ← an upper bound of λ_max(A) by Lanczos (spectrum.c); kept. */
fp_status fp_gram_largest(fp_gram *gram, double *out);
/* *S and, unless it is NULL, *Q ← those of that many FISTA steps without shrinkage (fista_batched_steps.c); kept, borrowed.
 * Uses four n × n matrices of work space, five with Q. */
fp_status fp_gram_batched_steps(fp_gram *gram, int64_t steps, fp_dtype dtype, fp_matrix *S, fp_matrix *Q);
/* gram->factor ← SparseGPT's factor; the damping grows tenfold until Cholesky succeeds (sparsegpt.c). Kept. */
fp_status fp_gram_factor(fp_gram *gram, double damping);

void fp_gram_free_inverses(fp_gram *gram); /* for fp_gram_free(); inverse_cache.c */

typedef struct fp_problem {
	fp_gram *gram;  /* borrowed */
	fp_matrix W, C; /* m × n, borrowed; in bf16 C may be rounded: use R */
	fp_matrix R;    /* C − WA, borrowed; absent: zero */
	fp_matrix held; /* W exactly, in the checkpoint's 16-bit type, borrowed; absent if that is F32 */
	fp_pattern pattern;
	/* 1 × m: how much an error in each row counts when an unstructured pattern distributes its zeros, and the
	 * reciprocals; absent: all 1. Errors are measured without them. */
	fp_matrix importance, inverse_importance;
	bool rows_weighted;  /* W, C and R are already scaled by them */
	const fp_grid *grid; /* for a method that rounds weights while it prunes; NULL: none does */
	double constant;     /* e₀ */
	bool unmeasured;     /* the caller measures the error of fp_solve()'s result: solution->error may be undefined */
} fp_problem;

/* How a solve went, for the report. */
typedef struct fp_solution {
	double error;       /* ‖VX* − T‖_F of the result */
	double lambda;      /* of the best solution; 0: none */
	int64_t iterations; /* FISTA steps in total */
	int64_t rounds;     /* of the λ search */
	int64_t search_steps;
	double damping; /* of the warm start's Cholesky factor; 0: not used */
} fp_solution;

/* G ← VA − C: half the gradient of the squared error. */
fp_status fp_problem_gradient(const fp_problem *problem, fp_matrix V, fp_matrix G);
/* D ← V − W */
fp_status fp_problem_difference(const fp_problem *problem, fp_matrix V, fp_matrix D);
/* G ← DA − R, the same half gradient at V = W + D. Operands that are rounded lose a share of the small D, not of W. */
fp_status fp_problem_gradient_at(const fp_problem *problem, fp_matrix D, fp_matrix G);
/* *out ← ‖VX* − T‖²_F, never below 0. work: two m × n matrices; on return they hold V − W and (V − W)A. */
fp_status fp_problem_error(const fp_problem *problem, fp_matrix V, fp_matrix work[2], double *out);
/* The same, with the product in the precision of `use`. */
fp_status fp_problem_error_for(const fp_problem *problem, fp_use use, fp_matrix V, fp_matrix work[2], double *out);
/* The same of V = W + D. DA: m × n, ← that product. */
fp_status fp_problem_error_at(const fp_problem *problem, fp_use use, fp_matrix D, fp_matrix DA, double *out);
/* Rounds V to the pattern: the smallest magnitudes become +0.0 or, if the pattern prunes nothing, those that are zeros of
 * W. mask (m × n, U8) ← 1 where V is kept. */
fp_status fp_round(const fp_problem *problem, fp_matrix V, fp_matrix mask);

/* V ← the pruned operator, by settings->method (method.c). With a pattern that prunes nothing the zeros of W stay zeros. */
fp_status fp_solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_solution *solution);

#endif
