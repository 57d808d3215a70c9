/* SPDX-License-Identifier: Apache-2.0 */
/*
 * routing.h: which experts read which tokens of a batch, and with what weights.
 *
 * A token has `active` places, one with each of its experts. Places are sorted by expert, and for each expert by token: the
 * rows of an expert lie one after the other.
 */
#ifndef FP_MODEL_ROUTING_H
#define FP_MODEL_ROUTING_H

#include "model/model.h"

typedef struct fp_routing { /* freed with fp_routing_free() */
	fp_backend *be;         /* borrowed */
	int64_t capacity;       /* tokens */
	int64_t tokens;         /* of the present batch */
	int64_t experts, active;
	const fp_experts_config *config; /* borrowed */
	int32_t *token;                  /* by place: the token that is read there */
	int32_t *place;                  /* tokens × active: the places of each token */
	int32_t *expert;                 /* tokens × active */
	int64_t *first;                  /* experts + 1: the first place of each */
	/* On the device, by place (1 × tokens·active) or token (1 × tokens): */
	fp_matrix weight;                      /* w_e */
	fp_matrix share;                       /* w_e divided by the sum of all weights of the token */
	fp_matrix shared_weight, shared_share; /* of the expert that reads every token; absent without one */
	/* On the host: p and the gate's weight in place of the logits; what experts are chosen by, unless it is p; the
	 * correction; and what the matrices above have (shared_s: shared_share). */
	float *logits, *scores, *correction, *weights, *shares, *shared_s;
} fp_routing;

/* For batches of at most `tokens` tokens; an empty one for a model without experts. */
fp_status fp_routing_new(fp_routing *out, const fp_model *model, int64_t tokens);
void fp_routing_free(fp_routing *routing); /* may be all zero */
/* Bytes on the device. */
int64_t fp_routing_bytes(const fp_model *model, int64_t tokens);

/* Columns of the logits: one for each expert, and one for the shared expert's gate if there is one. */
static inline int64_t fp_routing_columns(const fp_experts_config *experts)
{
	return experts->count + experts->shared_gated;
}
/* Routes by logits: tokens × fp_routing_columns(). Waits for them. `correction`: 1 × experts, absent if the model has
 * none. Of equal scores the first expert is taken. */
fp_status fp_routing_set(fp_routing *routing, fp_matrix logits, fp_matrix correction);
/* dlogits ← the gradient by the logits of the last fp_routing_set(), from those by `weight` and `shared_weight`. The
 * correction decides about the choice only, which has no gradient. */
fp_status fp_routing_backward(fp_routing *routing, fp_matrix dweight, fp_matrix dshared, fp_matrix dlogits);

/* The rows of an expert in a matrix of places. */
static inline fp_matrix fp_routing_rows(const fp_routing *routing, int64_t expert, fp_matrix places)
{
	return fp_matrix_rows(places, routing->first[expert], routing->first[expert + 1] - routing->first[expert]);
}
/* All places of the present batch. */
static inline int64_t fp_routing_places(const fp_routing *routing)
{
	return routing->tokens * routing->active;
}

#endif
