/* SPDX-License-Identifier: Apache-2.0 */
/* added_tokens.h: tokens that are looked for in the text before anything else: leftmost, then longest. */
#ifndef FP_TOKENIZER_ADDED_TOKENS_H
#define FP_TOKENIZER_ADDED_TOKENS_H

#include "tokenizer/text_map.h"

typedef struct fp_added_token {
	int32_t id;
	bool left_strip, right_strip; /* takes the white space beside it */
	bool single_word;             /* only where no word character touches it */
} fp_added_token;

typedef struct fp_added_tokens { /* all zero at first */
	fp_text_map map;             /* content → index in tokens */
	fp_added_token *tokens;
	int64_t count, capacity;
	int64_t *lengths; /* the different lengths of contents, longest first */
	int64_t length_count, length_capacity;
	bool starts[256]; /* bytes that a content begins with */
} fp_added_tokens;

typedef struct fp_added_match {
	int64_t start, end; /* what the token takes from the text */
	int64_t match_end;  /* where the next search goes on */
	int32_t id;
} fp_added_match;

void fp_added_tokens_clear(fp_added_tokens *added);
/* An empty content is ignored, as Hugging Face does; the same content again replaces the first. */
fp_status fp_added_tokens_put(fp_context *ctx, fp_added_tokens *added, const char *content, int64_t length,
							  fp_added_token token);
/* The next token at or after `from`; text before `taken` already belongs to another. False: no more. */
bool fp_added_tokens_find(const fp_added_tokens *added, const char *text, int64_t length, int64_t from, int64_t taken,
						  fp_added_match *match);

#endif
