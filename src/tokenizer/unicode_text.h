/* SPDX-License-Identifier: Apache-2.0 */
/* unicode_text.h: UTF-8, text buffers, and two character classes. */
#ifndef FP_TOKENIZER_UNICODE_TEXT_H
#define FP_TOKENIZER_UNICODE_TEXT_H

#include "base/context.h"

#define FP_SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's visible space */

/* A growing text, without a NUL; all zero at first; freed with fp_free(text.bytes). */
typedef struct fp_text_buffer {
	char *bytes;
	int64_t length, capacity;
} fp_text_buffer;
fp_status fp_text_append(fp_context *ctx, fp_text_buffer *buffer, const char *bytes, int64_t length);

/* Decodes the first character and returns its size. A byte that is not valid UTF-8 gives its own value, size 1. */
int fp_utf8_decode(const char *text, int64_t length, uint32_t *code);
int fp_utf8_encode(uint32_t code, char *out); /* returns its size, 1…4 */
/* Decodes the character before `at` > 0 and returns where it starts. */
int64_t fp_utf8_previous(const char *text, int64_t at, uint32_t *code);

/* The number of leading bytes that are valid UTF-8 (no surrogates, no overlong forms). */
int64_t fp_utf8_valid_prefix(const char *text, int64_t length);
/* Appends the text with invalid parts replaced by U+FFFD, as Python's bytes.decode("utf-8", errors="replace"). */
fp_status fp_utf8_repair(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out);

/* The number of bytes at the end that begin a character which further bytes can complete: 0…3. */
int64_t fp_utf8_unfinished(const char *text, int64_t length);

bool fp_is_white_space(uint32_t code); /* Unicode's White_Space: Rust's \s */
bool fp_is_word(uint32_t code);        /* Rust's \w */
uint32_t fp_lowercase(uint32_t code);  /* İ gives i */

#endif
