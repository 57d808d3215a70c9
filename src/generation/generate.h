/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h: texts that continue prompts, several at a time. */
#ifndef FP_GENERATION_GENERATE_H
#define FP_GENERATION_GENERATE_H

#include "generation/decoder.h"
#include "generation/sampling.h"
#include "generation/stop_tokens.h"

typedef enum fp_stop_reason {
	FP_STOP_TOKEN,    /* the model wrote a stop token */
	FP_STOP_LIMIT,    /* max_tokens are there */
	FP_STOP_POSITIONS /* the model has no more positions */
} fp_stop_reason;

typedef struct fp_generation {
	const int32_t *prompt; /* at least one token; borrowed */
	int64_t prompt_count;
	int32_t *ids; /* the tokens that follow, room for max_tokens; the caller's. A stop token is the last one */
	int64_t count;
	fp_stop_reason stop;
} fp_generation;

typedef struct fp_generation_task {
	fp_stop_tokens stop;
	fp_sampling sampling;
	uint64_t seed; /* text i has stream i */
	int64_t max_tokens;
	/* Called with every token of text `index` as it comes; may be NULL. A failure ends the call. */
	fp_status (*token)(void *data, int64_t index, int32_t id);
	/* Called when text `index` is complete; may be NULL. */
	fp_status (*complete)(void *data, int64_t index);
	void *data;
	/* ← time and tokens through the model: of prompts, and of what follows */
	double prompt_seconds, seconds;
	int64_t prompt_tokens, tokens;
} fp_generation_task;

/* Positions that a slot of the decoder needs for a prompt: its tokens and max_tokens more, or all that the model has. */
int64_t fp_generation_capacity(const fp_model *model, int64_t prompt_count, int64_t max_tokens);

/* Continues `count` prompts, as many at a time as the decoder has slots; the next prompt takes the slot of a text that
 * ended. What a text says does not depend on the texts beside it, except for rounding. */
fp_status fp_generate_texts(fp_generation_task *task, fp_model *model, fp_decoder *decoder, int64_t slots,
							fp_generation *texts, int64_t count);

#endif
