/* SPDX-License-Identifier: Apache-2.0 */
/* detokenizer.h: token ids to text, a token at a time, as the model's Hugging Face tokenizer decodes them without special
 * tokens. Tokens may end within a character; its bytes are held back until it is whole. */
#ifndef FP_TOKENIZER_DETOKENIZER_H
#define FP_TOKENIZER_DETOKENIZER_H

#include "tokenizer/tokenizer.h"

typedef struct fp_detokenizer fp_detokenizer;

/* at_start: the ids begin a text, so that the space which the tokenizer puts before one is left out; false: they continue
 * one. The caller frees it with fp_detokenizer_free(), before the tokenizer. */
fp_status fp_detokenizer_new(fp_detokenizer **out, fp_context *ctx, const fp_tokenizer *tokenizer, bool at_start);
void fp_detokenizer_free(fp_detokenizer *detokenizer); /* NULL is allowed */

/* *text ← the next `*length` bytes of the text, valid UTF-8, perhaps none; borrowed until the next call. A special token
 * and an id without a token have no text. */
fp_status fp_detokenizer_add(fp_detokenizer *detokenizer, int32_t id, const char **text, int64_t *length);
/* The same for what was held back: a character that is not whole becomes U+FFFD. */
fp_status fp_detokenizer_finish(fp_detokenizer *detokenizer, const char **text, int64_t *length);

#endif
