/* SPDX-License-Identifier: Apache-2.0 */
/* pruning_ops.h: masks and the elementwise parts of the solvers' steps. backend.h has the conventions. */
#ifndef FP_BACKEND_PRUNING_OPS_H
#define FP_BACKEND_PRUNING_OPS_H

#include "backend/grid_ops.h"

/* Which entries of a matrix are zero. */
typedef struct fp_pattern {
	int64_t kept, group; /* N:M = kept of group consecutive entries of a row; group == 0: unstructured */
	double sparsity;     /* unstructured: ⌊sparsity · entries⌋ zeros; for N:M it is 1 − N/M */
} fp_pattern;

/* False for 0% and N:N: no weight becomes a zero, and those that are zeros stay so. */
static inline bool fp_pattern_prunes(const fp_pattern *pattern)
{
	return pattern->group > 0 ? pattern->kept < pattern->group : pattern->sparsity > 0;
}

/* How many of `entries` an unstructured pattern prunes: ⌊sparsity · entries⌋, the product taken in double. */
int64_t fp_pattern_zeros(const fp_pattern *pattern, int64_t entries);

/* How a FISTA step extrapolates: against the previous proximal point (Beck–Teboulle) or, as the paper prints it,
 * against the previous extrapolated point. */
typedef enum fp_momentum { FP_MOMENTUM_STANDARD, FP_MOMENTUM_LITERAL } fp_momentum;

/* What support_step() reads. */
typedef struct fp_support_rule {
	fp_pattern pattern;
	float penalty;  /* ρ of the next product */
	float shrink;   /* the previous ρ over the next one: keeps ρu as it was */
	float scale;    /* F16 G and T hold their numbers times this */
	fp_matrix W, R; /* R may be absent: zero */
} fp_support_rule;

/* What cg_step() reads and changes: conjugate gradients on all rows of a matrix at once, with a step length each. */
typedef struct fp_cg {
	fp_matrix mask;       /* U8: r, p and q are zero elsewhere */
	fp_matrix inverse;    /* 1 × n: one over the preconditioner's diagonal */
	fp_matrix r, p, V;    /* m × n: the residual, the direction, the solution */
	fp_matrix rz, enough; /* 1 × m: ⟨r,z⟩, and the value at which a row is solved; infinite for a row that stopped */
	float longest;        /* a row that would take a longer step has met a direction without curvature, and stops */
	/* F16, where gemm()'s operands may be: ← p times a power of two for each row, and those powers (1 × m). q is then
	 * scaled by the same powers. Absent unless wanted. */
	fp_matrix narrow, factor;
} fp_cg;

