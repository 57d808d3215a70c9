/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/own_text.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "generation/decoder.h"
#include "generation/sampling.h"
#include "text/window_tokens.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	MOST_SLOTS = 64, /* windows at a time: more hardly make products faster */
	ATTEMPTS = 4,    /* at one window */
	HOT_TOKENS = 8,  /* of each text; docs/research/own-text.md has the figures */
	RUN = 4,         /* tokens that count as repeated if they come again together */
};
static const double FIRST_TEMPERATURE = 1.5; /* falls to 1 over the hot tokens */
static const double HEAT = 1.25;             /* of a further attempt, compared with the one before */
static const double LEAST_DISTINCT = 0.5;

/* A window as it was drawn last. */
typedef struct drawn_window {
	int64_t index, attempt;
	int64_t age; /* tokens since the start token */
	fp_mersenne random;
	double loss; /* of `losses` tokens */
	int64_t losses;
	int32_t *ids;
} drawn_window;

typedef struct own_text_run {
	const fp_own_text_task *task;
	fp_context *ctx;
	fp_decoder *decoder;
	fp_windows *out;
	fp_own_text_statistics *statistics;
	int64_t slots, vocabulary;
	drawn_window *windows; /* in the slots */
	int32_t *ids;          /* slots × length */
	float *logits;         /* slots × vocabulary */
	int64_t *pending;      /* indices of the windows to draw in this attempt, and of those to draw again */
	int64_t pending_count;
	double *distinct;  /* of each window of `out`; −1: not drawn yet */
	double *loss;      /* of each window of `out` */
	int64_t *losses;   /* tokens of each */
	uint64_t *digests; /* of each window of `out` */
	uint64_t *hashes;  /* scratch: length */
	/* Of one step. */
	int64_t *step_slots;
	int32_t *step_ids;
	fp_mersenne **step_random;
	fp_sampling *step_sampling;
	double *step_losses;
} own_text_run;

static double temperature_of(int64_t attempt)
{
	return pow(HEAT, (double)attempt);
}

/* For the token behind `age` tokens of a text. */
static double temperature_at(int64_t attempt, int64_t age)
{
	double rest = age < HOT_TOKENS ? 1 - (double)age / HOT_TOKENS : 0;
	return temperature_of(attempt) * (1 + (FIRST_TEMPERATURE - 1) * rest);
}

static fp_status allocate(own_text_run *run)
{
	const fp_own_text_task *task = run->task;
	fp_status status;
	FP_TRY(FP_NEW(run->ctx, &run->out->ids, task->count * task->length));
	FP_TRY(FP_NEW(run->ctx, &run->windows, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->ids, run->slots * task->length));
	FP_TRY(FP_NEW(run->ctx, &run->logits, run->slots * run->vocabulary));
	FP_TRY(FP_NEW(run->ctx, &run->pending, task->count));
	FP_TRY(FP_NEW(run->ctx, &run->distinct, task->count));
	FP_TRY(FP_NEW(run->ctx, &run->loss, task->count));
	FP_TRY(FP_NEW(run->ctx, &run->losses, task->count));
	FP_TRY(FP_NEW(run->ctx, &run->digests, task->count));
	FP_TRY(FP_NEW(run->ctx, &run->hashes, task->length));
	FP_TRY(FP_NEW(run->ctx, &run->step_slots, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->step_ids, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->step_random, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->step_sampling, run->slots));
	FP_TRY(FP_NEW(run->ctx, &run->step_losses, run->slots));
	run->out->count = task->count;
	run->out->length = task->length;
	for (int64_t i = 0; i < task->count; i++) {
		run->pending[i] = i;
		run->distinct[i] = -1;
	}
	run->pending_count = task->count;
cleanup:
	return status;
}

static void free_run(own_text_run *run)
{
	fp_free(run->windows);
	fp_free(run->ids);
	fp_free(run->logits);
	fp_free(run->pending);
	fp_free(run->distinct);
	fp_free(run->loss);
	fp_free(run->losses);
	fp_free(run->digests);
	fp_free(run->hashes);
	fp_free(run->step_slots);
	fp_free(run->step_ids);
	fp_free(run->step_random);
	fp_free(run->step_sampling);
	fp_free(run->step_losses);
}

