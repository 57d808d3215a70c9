/* SPDX-License-Identifier: Apache-2.0 */
/* window_tokens.h: what evaluation and calibration windows share. */
#ifndef FP_TEXT_WINDOW_TOKENS_H
#define FP_TEXT_WINDOW_TOKENS_H

#include "text/windows.h"

enum { FP_LONGEST_WINDOW = 1 << 24 };

/* Appends the tokens of each document, with its special tokens, until there are at least `enough`. */
fp_status fp_tokenize_documents(fp_context *ctx, fp_tokenizer *tokenizer, const fp_corpus *corpus, int64_t enough,
								fp_tokens *tokens);
fp_status fp_check_window_length(fp_context *ctx, int64_t length);

#endif