/* Required. */
typedef struct fp_pruning_operations {
	/* One FISTA step on P, Y with the gradient G at Y:
	 *     P₊ = soft(Y − step·G, threshold)
	 *     Y  ← P₊ + momentum·(P₊ − P)      FP_MOMENTUM_STANDARD; with FP_MOMENTUM_LITERAL Y in place of P
	 *     P  ← P₊
	 * Unless change is NULL, *change ← ‖P₊ − P‖²_F. */
	fp_status (*fista_step)(fp_backend *be, fp_momentum rule, float step, float threshold, float momentum, fp_matrix G,
							fp_matrix Y, fp_matrix P, double *change);
	/* mask (U8) ← 0 at the entries of smallest |score| that the pattern prunes, 1 elsewhere. Unstructured: exactly
	 * ⌊sparsity·rows·cols⌋ zeros; among equal entries the one that comes first in memory is pruned first. N:M: the N
	 * largest of each group of M in a row stay (among equals the first stays); a last group of M' < M entries keeps
	 * ⌈N·M'/M⌉. */
	fp_status (*mask_smallest)(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
	/* The same for an unstructured pattern with ⌊sparsity·cols⌋ zeros in each row. */
	fp_status (*mask_rows)(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
	fp_status (*mask_nonzero)(fp_backend *be, fp_matrix X, fp_matrix mask); /* mask ← 0 where X is ±0, 1 elsewhere */
	fp_status (*apply_mask)(fp_backend *be, fp_matrix mask, fp_matrix X);   /* X ← X where mask, else +0.0 */
	/* *out ← the number of entries where two masks differ */
	fp_status (*mask_distance)(fp_backend *be, fp_matrix a, fp_matrix b, int64_t *out);
	/* One step of the support search (solver/support_admm.c) after its product G = V − W. S holds Z where the mask is
	 * 1 and the multiplier u elsewhere:
	 *     S    ← G + W + u
	 *     mask ← the pattern of S, as by mask_smallest()
	 *     S    ← shrink·S where the mask is 0
	 *     T    ← penalty·(Z − u − W) + R
	 * G and T may be F16 where gemm()'s operands may; numbers beyond F16's range become the largest one. */
	fp_status (*support_step)(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							  fp_matrix T);
	/* One step of conjugate gradients after its product q = pA (or narrow·A), which is overwritten:
	 *     q ← q∘mask
	 *     α = ⟨r,z⟩/⟨p,q⟩
	 *     V ← V + αp
	 *     r ← r − αq
	 *     z = r∘inverse
	 *     p ← z + p·⟨r,z⟩/(the previous ⟨r,z⟩)
	 * A row stops for good where ⟨r,z⟩ ≤ enough, ⟨p,q⟩ ≤ 0 or α > longest. With q absent: the first direction, p ← z. */
	fp_status (*cg_step)(fp_backend *be, const fp_cg *cg, fp_matrix q);
	/* SparseGPT's sweep: W (in place) and its mask, from U of inverse_factor(), in blocks of `block` columns; a group
	 * of N:M may not cross a block. mask is written; with a pattern that prunes nothing it is read instead, and entries
	 * where it is 0 become +0.0. With a grid (NULL: none), entries that are kept are rounded to it
	 * when the sweep reaches them, and the errors of that are passed on too. */
	fp_status (*sparsegpt_sweep)(fp_backend *be, fp_matrix U, const fp_pattern *pattern, const fp_grid *grid,
								 int64_t block, fp_matrix W, fp_matrix mask);
} fp_pruning_operations;

enum { FP_SWEEP_GROUP = 1024 }; /* the largest M of N:M that sparsegpt_sweep() takes */

/* For backends: true when sparsegpt_sweep() accepts these; groups up to `longest`. */
static inline bool fp_sweep_fits(fp_matrix U, fp_matrix W, const fp_pattern *pattern, const fp_grid *grid,
								 int64_t block, int64_t longest)
{
	return (!grid || fp_grid_fits(grid, W)) && U.rows == W.cols && U.cols == W.cols && block > 0 &&
		   pattern->group >= 0 && pattern->group <= longest && pattern->kept <= pattern->group &&
		   (pattern->group == 0 || block % pattern->group == 0);
}

/*
 * Optional, with FP_CAN_STEP_DELTA: FISTA on the difference D = V − W (solver/fista_delta.h). A solver that computes its
 * gradient from D in BF16 rounds the small difference and not the weights.
 *
 * D (BF16, 2m × n) holds an m × n matrix of floats without loss, split into halves: the first m rows hold the float
 * rounded to the nearest BF16, an operand of gemm(); the other m rows hold the bits that this rounding dropped.
 */
enum { FP_DELTA_GROUP = 8 }; /* the largest M of N:M that round() takes */

/* What step() takes besides the gradient. */
typedef struct fp_delta_step {
	fp_momentum rule;
	float step, threshold, momentum;
	fp_matrix W;    /* F32, BF16 or F16 */
	fp_matrix R;    /* BF16; absent: zero */
	fp_matrix D;    /* Y − W in halves; written */
	fp_matrix from; /* where Y − W is read, in halves; absent: D itself */
	fp_matrix P;    /* with FP_MOMENTUM_LITERAL it may be absent, or undefined where no change is asked for */
} fp_delta_step;

typedef struct fp_delta_operations {
	/* D ← V − W; W F32, BF16 or F16 */
	fp_status (*split)(fp_backend *be, fp_matrix V, fp_matrix W, fp_matrix D);
	/* V ← W + D */
	fp_status (*join)(fp_backend *be, fp_matrix W, fp_matrix D, fp_matrix V);
	/* fista_step() with the gradient G − R (G F32 or BF16) at Y = W + D. Unless bound is NULL (change must then be
	 * NULL), *bound ← Σ 2H₊∘(G − R) − H∘G for the upper halves H, H₊ of D before and after: a lower bound, by the
	 * tangent at H, of the quadratic form that has this gradient at H₊. */
	fp_status (*step)(fp_backend *be, const fp_delta_step *parameters, fp_matrix G, double *change, double *bound);
	/* out ← D of W + D rounded to an N:M pattern with M up to FP_DELTA_GROUP, chosen as by mask_smallest(); out may be
	 * D */
	fp_status (*round)(fp_backend *be, const fp_pattern *pattern, fp_matrix W, fp_matrix D, fp_matrix out);
	/* *out ← Σ H∘(G − 2R) for the upper half H of D; R (BF16) may be absent: zero */
	fp_status (*sum)(fp_backend *be, fp_matrix D, fp_matrix G, fp_matrix R, double *out);
} fp_delta_operations;

#endif
