/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/decode_rate.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>

enum { PROMPT_REPEATS = 3 };

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

fp_status fp_measure_decoding(fp_decode_rate *out, fp_model *model, fp_held_form form, int64_t prompt_tokens,
							  int64_t tokens, int64_t memory)
{
	fp_status status;
	fp_backend *be = fp_model_backend(model);
	int64_t vocabulary = fp_model_get_config(model)->vocabulary, slot = 0;
	fp_decoder *decoder = NULL;
	int32_t *ids = NULL, id;
	float *logits = NULL;
	double *seconds = NULL;
	*out = (fp_decode_rate){.prompt_tokens = prompt_tokens, .tokens = tokens};
	FP_TRY(FP_NEW(be->ctx, &ids, prompt_tokens));
	FP_TRY(FP_NEW(be->ctx, &logits, vocabulary));
	FP_TRY(FP_NEW(be->ctx, &seconds, tokens));
	FP_TRY(fp_decoder_new(&decoder, model, 1, prompt_tokens + tokens, memory, form));
	out->weights = fp_decoder_held(decoder);
	for (int64_t i = 0; i < prompt_tokens; i++)
		ids[i] = (int32_t)(i * 7919 % vocabulary);
	for (int r = 0; r < PROMPT_REPEATS; r++) {
		fp_decoder_clear(decoder, slot);
		double started = fp_clock();
		FP_TRY(fp_decoder_append(decoder, slot, ids, prompt_tokens, logits));
		double took = fp_clock() - started;
		out->prompt_seconds = r == 0 || took < out->prompt_seconds ? took : out->prompt_seconds;
	}
	for (int64_t i = 0; i < tokens; i++) {
		FP_TRY(fp_check_interrupt(be->ctx));
		id = (int32_t)(i * 104729 % vocabulary);
		double started = fp_clock();
		FP_TRY(fp_decoder_step(decoder, &slot, &id, 1, logits));
		seconds[i] = fp_clock() - started;
	}
	qsort(seconds, (size_t)tokens, sizeof *seconds, ascending);
	out->token_seconds = seconds[tokens / 2];
cleanup:
	fp_decoder_free(decoder);
	fp_free(seconds);
	fp_free(logits);
	fp_free(ids);
	return status;
}
