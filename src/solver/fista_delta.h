/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista_delta.h: FISTA on a device that multiplies BF16 much faster than F32.
 *
 * The iterate is stored as its difference from the dense weights:
 *
 *     D = Y − W
 *     gradient = DA − R
 *
 * so that products round only the small D (its 16-bit halves: backend/pruning_ops.h). A, W, R and DA have 16 bits: W
 * exactly as in the checkpoint, and the rounding errors of R and DA are of the size of D's. On ten operators of a small
 * model they changed the error of the result by less than 0.001%.
 */
#ifndef FP_SOLVER_FISTA_DELTA_H
#define FP_SOLVER_FISTA_DELTA_H

#include "solver/steps.h"

typedef struct fp_delta {
	const fp_problem *problem; /* borrowed */
	bool used;                 /* false: not for this device or these settings; nothing else is set */
	fp_matrix D;               /* FISTA's result − W, in halves */
	fp_matrix rounded;         /* that result with the pattern − W, in halves; otherwise work space */
	fp_matrix best;            /* the best rounded solution − W, set by fp_delta_keep() */
	bool skip_checks;          /* changes were so large that no later step is expected to meet the tolerance */
	fp_matrix A;               /* the Gram matrix in BF16, borrowed */
	fp_matrix W;               /* the problem's, in the checkpoint's 16 bits if available */
	fp_matrix R;               /* BF16; absent if the problem has none */
	fp_matrix batched;         /* S of fista_batched_steps.c, borrowed; absent until steps are first batched */
	fp_matrix E;               /* BF16: RQ, the result of the batched steps from D = 0; absent if R is */
	double negligible; /* a total shrinkage up to this is lost in the weights' rounding; −1: not computed yet */
	fp_matrix G;       /* BF16: DA of the last product */
} fp_delta;

/* True if the device and the settings allow this form. */
bool fp_delta_serves(const fp_backend *be, const fp_settings *settings);
/* Work space for one operator; out->used says whether the form applies. Freed with fp_delta_free(). */
fp_status fp_delta_new(fp_delta *out, const fp_problem *problem, const fp_settings *settings);
void fp_delta_free(fp_delta *delta);

/* rounded ← V − W, and V ← W + best */
fp_status fp_delta_set(fp_delta *delta, fp_matrix V);
fp_status fp_delta_get(const fp_delta *delta, fp_matrix V);
/* *out ← ‖VX* − T‖² of V = W + D, where D is delta->D or delta->rounded; never below 0. delta->G ← DA. */
fp_status fp_delta_error(fp_delta *delta, fp_matrix D, double *out);
/* delta->G ← DA alone. */
fp_status fp_delta_multiply(fp_delta *delta, fp_matrix D);
/* best ← rounded and *product ← G, by swapping: `rounded` and G are undefined afterwards. */
fp_status fp_delta_keep(fp_delta *delta, fp_matrix *product);
/* True if fp_delta_round() leaves D unchanged. */
bool fp_delta_rounds_apart(const fp_delta *delta);
/* rounded ← (W + D rounded to the problem's pattern) − W. mask: m × n, overwritten. */
fp_status fp_delta_round(fp_delta *delta, fp_matrix mask);
/* D ← (FISTA's result from W + best) − W. product: best·A. *least ← a lower bound of ‖VX* − T‖² of the result that costs
 * no product, or −∞ if there is none. */
fp_status fp_delta_fista(fp_delta *delta, const fp_settings *settings, double lambda, double L, fp_matrix product,
						 double *least, int64_t *steps);

#endif