/* Notes the token that was drawn for a window at place t. */
static void take_token(own_text_run *run, drawn_window *window, int64_t t, int32_t id, double temperature, double loss)
{
	const fp_own_text_task *task = run->task;
	if (temperature == 1) {
		window->loss += loss;
		window->losses++;
	}
	bool starts = id == task->start || fp_is_stop_token(&task->stop, id);
	window->ids[t] = starts ? task->start : id;
	window->age = starts ? 0 : window->age + 1;
}

/* Draws the windows pending[first …] in the slots, all at the same place. */
static fp_status draw(own_text_run *run, int64_t attempt, int64_t first, int64_t count)
{
	const fp_own_text_task *task = run->task;
	int threads = fp_model_backend(task->model)->threads;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < count; i++) {
		drawn_window *window = &run->windows[i];
		int64_t index = run->pending[first + i];
		*window = (drawn_window){.index = index, .attempt = attempt, .ids = run->ids + i * task->length};
		fp_sampler_seed(&window->random, task->seed, index + attempt * task->count);
		window->ids[0] = task->start;
		fp_decoder_clear(run->decoder, i);
		run->step_slots[i] = i;
		run->step_random[i] = &window->random;
	}
	for (int64_t t = 1; t < task->length; t++) {
		for (int64_t i = 0; i < count; i++) {
			run->step_ids[i] = run->windows[i].ids[t - 1];
			run->step_sampling[i] =
				(fp_sampling){.temperature = temperature_at(attempt, run->windows[i].age), .top_p = 1};
		}
		FP_TRY(fp_check_interrupt(run->ctx));
		FP_TRY(fp_decoder_step(run->decoder, run->step_slots, run->step_ids, count, run->logits));
		FP_TRY(fp_sample_rows(run->ctx, threads, run->step_random, run->step_sampling, run->logits, count,
							  run->vocabulary, run->step_ids, run->step_losses));
		for (int64_t i = 0; i < count; i++)
			take_token(run, &run->windows[i], t, run->step_ids[i], run->step_sampling[i].temperature,
					   run->step_losses[i]);
		if (attempt == 0)
			fp_report_progress(run->ctx, "writing text", first * (task->length - 1) + t * count,
							   run->pending_count * (task->length - 1));
	}
	run->statistics->drawn_tokens += count * (task->length - 1);
cleanup:
	return status;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* The share of runs of RUN tokens that differ; 1 for a window that has none. */
static double share_of_distinct(own_text_run *run, const int32_t *ids)
{
	int64_t count = run->task->length - RUN + 1, distinct = 0;
	if (count < 1)
		return 1;
	for (int64_t i = 0; i < count; i++)
		run->hashes[i] = fp_digest_bytes(FP_DIGEST_START, ids + i, RUN * (int64_t)sizeof *ids);
	qsort(run->hashes, (size_t)count, sizeof *run->hashes, by_value);
	for (int64_t i = 0; i < count; i++)
		distinct += i == 0 || run->hashes[i] != run->hashes[i - 1];
	return (double)distinct / (double)count;
}

/* Whether another window has the same tokens. */
static bool is_known(const own_text_run *run, int64_t index, uint64_t digest)
{
	for (int64_t i = 0; i < run->task->count; i++)
		if (i != index && run->distinct[i] >= 0 && run->digests[i] == digest)
			return true;
	return false;
}

/* Keeps a window if it is the best of its attempts; true: it is to be drawn again. A copy of another window counts as
 * one that repeats itself from beginning to end. */
static bool judge(own_text_run *run, const drawn_window *window)
{
	int64_t length = run->task->length, index = window->index;
	int64_t bytes = length * (int64_t)sizeof *window->ids;
	uint64_t digest = fp_digest_bytes(FP_DIGEST_START, window->ids, bytes);
	double distinct = is_known(run, index, digest) ? 0 : share_of_distinct(run, window->ids);
	if (distinct > run->distinct[index]) {
		memcpy(run->out->ids + index * length, window->ids, (size_t)bytes);
		run->distinct[index] = distinct;
		run->digests[index] = digest;
		run->loss[index] = window->loss;
		run->losses[index] = window->losses;
		run->statistics->temperature = fmax(run->statistics->temperature, temperature_of(window->attempt));
	}
	return distinct < LEAST_DISTINCT;
}

