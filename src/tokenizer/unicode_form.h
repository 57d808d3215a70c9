/* SPDX-License-Identifier: Apache-2.0 */
/* unicode_form.h: Unicode's normal forms, as Hugging Face's tokenizers have them. */
#ifndef FP_TOKENIZER_UNICODE_FORM_H
#define FP_TOKENIZER_UNICODE_FORM_H

#include "tokenizer/unicode_text.h"

/* Appends NFC, NFD, NFKC or NFKD of a text: composed or not, with compatible characters replaced or not. */
fp_status fp_unicode_form(fp_context *ctx, const char *text, int64_t length, bool compose, bool compatible,
						  fp_text_buffer *out);

#endif
