/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.h: a whole model in memory, with the keys and values of the tokens that it has seen, so that the next token of
 * a text costs one token's work. Sequences are in slots; each has its own number of tokens.
 */
#ifndef FP_GENERATION_DECODER_H
#define FP_GENERATION_DECODER_H

#include "model/model.h"

typedef struct fp_decoder fp_decoder;

/* Loads all layers of `model`, which must outlive it, holds their weights in `form` and the head, and makes `slots` empty
 * slots for `capacity` tokens each. Fails if that takes more than `memory` bytes; 0: more than is free. The caller frees
 * it with fp_decoder_free(). */
fp_status fp_decoder_new(fp_decoder **out, fp_model *model, int64_t slots, int64_t capacity, int64_t memory,
						 fp_held_form form);
void fp_decoder_free(fp_decoder *decoder); /* NULL is allowed */

/* What is held: operators and bytes by form, and the bytes of the head. One token reads all of them once, except for
 * experts that it is not routed to. */
typedef struct fp_decoder_weights {
	int64_t operators[FP_HELD_FORMS], bytes[FP_HELD_FORMS];
	int64_t entries; /* of all operators */
	int64_t head_bytes, head_entries;
} fp_decoder_weights;
fp_decoder_weights fp_decoder_held(const fp_decoder *decoder);

/* Appends `count` tokens, such as a prompt, to one slot, in blocks; logits (host, one for each token of the vocabulary)
 * ← what the model predicts behind the last one. */
fp_status fp_decoder_append(fp_decoder *decoder, int64_t slot, const int32_t *ids, int64_t count, float *logits);
/* Appends one token to each of `count` slots, ids[i] to slots[i]; logits: count × vocabulary. Slots must differ;
 * neighbours that have equally many tokens are the fastest. */
fp_status fp_decoder_step(fp_decoder *decoder, const int64_t *slots, const int32_t *ids, int64_t count, float *logits);
/* Empties a slot. */
void fp_decoder_clear(fp_decoder *decoder, int64_t slot);

#endif
