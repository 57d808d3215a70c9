/* SPDX-License-Identifier: Apache-2.0 */
/* stop_tokens.h: the tokens that end a text, by the model's own files. */
#ifndef FP_GENERATION_STOP_TOKENS_H
#define FP_GENERATION_STOP_TOKENS_H

#include "checkpoint/checkpoint.h"

enum { FP_MOST_STOP_TOKENS = 64 };
typedef struct fp_stop_tokens {
	int32_t ids[FP_MOST_STOP_TOKENS];
	int count; /* 0: the model names none */
} fp_stop_tokens;

/* eos_token_id, a number or a list, of generation_config.json; if that names none, of config.json. */
fp_status fp_stop_tokens_read(fp_stop_tokens *out, fp_context *ctx, const fp_checkpoint *checkpoint);
bool fp_is_stop_token(const fp_stop_tokens *stop, int32_t id);

#endif
