/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_parts.h: the fields of a tokenizer, for the readers of its files. */
#ifndef FP_TOKENIZER_PARTS_H
#define FP_TOKENIZER_PARTS_H

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/unigram.h"

enum { FP_MOST_SPECIALS = 16, FP_TOKENIZER_FILE_LIMIT = 512 << 20 };

/* What a decoder leaves out at the start of a text. */
typedef enum fp_leading_space {
	FP_LEADING_ONE,   /* the space that the tokenizer puts there, if it does: the decoder Strip */
	FP_LEADING_NONE,  /* nothing */
	FP_LEADING_FIRST, /* every space of the first token, as the decoder Metaspace does */
	FP_LEADING_EACH,  /* a space of each token until there is text, as sentencepiece with remove_extra_whitespaces */
} fp_leading_space;

struct fp_tokenizer {
	fp_context *ctx;
	fp_vocabulary vocabulary;
	bool is_unigram; /* pieces of text are encoded by `unigram`, not by `bpe` */
	fp_bpe bpe;
	fp_unigram unigram;
	fp_added_tokens raw_added;        /* searched for in the original text */
	fp_normalizer normalizer;         /* applied to the parts between them */
	fp_added_tokens normalized_added; /* searched for in the normalized parts */
	fp_pretokenizer pretokenizer;
	int32_t prefix[FP_MOST_SPECIALS], suffix[FP_MOST_SPECIALS]; /* ids that encode(with_special) adds around a text */
	int prefix_count, suffix_count;
	bool lists_added_tokens;  /* in its file, so that tokenizer_config.json adds only missing ones */
	bool adds_bos_by_default; /* unless add_bos_token says otherwise */
	char *directory;          /* for messages */
	int32_t bos, eos;
	fp_leading_space leading_space;
	bool shows_bytes; /* decoding leaves <0x0A> as it is */
	const char *kind;
	fp_text_buffer repaired; /* scratch: the input with invalid UTF-8 replaced */
};

typedef struct fp_added_settings {
	bool left_strip, right_strip, single_word, normalized, special;
} fp_added_settings;

/* Adds a token to search for. If it is not in the vocabulary, it gets `id`, or the next free id if that is −1. */
fp_status fp_tokenizer_add_token(fp_tokenizer *tokenizer, const char *content, int64_t id, fp_added_settings settings);

/* A JSON file; `flags` are jansson's. The caller releases *out with json_decref(). */
fp_status fp_load_json(json_t **out, fp_context *ctx, const char *path, size_t flags);

/* The files beside the vocabulary. A missing file is no error. */
typedef struct fp_tokenizer_settings {
	json_t *config, *special_map, *added,
		*model; /* tokenizer_config, special_tokens_map, added_tokens, config; may be NULL */
} fp_tokenizer_settings;
fp_status fp_tokenizer_settings_read(fp_tokenizer_settings *settings, fp_context *ctx, const char *directory);
void fp_tokenizer_settings_clear(fp_tokenizer_settings *settings);
bool fp_tokenizer_settings_flag(const fp_tokenizer_settings *settings, const char *name, bool missing);
/* Adds the special tokens they name, finds BOS and EOS, and decides what goes around the ids of a text. */
fp_status fp_tokenizer_settings_apply(const fp_tokenizer_settings *settings, fp_tokenizer *tokenizer);

/* The readers fill an empty tokenizer from the file `path`. */
fp_status fp_read_tokenizer_json(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings, const char *path);
fp_status fp_read_sentencepiece(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings, const char *path);
fp_status fp_read_vocabulary_and_merges(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings,
										const char *path);

#endif
