/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fit_loss.h: the loss of a layer fit over windows, and its gradients.
 *
 *     e    = layer(input) − target
 *     d    = target − input
 *     loss = (Σ eᵀFe + 2κ/m Σ g·e) / Σ dᵀFd          with F, κ/m and g of fit_metric.h
 *
 * The denominator is the energy of what the dense layer adds to its input. It makes the losses of different layers and
 * models comparable. Some windows are held out to judge the fit; the gradients come from batches of the others.
 *
 * Ranks that share the windows compute what belongs to their own. Sums are made part by part, and the windows of a batch
 * come from all parts alike, so that ranks have equally much to do.
 */
#ifndef FP_FITTING_FIT_LOSS_H
#define FP_FITTING_FIT_LOSS_H

#include "base/mersenne.h"
#include "fitting/fit_metric.h"
#include "fitting/layer_fit.h"
#include "sharing/kept_entries.h"
#include "sharing/part_sum.h"

typedef struct fp_fit_loss { /* freed with fp_fit_loss_free() */
	const fp_fit_task *task; /* borrowed */
	fp_share share;
	fp_mersenne random;
	int64_t *order;   /* of the windows; the held-out ones are first */
	int64_t *chosen;  /* windows of a part, out of some of the order */
	int64_t held_out; /* windows */
	int64_t drawn;    /* windows drawn in this epoch, of those after the held-out ones */
	fp_tape *tape;
	fp_fit_metric metric;
	fp_matrix input, target;                   /* of a batch */
	fp_matrix slope;                           /* g of a batch; absent when κ = 0 */
	double held_out_energy;                    /* Σ dᵀFd over the held-out windows */
	fp_layer_matrices registers[FP_PARTS + 1]; /* sums of gradients besides the caller's, which is number 0 */
} fp_fit_loss;

/* The task must have at least one held-out window and one other. */
fp_status fp_fit_loss_new(fp_fit_loss *out, const fp_fit_task *task);
void fp_fit_loss_free(fp_fit_loss *loss); /* all zero is allowed */
/* Bytes that fp_fit_loss_new() holds for batches of `tokens` tokens; `metric`: with Fisher matrix; `slope`: with
 * gradients. */
int64_t fp_fit_loss_bytes(const fp_model *model, int64_t tokens, bool metric, bool slope);

/* *loss ← of a layer on the held-out windows; *squared_error ← its first term alone, which is never negative. */
fp_status fp_fit_loss_measure(fp_fit_loss *f, const fp_layer *layer, double *loss, double *squared_error);
/* gradients ← of the loss of a layer on the next batch of the other windows: this rank's rows (fp_row_slice()), without
 * those of frozen operators. kept: if not NULL, the entries of weights and biases that need one. */
fp_status fp_fit_loss_gradients(fp_fit_loss *f, const fp_layer *layer, const fp_kept_entries *kept,
								fp_layer_matrices *gradients);

#endif
