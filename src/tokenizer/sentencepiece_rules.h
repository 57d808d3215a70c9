/* SPDX-License-Identifier: Apache-2.0 */
/* sentencepiece_rules.h: how sentencepiece changes a text before it is split, by the normalizer_spec of its file. */
#ifndef FP_TOKENIZER_SENTENCEPIECE_RULES_H
#define FP_TOKENIZER_SENTENCEPIECE_RULES_H

#include "tokenizer/added_tokens.h"
#include "tokenizer/character_map.h"

typedef struct fp_sentencepiece_rules { /* all zero: changes nothing */
	fp_character_map map;
	fp_added_tokens symbols;  /* what the map leaves as it is */
	bool add_dummy_prefix;    /* a space before a text that is not empty */
	bool remove_extra_spaces; /* those at both ends, and all but the first of a run */
	bool escape_spaces;       /* writes a space as U+2581 */
} fp_sentencepiece_rules;

void fp_sentencepiece_rules_clear(fp_sentencepiece_rules *rules);

/* Appends the changed text to `out`, which is empty. */
fp_status fp_sentencepiece_rules_apply(const fp_sentencepiece_rules *rules, fp_context *ctx, const char *text,
									   int64_t length, fp_text_buffer *out);

#endif
