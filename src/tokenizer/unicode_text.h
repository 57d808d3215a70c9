/* SPDX-License-Identifier: Apache-2.0 */
/* unicode_text.h: UTF-8 in and out, and the two character classes that matching of added tokens asks for. */
#ifndef FP_TOKENIZER_UNICODE_TEXT_H
#define FP_TOKENIZER_UNICODE_TEXT_H

#include "base/context.h"

#define FP_SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's visible space */

/* A growing text; all zero at first; freed with fp_free(text.bytes). Not ended by NUL. */
typedef struct fp_text_buffer {
	char *bytes;
	int64_t length, capacity;
} fp_text_buffer;
fp_status fp_text_append(fp_context *ctx, fp_text_buffer *buffer, const char *bytes, int64_t length);

/* The character at the start of valid UTF-8; returns its size. Of bytes that are not UTF-8 it takes one as it is. */
int fp_utf8_decode(const char *text, int64_t length, uint32_t *code);
int fp_utf8_encode(uint32_t code, char *out); /* returns its size, 1…4 */

/* The number of leading bytes that are valid UTF-8 (no surrogates, no overlong forms). */
int64_t fp_utf8_valid_prefix(const char *text, int64_t length);
/* Appends text with every maximal invalid part replaced by U+FFFD: Python's bytes.decode("utf-8", errors="replace"). */
fp_status fp_utf8_repair(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out);

bool fp_is_white_space(uint32_t code); /* Unicode's White_Space: Rust's \s */
bool fp_is_word(uint32_t code);        /* Rust's \w */

#endif
