/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/generate.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"

/* A slot of the decoder and the text in it. */
typedef struct active_text {
	int64_t slot, index;
	fp_mersenne random;
} active_text;

typedef struct generation_run {
	fp_generation_task *task;
	fp_model *model;
	fp_context *ctx;
	fp_decoder *decoder;
	fp_generation *texts;
	int64_t slots, vocabulary;
	active_text *active; /* by slot; index −1: free */
	float *logits;       /* slots × vocabulary */
	/* Of one step: the slots that are not free, their newest tokens, random numbers and how those are used. */
	int64_t *step_slots;
	int32_t *step_ids;
	fp_mersenne **step_random;
	fp_sampling *step_sampling;
} generation_run;

int64_t fp_generation_capacity(const fp_model *model, int64_t prompt_count, int64_t max_tokens)
{
	return fp_smaller(prompt_count + max_tokens, fp_model_get_config(model)->positions);
}

/* Adds the next token of a text and frees its slot if it is the last one. */
static fp_status take_token(generation_run *run, active_text *active, int32_t id)
{
	fp_generation_task *task = run->task;
	fp_generation *text = &run->texts[active->index];
	fp_status status = FP_OK;
	int64_t limit = fp_generation_capacity(run->model, text->prompt_count, task->max_tokens) - text->prompt_count;
	int64_t index = active->index;
	text->ids[text->count++] = id;
	if (task->token)
		FP_TRY(task->token(task->data, index, id));
	bool stops = fp_is_stop_token(&task->stop, id);
	if (!stops && text->count < limit)
		goto cleanup;
	text->stop = stops ? FP_STOP_TOKEN : limit < task->max_tokens ? FP_STOP_POSITIONS : FP_STOP_LIMIT;
	active->index = -1;
	if (task->complete)
		FP_TRY(task->complete(task->data, index));
cleanup:
	return status;
}

/* Feeds the prompt of a text to a free slot and draws the first token behind it. */
static fp_status begin_text(generation_run *run, active_text *active, int64_t index)
{
	fp_generation_task *task = run->task;
	const fp_generation *text = &run->texts[index];
	fp_mersenne *random = &active->random;
	int32_t id = -1;
	double start = fp_clock();
	fp_status status;
	active->index = index;
	fp_sampler_seed(random, task->seed, index);
	fp_decoder_clear(run->decoder, active->slot);
	FP_TRY(fp_decoder_append(run->decoder, active->slot, text->prompt, text->prompt_count, run->logits));
	FP_TRY(fp_sample_rows(run->ctx, 1, &random, &task->sampling, run->logits, 1, run->vocabulary, &id, NULL));
	task->prompt_seconds += fp_clock() - start;
	task->prompt_tokens += text->prompt_count;
	FP_TRY(take_token(run, active, id));
cleanup:
	return status;
}

/* One more token for every text in a slot; *count ← how many there were. */
static fp_status step(generation_run *run, int64_t *count)
{
	fp_status status = FP_OK;
	fp_generation_task *task = run->task;
	double start = fp_clock();
	*count = 0;
	for (int64_t slot = 0; slot < run->slots; slot++) {
		active_text *active = &run->active[slot];
		if (active->index < 0)
			continue;
		const fp_generation *text = &run->texts[active->index];
		run->step_slots[*count] = slot;
		run->step_ids[*count] = text->ids[text->count - 1];
		run->step_sampling[*count] = task->sampling;
		run->step_random[(*count)++] = &active->random;
	}
	if (*count == 0)
		goto cleanup;
	FP_TRY(fp_check_interrupt(run->ctx));
	FP_TRY(fp_decoder_step(run->decoder, run->step_slots, run->step_ids, *count, run->logits));
	FP_TRY(fp_sample_rows(run->ctx, fp_model_backend(run->model)->threads, run->step_random, run->step_sampling,
						  run->logits, *count, run->vocabulary, run->step_ids, NULL));
	task->seconds += fp_clock() - start;
	task->tokens += *count;
	for (int64_t i = 0; i < *count; i++)
		FP_TRY(take_token(run, &run->active[run->step_slots[i]], run->step_ids[i]));
cleanup:
	return status;
}

static fp_status allocate(generation_run *run)
{
	fp_status status;
	FP_TRY(FP_NEW(run->ctx, &run->active, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->logits, run->slots * run->vocabulary));
	FP_TRY(FP_NEW(run->ctx, &run->step_slots, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->step_ids, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->step_random, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->step_sampling, run->slots));
	for (int64_t slot = 0; slot < run->slots; slot++)
		run->active[slot] = (active_text){.slot = slot, .index = -1};
cleanup:
	return status;
}

fp_status fp_generate_texts(fp_generation_task *task, fp_model *model, fp_decoder *decoder, int64_t slots,
							fp_generation *texts, int64_t count)
{
	generation_run run = {.task = task,
						  .model = model,
						  .ctx = fp_model_backend(model)->ctx,
						  .decoder = decoder,
						  .texts = texts,
						  .slots = slots,
						  .vocabulary = fp_model_get_config(model)->vocabulary};
	int64_t next = 0, running = 0;
	fp_status status;
	FP_TRY(allocate(&run));
	task->prompt_seconds = task->seconds = 0;
	task->prompt_tokens = task->tokens = 0;
	do {
		for (int64_t slot = 0; slot < slots; slot++)
			while (run.active[slot].index < 0 && next < count)
				FP_TRY(begin_text(&run, &run.active[slot], next++));
		FP_TRY(step(&run, &running));
	} while (running > 0 || next < count);
cleanup:
	fp_free(run.step_sampling);
	fp_free(run.step_random);
	fp_free(run.step_ids);
	fp_free(run.step_slots);
	fp_free(run.logits);
	fp_free(run.active);
	return status;
}
