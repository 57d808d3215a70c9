/* SPDX-License-Identifier: Apache-2.0 */
/* stream_pool.h: the layers that the basis of the residual stream is learned from, and the costs of their inputs. */
#ifndef FP_BASIS_STREAM_POOL_H
#define FP_BASIS_STREAM_POOL_H

#include "basis/learn_basis.h"

/* The operators that read the stream: {q, k, v}, {gate, up}, and gate and up of experts. */
enum { FP_READ_ATTENTION, FP_READ_FEED, FP_READ_EXPERTS, FP_READ_COUNT };

/* A layer to learn from, with the norms' weights in its operators. Experts share the costs of the stream's features; those
 * of their own channels are E[x²]: with hundreds of experts, a few tokens each, there is no more to know. */
typedef struct fp_pooled_layer { /* freed with fp_pooled_layer_free() */
	fp_layer *layer;
	fp_matrix U[FP_READ_COUNT]; /* of the inputs of readers; absent: the layer has none */
	fp_matrix h[2];             /* 1 × inputs: of o and down */
	fp_matrix expert_h;         /* 1 × channels of all blocks of the layer: of the experts' down */
	double *weight;             /* of each operator's mass */
} fp_pooled_layer;

/* pool ← layers at equal distances, in the basis so far. sensitivities: by layer and role. */
fp_status fp_fill_pool(const fp_basis_task *task, fp_pooled_layer *pool, int64_t count, const double *sensitivities);
void fp_pooled_layer_free(fp_backend *be, fp_pooled_layer *pooled); /* all zero is allowed */
/* The type of U. */
fp_dtype fp_pool_factor_type(const fp_backend *be);

#endif
