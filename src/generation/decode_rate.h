/* SPDX-License-Identifier: Apache-2.0 */
/* decode_rate.h: how fast a model reads a prompt and writes text. */
#ifndef FP_GENERATION_DECODE_RATE_H
#define FP_GENERATION_DECODE_RATE_H

#include "generation/decoder.h"

typedef struct fp_decode_rate {
	fp_decoder_weights weights;
	int64_t prompt_tokens, tokens; /* measured with these numbers */
	double prompt_seconds;         /* of the whole prompt, the best of a few */
	double token_seconds;          /* of one token behind it, the median */
} fp_decode_rate;

/* Runs the model with its weights held in `form`, on `prompt_tokens` arbitrary tokens and `tokens` more, one at a time. */
fp_status fp_measure_decoding(fp_decode_rate *out, fp_model *model, fp_held_form form, int64_t prompt_tokens,
							  int64_t tokens, int64_t memory);

#endif
