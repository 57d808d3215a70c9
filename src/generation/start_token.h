/* SPDX-License-Identifier: Apache-2.0 */
/* start_token.h: the token behind which a model begins a text. */
#ifndef FP_GENERATION_START_TOKEN_H
#define FP_GENERATION_START_TOKEN_H

#include "generation/stop_tokens.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

/* What the tokenizer puts before a text, else BOS, else a stop token. Fails if there is none of them. */
fp_status fp_start_token(int32_t *out, const fp_model *model, fp_tokenizer *tokenizer, const fp_stop_tokens *stop);

#endif
