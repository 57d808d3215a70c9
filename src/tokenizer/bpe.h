/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe.h: byte-pair encoding of one piece of text. Starting from its characters or bytes, the neighbours whose merge has
 * the lowest rank are merged, leftmost first, until no neighbours have a merge. O(n log n) for a piece of n bytes.
 */
#ifndef FP_TOKENIZER_BPE_H
#define FP_TOKENIZER_BPE_H

#include "tokenizer/unicode_text.h"
#include "tokenizer/vocabulary.h"

typedef struct fp_merge {
	uint64_t pair; /* left id << 32 | right id */
	int32_t rank;  /* −1: the slot is free */
	int32_t merged;
} fp_merge;

typedef struct fp_bpe_symbol {
	int32_t id, previous, next;
} fp_bpe_symbol;

typedef struct fp_bpe_candidate {
	uint64_t order; /* rank << 32 | position: lowest rank first, then leftmost */
	int32_t left, right, merged;
} fp_bpe_candidate;

enum { FP_CACHE_KEY = 27, FP_CACHE_IDS = 8, FP_CACHE_SLOTS = 1 << 16, FP_CACHE_AFTER_BYTES = 4096 };

typedef struct fp_bpe_cached { /* one cache line */
	int32_t ids[FP_CACHE_IDS];
	uint32_t check;
	uint8_t length, count; /* length 0: free */
	char key[FP_CACHE_KEY - 1];
} fp_bpe_cached;

typedef struct fp_bpe { /* all zero at first, then fp_bpe_start() */
	const fp_vocabulary *vocabulary;
	fp_merge *merges;
	int64_t merge_capacity, merge_count;
	fp_text_buffer joined; /* scratch: the text of a merge's result */
	bool byte_level;       /* symbols are bytes, written in GPT-2's alphabet in the vocabulary */
	bool byte_fallback;    /* an unknown character becomes its bytes' tokens <0x00>…<0xFF> */
	bool fuse_unknown;     /* a run of unknown characters is one unknown token */
	bool ignore_merges;    /* a piece that is a token becomes that token */
	bool cut_at_spaces;    /* set by fp_bpe_finish(): no token has U+2581 after another character, so a piece can be cut
							  there */
	int32_t unknown;       /* −1: unknown characters are dropped */
	int32_t byte_ids[256];
	fp_text_map words;    /* for byte_level with ignore_merges: the tokens as bytes */
	fp_bpe_cached *cache; /* allocated after the first FP_CACHE_AFTER_BYTES of text */
	int64_t encoded_bytes;
	fp_bpe_symbol *symbols;
	fp_bpe_candidate *heap;
	int64_t symbol_capacity, heap_capacity, heap_count;
} fp_bpe;

void fp_bpe_start(fp_bpe *bpe, const fp_vocabulary *vocabulary); /* borrowed */
void fp_bpe_clear(fp_bpe *bpe);

/* If a pair is given twice, the last rank wins, as in Hugging Face. */
fp_status fp_bpe_put_merge(fp_context *ctx, fp_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t merged);
/* A merge by its texts, as in merges.txt and tokenizer.json; `where` names the file in messages. */
fp_status fp_bpe_put_merge_text(fp_context *ctx, fp_bpe *bpe, const char *left, int64_t left_length, const char *right,
								int64_t right_length, int64_t rank, const char *where);
/* Builds the tables for encoding. Call it when flags, vocabulary and merges are set. */
fp_status fp_bpe_finish(fp_context *ctx, fp_bpe *bpe);

fp_status fp_bpe_encode(fp_context *ctx, fp_bpe *bpe, const char *piece, int64_t length, fp_tokens *out);

/* The character of a byte in GPT-2's alphabet: UTF-8 of one or two bytes, and a NUL. */
void fp_byte_letter(unsigned char byte, char letter[3]);

#endif