/* Draws all pending windows; those that repeat themselves stay pending. */
static fp_status attempt_all(own_text_run *run, int64_t attempt)
{
	fp_status status = FP_OK;
	int64_t again = 0, all = run->pending_count;
	for (int64_t first = 0; first < all; first += run->slots) {
		int64_t count = fp_smaller(run->slots, all - first);
		FP_TRY(draw(run, attempt, first, count));
		for (int64_t i = 0; i < count; i++)
			if (judge(run, &run->windows[i]))
				run->pending[again++] = run->windows[i].index;
	}
	run->pending_count = again;
cleanup:
	return status;
}

/* The windows that the statistics describe. */
static int64_t described(const fp_own_text_task *task)
{
	return task->described > 0 ? task->described : task->count;
}

static int64_t described_pending(const own_text_run *run)
{
	int64_t count = 0;
	for (int64_t i = 0; i < run->pending_count; i++)
		count += run->pending[i] < described(run->task);
	return count;
}

static void summarise(own_text_run *run)
{
	const fp_own_text_task *task = run->task;
	fp_own_text_statistics *s = run->statistics;
	int64_t count = described(task);
	double loss = 0;
	int64_t losses = 0;
	s->least = 1;
	for (int64_t i = 0; i < count; i++) {
		s->distinct += run->distinct[i] / (double)count;
		s->least = fmin(s->least, run->distinct[i]);
		loss += run->loss[i];
		losses += run->losses[i];
	}
	for (int64_t i = 0; i < count * task->length; i++)
		s->texts += run->out->ids[i] == task->start;
	s->perplexity = losses > 0 ? exp(loss / (double)losses) : 0;
	s->repetitive = described_pending(run);
}

/* As many slots as fit into memory, in halves of MOST_SLOTS, so that the same machine draws the same batches. */
static fp_status open_decoder(own_text_run *run)
{
	const fp_own_text_task *task = run->task;
	fp_status status;
	run->slots = fp_smaller(MOST_SLOTS, task->count);
	do {
		status = fp_decoder_new(&run->decoder, task->model, run->slots, task->length, task->memory, FP_HELD_DENSE);
		if (status != FP_ERROR_MEMORY || run->slots == 1)
			return status;
		run->slots /= 2;
		fp_clear_message(run->ctx);
	} while (true);
}

fp_status fp_own_text_check_count(fp_context *ctx, int64_t samples)
{
	if (samples > 0)
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_USAGE,
				   "--samples 0 means all windows of a text, but the model's own text has no end; give a number, such "
				   "as 128");
}

fp_status fp_own_text(fp_windows *out, fp_own_text_statistics *statistics, const fp_own_text_task *task)
{
	own_text_run run = {.task = task,
						.ctx = fp_model_backend(task->model)->ctx,
						.out = out,
						.statistics = statistics,
						.vocabulary = fp_model_get_config(task->model)->vocabulary};
	double start = fp_clock();
	fp_status status;
	*out = (fp_windows){0};
	*statistics = (fp_own_text_statistics){0};
	FP_REQUIRE(fp_model_backend(task->model), task->count > 0);
	FP_TRY(fp_check_window_length(run.ctx, task->length));
	FP_TRY(open_decoder(&run));
	FP_TRY(allocate(&run));
	for (int64_t attempt = 0; attempt < ATTEMPTS && run.pending_count > 0; attempt++) {
		if (attempt == 1)
			statistics->drawn_again = described_pending(&run);
		FP_TRY(attempt_all(&run, attempt));
	}
	summarise(&run);
	statistics->seconds = fp_clock() - start;
cleanup:
	if (status != FP_OK)
		fp_windows_free(out);
	fp_decoder_free(run.decoder);
	fp_model_drop_head(task->model);
	free_run(&run);
	return status;
}
