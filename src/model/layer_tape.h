/* SPDX-License-Identifier: Apache-2.0 */
/* layer_tape.h: the matrices that a forward pass stores for its backward pass. For the files of this folder only. */
#ifndef FP_MODEL_LAYER_TAPE_H
#define FP_MODEL_LAYER_TAPE_H

#include "model/layer_backward.h"
#include "model/position_tables.h"

/* The names are those of the formulas in layer_backward.c. */
struct fp_tape {
	const fp_model *model; /* borrowed */
	fp_backend *be;        /* borrowed */
	int64_t tokens;        /* capacity */
	int64_t sequences, length;
	fp_matrix input;        /* the caller's */
	fp_matrix x, y;         /* absent where they are `input`, hidden₁ or each other */
	fp_matrix Q, K, V;      /* after the norm of each head and the rotation */
	fp_matrix raw_Q, raw_K; /* before them; absent unless heads are normalised */
	fp_matrix branch[2];    /* context Woᵀ and z Wdownᵀ, if they are normalised */
	fp_matrix dbranch;      /* their gradients, if they differ from that of the sum */
	fp_matrix context;
	fp_matrix hidden1;
	fp_matrix hidden2; /* the backward pass turns it into its gradient */
	fp_matrix output;  /* norm₁(hidden₂) if sums are normalised, else absent */
	fp_matrix up, gate, z;
	fp_matrix dz, dy, dcontext, dQ, dK, dV;
	fp_matrix dx; /* if the blocks are parallel; else dy serves for it */
	/* If products round their operands, x, y and z are stored in BF16, unless something other than
	 * a product reads them. These are BF16 copies of what remains in F32, and BF16 gradients. */
	fp_matrix rounded_x, rounded_y, rounded_context, rounded_d, dup, dgate;
	fp_position_tables positions;
};

#endif
