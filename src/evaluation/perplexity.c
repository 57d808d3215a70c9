/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perplexity.c:
 *
 *     perplexity = exp(mean of −log p(next token))     over length − 1 tokens of each window
 */
#include "evaluation/perplexity.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "evaluation/chunk_memory.h"
#include "evaluation/text_pass.h"

#include <math.h>

typedef struct evaluation {
	fp_text_pass pass;
	fp_evaluation_progress progress;
	int32_t *targets; /* batch·length */
	float *losses;    /* batch·length */
	double sum;
} evaluation;

static fp_status score(evaluation *e, const int32_t *ids, int64_t count)
{
	fp_status status = FP_OK;
	fp_model *model = e->pass.model;
	int64_t length = e->pass.windows->length;
	FP_PRODUCTS_FOR(fp_model_backend(model), fp_head_use(fp_model_backend(model)));
	for (int64_t first = 0; first < count; first += e->pass.batch) {
		int64_t sequences = fp_smaller(e->pass.batch, count - first);
		fp_next_tokens(e->targets, ids + first * length, sequences, length);
		FP_TRY(fp_model_loss(model, fp_text_pass_hidden(&e->pass, first, sequences), e->targets, e->losses, NULL));
		for (int64_t i = 0; i < sequences * length; i++)
			e->sum += e->losses[i];
		FP_TRY(fp_evaluation_step(fp_model_backend(model)->ctx, &e->progress, sequences));
	}
cleanup:
	return status;
}

fp_status fp_perplexity(fp_perplexity_result *out, fp_model *model, const fp_windows *windows, int64_t memory)
{
	fp_status status;
	fp_backend *be = fp_model_backend(model);
	evaluation e = {.progress.total = windows->count * (fp_model_get_config(model)->layers + 1)};
	*out = (fp_perplexity_result){0};
	e.pass.progress = &e.progress;
	FP_TRY(fp_evaluation_memory(be, memory, &memory));
	FP_TRY(fp_text_pass_plan(&e.pass, model, windows, memory, memory));
	FP_TRY(FP_NEW(be->ctx, &e.targets, e.pass.batch * windows->length));
	FP_TRY(FP_NEW(be->ctx, &e.losses, e.pass.batch * windows->length));
	for (int64_t first = 0; first < windows->count; first += e.pass.chunk) {
		int64_t count = fp_smaller(e.pass.chunk, windows->count - first);
		FP_TRY(fp_text_pass_run(&e.pass, first, count));
		FP_TRY(score(&e, windows->ids + first * windows->length, count));
	}
	out->windows = windows->count;
	out->tokens = windows->count * (windows->length - 1);
	out->mean_loss = e.sum / (double)out->tokens;
	out->perplexity = exp(out->mean_loss);
cleanup:
	fp_free(e.losses);
	fp_free(e.targets);
	fp_text_pass_free(&e.pass);
	return status;
}
