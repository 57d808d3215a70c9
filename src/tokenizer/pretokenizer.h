/* SPDX-License-Identifier: Apache-2.0 */
/* pretokenizer.h: splits text into the pieces that are encoded by themselves: the "pre_tokenizer" of tokenizer.json. */
#ifndef FP_TOKENIZER_PRETOKENIZER_H
#define FP_TOKENIZER_PRETOKENIZER_H

#include "tokenizer/split_regex.h"
#include "tokenizer/unicode_text.h"
#include <jansson.h>

typedef enum fp_pretokenizer_kind { FP_CUT_SPLIT, FP_CUT_BYTE_LEVEL, FP_CUT_METASPACE } fp_pretokenizer_kind;
typedef enum fp_split_behavior {
	FP_SPLIT_ISOLATED,
	FP_SPLIT_REMOVED,
	FP_SPLIT_CONTIGUOUS,
	FP_SPLIT_MERGED_WITH_PREVIOUS,
	FP_SPLIT_MERGED_WITH_NEXT,
} fp_split_behavior;
typedef enum fp_prepend_scheme { FP_PREPEND_NEVER, FP_PREPEND_FIRST, FP_PREPEND_ALWAYS } fp_prepend_scheme;

typedef struct fp_pretokenizer_step {
	fp_pretokenizer_kind kind;
	fp_split_regex *pattern; /* NULL: this step does not split */
	fp_split_behavior behavior;
	bool invert;
	fp_prepend_scheme prepend; /* when to put `mark` before a text that does not start with it */
	char *mark;                /* ByteLevel: a space; Metaspace: the replacement of spaces */
	fp_text_buffer buffer;
} fp_pretokenizer_step;

typedef struct fp_pretokenizer { /* all zero: the text is one piece */
	fp_pretokenizer_step *steps;
	int64_t count, capacity;
	bool byte_level; /* pieces are encoded as bytes */
	/* Steps from this one on follow ByteLevel and see the letters that stand for bytes (GPT-2's alphabet); 0: none do */
	int64_t spelled_from;
	char letter_of[256][3];
	int16_t byte_of[512];          /* −1: no letter */
	fp_text_buffer letters, bytes; /* of a piece */
} fp_pretokenizer;

typedef fp_status (*fp_piece_function)(void *data, const char *piece, int64_t length);

void fp_pretokenizer_clear(fp_pretokenizer *pretokenizer);
fp_status fp_pretokenizer_read(fp_context *ctx, fp_pretokenizer *pretokenizer, const json_t *json);
/* use_regex: split by GPT-2's expression. */
fp_status fp_pretokenizer_add_byte_level(fp_context *ctx, fp_pretokenizer *pretokenizer, bool add_prefix_space,
										 bool use_regex);
fp_status fp_pretokenizer_add_metaspace(fp_context *ctx, fp_pretokenizer *pretokenizer, const char *mark,
										fp_prepend_scheme prepend, bool split);

/* Calls `piece` for each piece in order. `first`: the text is at the start of the input. */
fp_status fp_pretokenizer_run(fp_context *ctx, fp_pretokenizer *pretokenizer, const char *text, int64_t length,
							  bool first, fp_piece_function piece, void *data);

#endif
