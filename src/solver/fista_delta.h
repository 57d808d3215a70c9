/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delta.h: FISTA on a device that multiplies bf16 much faster than float.
 *
 * The gradient is (Y − W)A − R, where only the small difference D = Y − W is rounded, and D is what is kept in place of
 * Y (backend.h has its form). A, W, R and the product come in 16 bits: W as exactly as the checkpoint has it, the
 * product's and R's roundings are of the size of D's. On ten operators of a small model they moved the error of the
 * result by less than 0.001%.
 */
#ifndef FP_SOLVER_FISTA_DELTA_H
#define FP_SOLVER_FISTA_DELTA_H

#include "solver/steps.h"

typedef struct fp_delta {
	const fp_problem *problem; /* borrowed */
	bool used;                 /* false: not on this device, or not with these settings; all else is absent */
	fp_matrix D;               /* of FISTA's result */
	fp_matrix rounded;         /* of that rounded, in halves likewise; else work space */
	fp_matrix best;            /* by fp_delta_keep() */
	bool skip_checks;          /* steps were so long that none will be short enough to end a descent early */
	fp_matrix A;               /* of the Gram matrix, borrowed */
	fp_matrix W;               /* of the problem, in its own 16 bits where these are at hand */
	fp_matrix R;               /* BF16, absent where the problem's is */
	fp_matrix batched;         /* of the Gram matrix, borrowed; absent until steps are first made at once */
	fp_matrix E;               /* BF16: what these steps make of D = 0; absent where R is */
	double negligible;         /* a shrinkage of this much in all is not felt beside the weights; −1: not known yet */
	fp_matrix G;               /* BF16: DA of the last product */
} fp_delta;

/* True when the device and the settings allow this form. */
bool fp_delta_serves(const fp_backend *be, const fp_settings *settings);
/* True when a round's steps can be expected to be taken in one product, as far as the settings tell. */
bool fp_delta_batches(const fp_backend *be, const fp_settings *settings);
/* Work space for one operator; delta->used says whether the form serves. Freed with fp_delta_free(). */
fp_status fp_delta_new(fp_delta *out, const fp_problem *problem, const fp_settings *settings);
void fp_delta_free(fp_delta *delta);

/* rounded ← V − W, and V ← W + best */
fp_status fp_delta_set(fp_delta *delta, fp_matrix V);
fp_status fp_delta_get(const fp_delta *delta, fp_matrix V);
/* *out ← ‖VX* − T‖² of V = W + D, for `D` or `rounded` of the near form; never below 0. DA is left in delta->G. */
fp_status fp_delta_error(fp_delta *delta, fp_matrix D, double *out);
/* delta->G ← DA alone. */
fp_status fp_delta_multiply(fp_delta *delta, fp_matrix D);
/* `rounded` becomes the best, and is undefined itself then; likewise its product, which goes from G to *product. */
fp_status fp_delta_keep(fp_delta *delta, fp_matrix *product);
/* True when fp_delta_round() leaves D as it is. */
bool fp_delta_rounds_apart(const fp_delta *delta);
/* rounded ← that of W + D rounded to the problem's pattern. mask: m × n, overwritten. */
fp_status fp_delta_round(fp_delta *delta, fp_matrix mask);
/* D ← that of FISTA's result from W + best. product: (V − W)A of the start. *least ← what ‖VX* − T‖² of the result is
 * at least, found without a product of its own; −∞ where that is not known. */
fp_status fp_delta_fista(fp_delta *delta, const fp_settings *settings, double lambda, double L, fp_matrix product,
						 double *least, int64_t *steps);

#endif
