/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotation.h: Adam on orthogonal matrices.
 *
 * With the gradient G of an objective at R, the directions in which R stays orthogonal are RX with a skew-symmetric X,
 * and the objective's gradient by X is
 *
 *     Ω = RᵀG − GᵀR
 *
 * Adam runs on the entries of Ω and gives the step X. Then
 *
 *     R ← R(I + X + X²/2)         exp(X) up to the third power
 *     R ← R(3I − RᵀR)/2           one step of Newton and Schulz to the nearest orthogonal matrix
 *
 * which needs ‖X‖₂ < 1.68: a longer X, as a gradient of low rank can give, is shortened first.
 */
#ifndef FP_BASIS_ROTATION_H
#define FP_BASIS_ROTATION_H

#include "sharing/share.h"

/* Which X are allowed. */
typedef enum fp_rotation_kind {
	FP_TURN_ALL,
	FP_TURN_KEEP_ONES /* X1 = 0, so that R1 stays 1: what LayerNorm permits */
} fp_rotation_kind;

typedef struct fp_rotation { /* freed with fp_rotation_free() */
	fp_backend *be;
	fp_rotation_kind kind;
	fp_matrix R;        /* borrowed: blocks·n × n, one orthogonal matrix in every n rows */
	fp_matrix gradient; /* G, of the same shape; the caller sets it before each step */
	fp_matrix omega, mean, square, X, product;
	fp_matrix vector, image;  /* blocks·n × 1, for ‖X‖₂ */
	fp_matrix factors, zeros; /* 1 × blocks·n */
	float *host;              /* blocks·n */
	fp_matrix ones;           /* n × 1, for FP_TURN_KEEP_ONES */
	fp_matrix means;          /* n × 1, the same */
	int64_t steps;
	const fp_share *ranks; /* that have the same R; NULL: one process */
	const fp_share *share; /* the same, if they divide the products of a step, else NULL */
} fp_rotation;

fp_status fp_rotation_new(fp_rotation *out, fp_backend *be, fp_rotation_kind kind, fp_matrix R);
/* For ranks that all set the same gradient and take the same steps: they divide the products, if that is faster than making
 * all of them and gives the same bits. Otherwise each makes all, and where their devices round differently, they take R from
 * rank 0 after each step. */
void fp_rotation_divide(fp_rotation *rotation, const fp_share *share);
void fp_rotation_free(fp_rotation *rotation); /* all zero is allowed */
/* Bytes that fp_rotation_new() allocates for R of rows × n entries. */
int64_t fp_rotation_bytes(fp_rotation_kind kind, int64_t rows, int64_t n);

/* A step down the gradient. rate: the length of Adam's step for an entry of X times √n, so that one rate serves every
 * order. */
fp_status fp_rotation_step(fp_rotation *rotation, double rate);
/* Newton and Schulz in exact products until R is orthogonal in float. */
fp_status fp_rotation_finish(fp_rotation *rotation);

#endif
