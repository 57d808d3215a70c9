/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h: text to token ids, exactly as the model's Hugging Face tokenizer does. */
#ifndef FP_TOKENIZER_TOKENIZER_H
#define FP_TOKENIZER_TOKENIZER_H

#include "base/context.h"

typedef struct fp_tokenizer fp_tokenizer;

typedef struct fp_tokens { /* a growing list of ids; all zero at first; freed with fp_free(list.ids) */
	int32_t *ids;
	int64_t count, capacity;
} fp_tokens;

/* Reads the tokenizer of a model directory: the first kind of file in tokenizer.c's table that is there, and the
 * special tokens from tokenizer_config.json and special_tokens_map.json. The caller frees it with fp_tokenizer_free().
 */
fp_status fp_tokenizer_open(fp_tokenizer **out, fp_context *ctx, const char *directory);
void fp_tokenizer_free(fp_tokenizer *tokenizer); /* NULL is allowed */

/* Appends the ids of a text of `length` bytes, which may have NULs; invalid UTF-8 becomes U+FFFD, as when Python
 * decodes with errors="replace". with_special adds BOS and EOS as the model's tokenizer does. Not thread-safe: it has a
 * cache. */
fp_status fp_tokenizer_encode(fp_tokenizer *tokenizer, const char *text, int64_t length, bool with_special,
							  fp_tokens *out);

int32_t fp_tokenizer_bos(const fp_tokenizer *tokenizer);  /* −1: it has none */
int32_t fp_tokenizer_eos(const fp_tokenizer *tokenizer);  /* −1: it has none */
int64_t fp_tokenizer_size(const fp_tokenizer *tokenizer); /* ids are below this */
const char *
fp_tokenizer_kind(const fp_tokenizer *tokenizer); /* "byte-level BPE", "SentencePiece BPE" or "Unigram". Borrowed */
/* The text of one token as stored in the vocabulary ("Ġthe", "▁the", "<0x0A>"); NULL: no such id. Borrowed. */
const char *fp_tokenizer_token(const fp_tokenizer *tokenizer, int32_t id);

#endif
