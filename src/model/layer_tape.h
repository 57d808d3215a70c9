/* SPDX-License-Identifier: Apache-2.0 */
/* layer_tape.h: the matrices that a forward pass stores for its backward pass. For the files of this folder only. */
#ifndef FP_MODEL_LAYER_TAPE_H
#define FP_MODEL_LAYER_TAPE_H

#include "model/layer_backward.h"
#include "model/position_tables.h"
#include "model/routing.h"

/* Of a mixture of experts, with P = tokens · active places (experts.c). */
typedef struct fp_expert_tape {
	fp_routing routing;
	fp_matrix y;              /* tokens × hidden in F32; absent where the tape's y has that type */
	fp_matrix logits;         /* tokens × experts, and the shared expert's gate; then their gradients */
	fp_matrix x, gate, up, z; /* of P rows; x in BF16 if products round */
	fp_matrix scaled;         /* w z, in BF16 likewise */
	fp_matrix out;            /* scaled Wdownᵀ; then dx */
	fp_matrix d;              /* the gradients of `out` */
	fp_matrix dz, dgate, dup;
	fp_matrix dweight;  /* 1 × P */
	fp_matrix shared_z; /* z of the expert that reads every token, whose scaled z is the tape's */
	fp_matrix dshared;  /* 1 × tokens */
} fp_expert_tape;

/* Of latents (latent_backward.c); all absent for a model without them. */
typedef struct fp_latent_tape {
	fp_matrix raw_query, query; /* u before and after its norm; absent if queries are made of x */
	fp_matrix joint, latent;    /* c ‖ r, and norm(c) */
	fp_matrix wide;             /* q, then k' ‖ v, then the gradients of the context, of q, and of k' ‖ v */
	fp_matrix context;          /* attention's output without zeros */
	fp_matrix dquery, dlatent, djoint;
} fp_latent_tape;

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
	/* If products round their operands, what they read and write is stored in BF16, except sums (hidden₁, hidden₂, dy) and
	 * what passes through a norm. These are BF16 copies of what remains in F32, and BF16 gradients. */
	fp_matrix rounded_x, rounded_y, rounded_d, dup, dgate;
	fp_position_tables positions;
	fp_latent_tape latents;
	fp_expert_tape experts;
};

/* The rows of a tape matrix that the current batch uses. */
static inline fp_matrix fp_tape_used(const fp_tape *tape, fp_matrix part)
{
	return fp_matrix_rows(part, 0, tape->sequences * tape->length);
}
/* The same of a matrix that is wide enough for every layer, in a layer where it has `width` columns. */
static inline fp_matrix fp_tape_inner(const fp_tape *tape, fp_matrix part, int64_t width)
{
	return fp_matrix_reshape(part, tape->sequences * tape->length, width);
}

/* --- operator_backward.c ------------------------------------------------------------------------------------------ */

/* What a backward pass computes besides the gradient of the layer's input. */
typedef struct fp_wanted {
	fp_layer_matrices *gradients; /* of weights and biases; may be NULL */
	fp_matrix *energies;          /* by number, as in fp_layer_backward_energies(); may be NULL */
	bool add;                     /* to the present values */
} fp_wanted;
/* The gradients or energies of one operator, from the gradient of its output. */
fp_status fp_operator_gradients(const fp_layer *layer, int number, fp_matrix gradient, fp_matrix input,
								const fp_wanted *want);
/* The same, and the gradient of its input: dinput ← gradient·weight + β·dinput. */
fp_status fp_operator_backward(const fp_layer *layer, int number, fp_matrix gradient, fp_matrix input,
							   const fp_wanted *want, float beta, fp_matrix dinput);

/* --- latent_backward.c -------------------------------------------------------------------------------------------- */

/* The tape's Q, K and V ← those of latents of x, before they turn. */
fp_status fp_latents_forward_taped(const fp_layer *layer, fp_tape *tape, fp_matrix x);
/* From dQ, dK and dV, turned back: dx ← its gradient, unless absent. */
fp_status fp_latents_backward(const fp_layer *layer, fp_tape *tape, fp_matrix x, const fp_wanted *want, fp_matrix dx);

/* --- experts_backward.c ------------------------------------------------------------------------------------------- */

/* target ← β·target + what the experts add. y: the feed-forward part's input in F32, and as products read it. */
fp_status fp_experts_forward_taped(const fp_layer *layer, fp_tape *tape, fp_matrix y, fp_matrix rounded_y, float beta,
								   fp_matrix target);
/* dy ← its gradient, from d, that of `target`, as products read it. */
fp_status fp_experts_backward(const fp_layer *layer, fp_tape *tape, fp_matrix d, const fp_wanted *want, fp_matrix dy);

#endif
