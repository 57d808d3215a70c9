/* SPDX-License-Identifier: Apache-2.0 */
/* prompts.h: the prompts of a request to generate text, as tokens. */
#ifndef FP_API_PROMPTS_H
#define FP_API_PROMPTS_H

#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <fistapruner/fistapruner.h>
#include <jansson.h>

typedef struct fp_prompts { /* freed with fp_prompts_free() */
	json_t *lines;          /* the objects of the batch's lines; NULL: one prompt */
	fp_tokens *tokens;      /* of each prompt */
	int64_t count;
} fp_prompts;

/* Fails, and names the line of a batch, if a prompt is empty, or longer than the model has positions for. */
fp_status fp_prompts_read(fp_prompts *out, const fp_model *model, fp_tokenizer *tokenizer,
						  const fp_generate_request *request);
void fp_prompts_free(fp_prompts *prompts);

#endif
