/* SPDX-License-Identifier: Apache-2.0 */
/* vocabulary.h: the tokens of a model, by text and by id. */
#ifndef FP_TOKENIZER_VOCABULARY_H
#define FP_TOKENIZER_VOCABULARY_H

#include "tokenizer/text_map.h"
#include "tokenizer/tokenizer.h"

enum { FP_LARGEST_ID = 1 << 24 }; /* above any vocabulary; limits the memory for a damaged file */

typedef struct fp_vocabulary { /* all zero at first */
	fp_text_map map;           /* token → id */
	int64_t *text_place;       /* id → 1 + offset of its text in map.bytes; 0: no such id */
	int64_t size, capacity;
} fp_vocabulary;

void fp_vocabulary_clear(fp_vocabulary *vocabulary);

/* Adds a token. It is an error if the token has another id already, or the id another token. */
fp_status fp_vocabulary_put(fp_context *ctx, fp_vocabulary *vocabulary, const char *token, int64_t length, int64_t id);
int32_t fp_vocabulary_get(const fp_vocabulary *vocabulary, const char *token, int64_t length); /* −1: not there */
const char *fp_vocabulary_text(const fp_vocabulary *vocabulary, int64_t id); /* NULL: no such id. Borrowed */

/* ids ← those of <0x00>…<0xFF>, which stand for bytes; −1: not there */
void fp_vocabulary_find_bytes(const fp_vocabulary *vocabulary, int32_t ids[256]);

fp_status fp_tokens_append(fp_context *ctx, fp_tokens *tokens, int32_t id);

#endif
