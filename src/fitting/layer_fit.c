/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_fit.c: takes steps of Adam (fit_optimiser.h) on the loss of one layer (fit_loss.h). After some of them it
 * rounds the weights to the checkpoint's types and measures them on the held-out windows. The best such point, the
 * start included, is kept.
 */
#include "fitting/layer_fit.h"

#include "base/clock.h"
#include "base/numbers.h"
#include "fitting/fit_loss.h"
#include "fitting/fit_optimiser.h"

#include <math.h>

enum {
	EVALUATIONS = 4,  /* at equal distances */
	EARLY_SHARE = 16, /* of the steps, after which a fit that gets worse is stopped */
	LEAST_EARLY = 4,
	FEW_WINDOWS = 128, /* more of them get more steps, up to MOST_STEPS times as many */
	MOST_STEPS = 4,
	MOST_EPOCHS = 25,
	ATTEMPTS = 3
};
static const double NEXT_RATE = 0.25; /* of an attempt, relative to the one before */
static const double TOLERANCE = 0.05; /* by which a loss may rise above the start's, as a share of the start's error */

int64_t fp_fit_held_out(const fp_settings *settings, int64_t windows)
{
	int64_t held_out = fp_larger((int64_t)ceil(settings->fit_holdout * (double)windows), 1);
	return windows >= 2 && held_out < windows ? held_out : 0;
}

/* More windows allow more steps. A limit on the epochs avoids overfitting a short text. */
int64_t fp_fit_steps(const fp_settings *settings, int64_t windows, int64_t length)
{
	double share = (double)windows / FEW_WINDOWS;
	double steps = (double)settings->fit_steps * fmin(fmax(share, 1), MOST_STEPS);
	double epoch = (double)windows / (double)fp_fit_batch(settings, windows, length);
	return (int64_t)fmax(fmin(steps, ceil(MOST_EPOCHS * epoch)), 1);
}

int64_t fp_fit_batch(const fp_settings *settings, int64_t windows, int64_t length)
{
	int64_t training = windows - fp_fit_held_out(settings, windows);
	return fp_larger(fp_smaller(settings->fit_tokens / length, training), 1);
}

int64_t fp_fit_bytes(const fp_model *model, int64_t layer, int64_t tokens, bool metric, bool slope, int registers)
{
	return fp_fit_loss_bytes(model, tokens, metric, slope) +
		   fp_fit_optimiser_bytes(model, layer, FP_FIT_ALL, registers);
}

fp_status fp_fit_check(const fp_backend *be)
{
	if (fp_backend_can(be, FP_CAN_DIFFERENTIATE))
		return FP_OK;
	return fp_fail(be->ctx, FP_ERROR_DEVICE, "%s: this device has no layer fit yet; use --preset fast", be->name);
}

/* True when the held-out windows are measured after so many of the steps. */
static bool is_evaluation(int64_t done, int64_t steps)
{
	return done * EVALUATIONS / steps != (done - 1) * EVALUATIONS / steps;
}

static bool is_early_look(int64_t done, int64_t steps)
{
	return done == fp_larger(steps / EARLY_SHARE, LEAST_EARLY);
}

/* One attempt; returns true through `failed` if it was stopped early, because the fit gets worse. A loss a little above the
 * start's, below `limit`, may still fall below it, but not by much if it is there after half of the steps: then a lower
 * rate gives more. */
static fp_status take_steps(const fp_fit_task *task, fp_fit_loss *loss, fp_fit_optimiser *optimiser, int64_t steps,
							double limit, fp_fit_result *result, bool *failed)
{
	fp_layer working = fp_fit_optimiser_layer(optimiser), rounded = fp_fit_optimiser_rounded_layer(optimiser);
	fp_status status = FP_OK;
	*failed = false;
	for (int64_t step = 0; step < steps && !*failed; step++) {
		double now, squared_error;
		FP_TRY(fp_check_interrupt(task->ctx));
		FP_TRY(fp_fit_loss_gradients(loss, &working, fp_fit_optimiser_kept(optimiser), &optimiser->gradients));
		FP_TRY(fp_fit_optimiser_step(optimiser, step, steps));
		bool evaluation = is_evaluation(step + 1, steps);
		if (!evaluation && !is_early_look(step + 1, steps))
			continue;
		FP_TRY(fp_fit_optimiser_round(optimiser));
		FP_TRY(fp_fit_loss_measure(loss, &rounded, &now, &squared_error));
		fp_log(task->ctx, FP_LOG_DEBUG, "layer %lld: fit step %lld: loss %.6f, %.6f at the start",
			   (long long)task->layer->index, (long long)step + 1, now, result->loss_before);
		*failed = !(now < (2 * (step + 1) < steps ? limit : result->loss_before)); /* NaN too */
		if (evaluation && now < result->loss_after) {
			FP_TRY(fp_fit_optimiser_keep(optimiser));
			result->loss_after = now;
			result->steps = step + 1;
		}
	}
cleanup:
	return status;
}

/* The first rate is proportional to the relative error of the output: the weights need to move by about as much. If it
 * fails, or no point is better than the start, as happens with little text, a lower rate and half the steps are tried from
 * the best point so far. */
static fp_status attempt_fits(const fp_fit_task *task, fp_fit_loss *loss, fp_fit_optimiser *optimiser,
							  fp_fit_result *result)
{
	int64_t steps = fp_fit_steps(task->settings, task->windows, task->length);
	double squared_error, factor, limit;
	bool failed = true;
	fp_status status;
	FP_TRY(fp_fit_loss_measure(loss, task->layer, &result->loss_before, &squared_error));
	result->loss_after = result->loss_before;
	limit = result->loss_before + TOLERANCE * squared_error; /* not a multiple of the loss, which may be negative */
	factor = sqrt(fmin(squared_error, 1));
	for (int attempt = 0; attempt < ATTEMPTS && (failed || result->steps == 0); attempt++, factor *= NEXT_RATE) {
		FP_TRY(fp_fit_optimiser_start(optimiser, factor));
		FP_TRY(take_steps(task, loss, optimiser, attempt == 0 ? steps : (steps + 1) / 2, limit, result, &failed));
	}
cleanup:
	return status;
}

fp_status fp_fit_layer(const fp_fit_task *task, fp_fit_result *result)
{
	fp_fit_loss loss = {0};
	fp_fit_optimiser optimiser = {0};
	double started = fp_clock();
	fp_stage stage = fp_stage_enter(task->ctx, FP_STAGE_FIT);
	fp_status status;
	*result = (fp_fit_result){.layer = task->layer->index};
	FP_TRY(fp_fit_check(task->be));
	if (fp_fit_held_out(task->settings, task->windows) == 0) {
		fp_log(task->ctx, FP_LOG_WARNING, "layer %lld: not fitted: %lld windows are too few, at least 2 are needed",
			   (long long)task->layer->index, (long long)task->windows);
		goto cleanup;
	}
	FP_TRY(fp_fit_loss_new(&loss, task));
	if (!(loss.held_out_energy > 0)) /* the dense layer adds nothing to its input */
		goto cleanup;
	FP_TRY(fp_fit_optimiser_new(&optimiser, task));
	FP_TRY(fp_fit_optimiser_allocate(&optimiser, FP_FIT_ALL));
	FP_TRY(attempt_fits(task, &loss, &optimiser, result));
cleanup:
	fp_fit_optimiser_free(&optimiser);
	fp_fit_loss_free(&loss);
	result->seconds = fp_clock() - started;
	fp_stage_enter(task->ctx, stage);
	return status;
}
