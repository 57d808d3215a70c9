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
	bool normalised, has_shared;
	int32_t *token;  /* by place: the token that is read there */
	int32_t *place;  /* tokens × active: the places of each token */
	int32_t *expert; /* tokens × active */
	int64_t *first;  /* experts + 1: the first place of each */
	/* On the device, by place (1 × tokens·active) or token (1 × tokens): */
	fp_matrix weight;                            /* w_e */
	fp_matrix share;                             /* w_e divided by the sum of all weights of the token */
	fp_matrix shared_weight, shared_share;       /* of the expert that reads every token; absent without one */
	float *logits, *weights, *shares, *shared_s; /* on the host; shared_s: shared_share */
} fp_routing;

/* For batches of at most `tokens` tokens; an empty one for a model without experts. */
fp_status fp_routing_new(fp_routing *out, const fp_model *model, int64_t tokens);
void fp_routing_free(fp_routing *routing); /* may be all zero */
/* Bytes on the device. */
int64_t fp_routing_bytes(const fp_model *model, int64_t tokens);

/* Routes by logits: tokens × experts, and one more column for the shared expert's gate if there is one. Waits for them.
 * Of equal logits the first expert is taken. */
fp_status fp_routing_set(fp_routing *routing, fp_matrix logits);
/* dlogits ← the gradient by the logits of the last fp_routing_set(), from those by `weight` and `shared_weight`. */
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
