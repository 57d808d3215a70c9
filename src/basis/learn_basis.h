/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_basis.h: finds the basis in which a pattern removes the least of a model's operators (model/basis.h): first that
 * of the residual stream, which all layers share, then that of each layer's heads and inner channels.
 */
#ifndef FP_BASIS_LEARN_BASIS_H
#define FP_BASIS_LEARN_BASIS_H

#include "base/settings.h"
#include "model/basis.h"
#include "sharing/share.h"
#include "text/windows.h"

typedef struct fp_basis_task {
	fp_backend *be;
	fp_context *ctx;
	fp_model *model;
	const fp_settings *settings;
	const fp_windows *windows;
	fp_pattern pattern;
	fp_basis_freedom freedom;
	bool stream;        /* the residual stream too */
	const bool *pruned; /* by layer and operator: those that count; NULL: all */
	int64_t memory;     /* bytes that may be used, the same on all ranks */
	fp_share share;     /* fp_basis_share() */
} fp_basis_task;

/* What the pattern removes, weighted by what the loss feels, as a share of all that there was before. */
typedef struct fp_basis_gain {
	double stream_before, stream_after; /* by R; 0 if the stream is left alone */
	double local_before, local_after;   /* of the operators of heads, in the basis R */
	double seconds;
} fp_basis_gain;

/* How ranks share the layers of a step; comm NULL: this process learns by itself. The result has the same bits for any
 * number of ranks. A share that is all zero gives other last bits: gradients are then added in another order. */
fp_share fp_basis_share(fp_comm *comm);
/* Freed with fp_basis_free(). */
fp_status fp_learn_basis(fp_basis **out, const fp_basis_task *task, fp_basis_gain *gain);
/* Operations of its matrix products, with so many weights in a layer. */
double fp_learn_basis_flops(const fp_basis_task *task, int64_t weights);
/* Bytes at its peak, at least. If task->memory is larger, it learns from more layers at once. */
int64_t fp_learn_basis_bytes(const fp_basis_task *task);

/* The length of Adam's steps at step `step` of `steps`: a short rise, then a cosine to zero. */
double fp_basis_rate(const fp_basis_task *task, int64_t step, int64_t steps);

#endif
