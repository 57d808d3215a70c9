/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unigram.h: a piece of text as the tokens whose scores have the largest sum (Viterbi). A character that is not a token
 * has the score
 *
 *     unknown = min(scores) − 10.
 *
 * Of equal sums the first one found wins, starts from left to right and of one start the shortest token first, as in
 * Hugging Face's tokenizers and sentencepiece. O(n · longest token) for n bytes.
 */
#ifndef FP_TOKENIZER_UNIGRAM_H
#define FP_TOKENIZER_UNIGRAM_H

#include "tokenizer/piece_trie.h"
#include "tokenizer/vocabulary.h"

typedef struct fp_unigram_arrival { /* the best way to a place in the text */
	double score;
	int32_t id, length; /* the last token; length 0: the place is not reached */
} fp_unigram_arrival;

typedef struct fp_unigram { /* all zero at first, then fp_unigram_start() */
	const fp_vocabulary *vocabulary;
	fp_piece_trie trie;
	int64_t count; /* ids from this one on are no pieces but added tokens */
	double unknown_score;
	int32_t unknown;    /* −1: there is none, and an unknown character is an error */
	bool byte_fallback; /* unknown text becomes its bytes' tokens <0x00>…<0xFF> */
	/* As sentencepiece, not tokenizers: sums are rounded to float, and a run of unknown characters is not looked up. */
	bool as_sentencepiece;
	int32_t byte_ids[256];
	fp_unigram_arrival *arrivals; /* scratch: by place since the last one that every way passes */
	int64_t capacity, furthest;   /* furthest: the last place that is reached */
} fp_unigram;

void fp_unigram_start(fp_unigram *unigram, const fp_vocabulary *vocabulary); /* borrowed */
void fp_unigram_clear(fp_unigram *unigram);

/* Builds the tables for encoding from the pieces that are searched for in text, which it sorts; `least` is the lowest
 * score. Call it when the fields above and the vocabulary are set. */
fp_status fp_unigram_finish(fp_unigram *unigram, fp_context *ctx, fp_trie_piece *pieces, int64_t count, double least);

fp_status fp_unigram_encode(fp_context *ctx, fp_unigram *unigram, const char *piece, int64_t length, fp_tokens *out);

#endif
