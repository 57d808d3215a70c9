/* SPDX-License-Identifier: Apache-2.0 */
/* normalizer.h: changes the text before it is split: the "normalizer" of tokenizer.json, or SentencePiece's. */
#ifndef FP_TOKENIZER_NORMALIZER_H
#define FP_TOKENIZER_NORMALIZER_H

#include "tokenizer/sentencepiece_rules.h"
#include "tokenizer/split_regex.h"
#include <jansson.h>

typedef enum fp_normalizer_kind {
	FP_NORMALIZE_NFC,
	FP_NORMALIZE_NFD,
	FP_NORMALIZE_NFKC,
	FP_NORMALIZE_NFKD,
	FP_NORMALIZE_LOWERCASE,
	FP_NORMALIZE_NMT,           /* removes control characters, and makes spaces of other white space */
	FP_NORMALIZE_STRIP,         /* removes white space at the ends */
	FP_NORMALIZE_PREPEND,       /* puts `content` before a text that is not empty */
	FP_NORMALIZE_REPLACE,       /* replaces every match by `content` */
	FP_NORMALIZE_PRECOMPILED,   /* replaces characters by rules->map */
	FP_NORMALIZE_SENTENCEPIECE, /* applies `rules` */
} fp_normalizer_kind;

typedef struct fp_normalizer_step {
	fp_normalizer_kind kind;
	char *content;
	char *literal;           /* FP_NORMALIZE_REPLACE: the text to replace; */
	fp_split_regex *pattern; /* if NULL, the regular expression */
	bool at_start, at_end;   /* FP_NORMALIZE_STRIP: the ends */
	fp_sentencepiece_rules *rules;
} fp_normalizer_step;

typedef struct fp_normalizer { /* all zero: does not change the text */
	fp_normalizer_step *steps;
	int64_t count, capacity;
	fp_text_buffer buffers[2];
	bool start_removed; /* by the last run: what the text began with is gone */
} fp_normalizer;

void fp_normalizer_clear(fp_normalizer *normalizer);
/* Adds a step with sentencepiece's rules. *rules ← the step's, all zero, for the caller to fill. */
fp_status fp_normalizer_add_sentencepiece(fp_context *ctx, fp_normalizer *normalizer, fp_sentencepiece_rules **rules);
fp_status fp_normalizer_read(fp_context *ctx, fp_normalizer *normalizer, const json_t *json); /* from tokenizer.json */

/* *out is `text` itself or borrowed from the normalizer until the next call. */
fp_status fp_normalizer_run(fp_context *ctx, fp_normalizer *normalizer, const char *text, int64_t length,
							const char **out, int64_t *out_length);

#endif
