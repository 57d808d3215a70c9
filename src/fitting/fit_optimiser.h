/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fit_optimiser.h: Adam on the weights and biases of one layer; zeros of the weights stay zeros.
 *
 * The length of a step is proportional to the root mean square of each operator's weights, and smaller for operators
 * with many inputs. So one rate serves operators and models of any scale and sparsity.
 *
 * Ranks that share the windows take the step on some rows each, and have the moments of these only.
 */
#ifndef FP_FITTING_FIT_OPTIMISER_H
#define FP_FITTING_FIT_OPTIMISER_H

#include "fitting/layer_fit.h"
#include "sharing/kept_entries.h"
#include "sharing/part_sum.h"

/* What an optimiser has on the device; a sum of these. */
enum {
	FP_FIT_WEIGHTS = 1, /* and `narrow` */
	FP_FIT_MOMENTS = 2,
	FP_FIT_GRADIENTS = 4,
	FP_FIT_ROUNDED = 8, /* after FP_FIT_WEIGHTS, or with them */
	FP_FIT_ALL = 15
};

typedef struct fp_fit_optimiser { /* freed with fp_fit_optimiser_free() */
	const fp_fit_task *task;      /* borrowed */
	fp_share share;
	fp_layer_matrices weights;      /* F32 */
	fp_layer_matrices narrow;       /* the same in BF16, where products round to it; no biases */
	fp_layer_matrices rounded;      /* the same as the checkpoint would hold them, in the types of the layer */
	fp_layer_matrices gradients;    /* the caller sets this rank's rows (fp_row_slice()) before each step */
	fp_layer_matrices mean, square; /* of this rank's rows */
	fp_addends moving;              /* weights and biases that are not frozen, from the start on, if ranks send them */
	fp_kept_entries kept;           /* of these; empty: ranks send all entries */
	double *rate;                   /* of each operator, before the schedule */
} fp_fit_optimiser;

/* Without matrices. */
fp_status fp_fit_optimiser_new(fp_fit_optimiser *out, const fp_fit_task *task);
void fp_fit_optimiser_free(fp_fit_optimiser *optimiser); /* all zero is allowed */
/* Allocates those of the sets that it has not; the content is undefined. And the reverse. */
fp_status fp_fit_optimiser_allocate(fp_fit_optimiser *o, int sets);
void fp_fit_optimiser_release(fp_fit_optimiser *o, int sets);
/* Bytes of these sets, for a layer of the model in one process, with so many sums of gradients, of which others hold all but
 * one; and what rounding takes. */
int64_t fp_fit_optimiser_bytes(const fp_model *model, int64_t layer, int sets, int registers);

/* Starts from the weights of the task's layer, with all rates multiplied by `factor`. */
fp_status fp_fit_optimiser_start(fp_fit_optimiser *o, double factor);
/* The same from the weights that it has. */
fp_status fp_fit_optimiser_restart(fp_fit_optimiser *o, double factor);
/* narrow ← weights */
fp_status fp_fit_optimiser_narrow(fp_fit_optimiser *o);
/* What ranks send of gradients and weights; NULL: all. */
const fp_kept_entries *fp_fit_optimiser_kept(const fp_fit_optimiser *o);
/* Step number `step` of `steps`, from 0. */
fp_status fp_fit_optimiser_step(fp_fit_optimiser *o, int64_t step, int64_t steps);
/* rounded ← weights. Both are there. */
fp_status fp_fit_optimiser_round(fp_fit_optimiser *o);
/* The task's layer ← rounded */
fp_status fp_fit_optimiser_keep(fp_fit_optimiser *o);

/* The task's layer with the weights of the optimiser, as they are multiplied or rounded. It owns nothing. */
fp_layer fp_fit_optimiser_layer(const fp_fit_optimiser *o);
fp_layer fp_fit_optimiser_rounded_layer(const fp_fit_optimiser *o);

#endif
