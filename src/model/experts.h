/* SPDX-License-Identifier: Apache-2.0 */
/* experts.h: the forward pass of a mixture of experts. For the files of this folder only. */
#ifndef FP_MODEL_EXPERTS_H
#define FP_MODEL_EXPERTS_H

#include "model/layer.h"
#include "model/routing.h"

/* The memory of one pass, for T tokens with P = T·active places. All absent for a model without experts. */
typedef struct fp_expert_space {
	fp_routing routing;       /* by this stream's own router */
	const fp_routing *routed; /* the present batch's: `routing`, or another stream's */
	fp_matrix y;              /* T × h in F32, which the router reads; absent if activations are F32 */
	fp_matrix logits;         /* T × experts, and the shared expert's gate */
	fp_matrix rows;           /* P × h */
	fp_matrix gate, up;       /* P × f */
	fp_matrix out;            /* P × h in F32; `rows` itself if activations are F32 */
	fp_matrix input;          /* what fp_layer_expert_rows() gives: a view of `rows` or `up` */
} fp_expert_space;

fp_status fp_expert_space_new(fp_expert_space *out, const fp_model *model, int64_t tokens, fp_dtype type);
void fp_expert_space_free(fp_backend *be, fp_expert_space *space); /* may be all zero */
int64_t fp_expert_space_bytes(const fp_model *model, int64_t tokens, fp_dtype type);

/* logits ← those of the router and the shared expert's gate for y, in F32 */
fp_status fp_experts_logits(const fp_layer *layer, fp_matrix y, fp_matrix logits);
/* Y ← X Wᵀ for the operator `role` of each expert and its own rows. */
fp_status fp_experts_multiply(const fp_layer *layer, const fp_routing *routing, fp_role role, fp_matrix X, fp_matrix Y);

/* Routes the tokens whose feed-forward input is y (F32), unless `follow` says how. */
fp_status fp_experts_route(const fp_layer *layer, fp_expert_space *space, fp_matrix y, const fp_routing *follow);
/* space->input ← the rows that gate and up read (group 2) or down reads (group 3), from y in F32 or the type of `rows`;
 * scaled by the weights of their tokens. */
fp_status fp_experts_input(const fp_layer *layer, int group, fp_expert_space *space, fp_matrix y);
/* target ← β·target + what the experts add, from space->input of group 3 */
fp_status fp_experts_add(const fp_layer *layer, fp_expert_space *space, float beta, fp_matrix target);

#endif
