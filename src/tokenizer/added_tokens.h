/* SPDX-License-Identifier: Apache-2.0 */
/* added_tokens.h: tokens that are searched for in the text before it is split: leftmost first, then longest. */
#ifndef FP_TOKENIZER_ADDED_TOKENS_H
#define FP_TOKENIZER_ADDED_TOKENS_H

#include "tokenizer/text_map.h"

typedef struct fp_added_token {
	int32_t id;
	bool left_strip, right_strip; /* also takes the white space on that side */
	bool single_word;             /* not matched next to a word character */
	bool special;                 /* has no text of its own: BOS and the like */
} fp_added_token;

typedef struct fp_added_tokens { /* all zero at first */
	fp_text_map map;             /* content → index in tokens */
	fp_added_token *tokens;
	int64_t count, capacity;
	int64_t *lengths; /* the distinct lengths of contents, longest first */
	int64_t length_count, length_capacity;
	bool starts[256]; /* whether a content begins with this byte */
} fp_added_tokens;

typedef struct fp_added_match {
	int64_t start, end; /* the part of the text that the token replaces */
	int64_t match_end;  /* where the next search starts */
	int32_t id;
} fp_added_match;

void fp_added_tokens_clear(fp_added_tokens *added);
/* Empty content is ignored, as in Hugging Face. The same content again replaces the earlier token. */
fp_status fp_added_tokens_put(fp_context *ctx, fp_added_tokens *added, const char *content, int64_t length,
							  fp_added_token token);
/* The next token at or after `from`. Text before `taken` belongs to an earlier match. False: there is none. */
bool fp_added_tokens_find(const fp_added_tokens *added, const char *text, int64_t length, int64_t from, int64_t taken,
						  fp_added_match *match);

#endif
