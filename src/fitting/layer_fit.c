/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_fit.c: masked Adam on one decoder layer.
 *
 *     loss = Σ‖layer(input) − target‖² / Σ‖target − input‖²       over the windows of a batch
 *
 * with ‖·‖ in the metric of fit_metric.h. The denominator, the energy of what the dense layer adds to its input, makes
 * losses of different layers and models comparable. A step's length is a share of each operator's own root mean square
 * weight, smaller for wide ones and for layers that are nearly right, so that one rate serves operators and models of
 * any scale and any sparsity. A share of the windows is held out: the weights are rounded to the checkpoint's type and
 * measured on it a few times, and the best such point, the start included, is what remains.
 */
#include "fitting/layer_fit.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/mersenne.h"
#include "base/numbers.h"
#include "fitting/fit_metric.h"

#include <math.h>
#include <string.h>

enum {
	EVALUATIONS = 4,
	EARLY_SHARE = 16,
	LEAST_EARLY = 4,
	WARM_UP_SHARE = 20,
	FEW_WINDOWS = 128,
	MOST_ROUNDS = 4,
	MOST_PASSES = 25,
	ATTEMPTS = 3
};
static const double NEXT_RATE = 0.25; /* of the one that led nowhere */
static const double TOLERANCE = 0.05; /* by which a loss may rise above the start's, as a share of the start's error */
static const float BETA1 = 0.9F;
static const float BETA2 = 0.999F;
static const float EPSILON = 1e-12F; /* against 0/0 only: gradients of a relative loss are small */

typedef struct fit_space {
	const fp_fit_task *task;
	fp_backend *be;
	fp_mersenne random;
	int64_t *order;     /* of the windows: those held out first */
	int64_t held, used; /* used: windows after the held-out ones drawn so far in this round */
	fp_tape *tape;
	fp_fit_metric metric;
	fp_matrix input, target;   /* a batch's rows */
	fp_matrix slope;           /* their gradients of the token loss; absent where these have no weight */
	fp_layer_matrices weights; /* at work, F32 */
	fp_layer_matrices narrow;  /* weights at work in the type of products (BF16), where they round */
	fp_layer_matrices trial;   /* the same in the checkpoint's type, as the layer holds it */
	fp_layer_matrices gradients, mean, square; /* Adam's moments */
	double rate[FP_ROLE_COUNT];                /* of each operator, before the schedule */
	double held_energy, energy; /* Σ‖target − input‖²: of the held-out windows; of a window, on average */
} fit_space;

int64_t fp_fit_held_out(const fp_settings *settings, int64_t windows)
{
	int64_t held = (int64_t)ceil(settings->fit_holdout * (double)windows);
	if (held < 1)
		held = 1;
	return windows >= 2 && held < windows ? held : 0;
}

/* More steps for more windows, within limits; and never so many that a short text is learnt by heart. */
int64_t fp_fit_steps(const fp_settings *settings, int64_t windows, int64_t length)
{
	double share = (double)windows / FEW_WINDOWS;
	double steps = (double)settings->fit_steps * fmin(fmax(share, 1), MOST_ROUNDS);
	double pass = (double)windows / (double)fp_fit_batch(settings, windows, length);
	return (int64_t)fmax(fmin(steps, ceil(MOST_PASSES * pass)), 1);
}

int64_t fp_fit_batch(const fp_settings *settings, int64_t windows, int64_t length)
{
	int64_t batch = settings->fit_tokens / length, training = windows - fp_fit_held_out(settings, windows);
	batch = batch < training ? batch : training;
	return batch > 1 ? batch : 1;
}

int64_t fp_fit_bytes(const fp_model *model, int64_t weights, int64_t held, int64_t tokens, bool metric)
{
	int64_t hidden = fp_model_get_config(model)->hidden, rows = 2 * tokens * hidden;
	int64_t operands = held;
	if (fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION))
		operands += weights * fp_dtype_size(FP_BF16);
	if (metric) {
		rows += tokens * hidden;
		operands += fp_fit_metric_bytes(hidden, tokens);
	}
	return fp_tape_bytes(model, tokens) + (4 * weights + rows) * (int64_t)sizeof(float) + operands;
}

fp_status fp_fit_check(const fp_backend *be)
{
	if (fp_backend_can(be, FP_CAN_DIFFERENTIATE))
		return FP_OK;
	return fp_fail(be->ctx, FP_ERROR_DEVICE, "%s: this device has no layer fit yet; use --preset fast", be->name);
}

static void space_free(fit_space *space)
{
	fp_layer_matrices *all[] = {&space->weights,   &space->narrow, &space->trial,
								&space->gradients, &space->mean,   &space->square};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_layer_matrices_free(space->be, all[i]);
	fp_matrix_free(space->be, &space->input);
	fp_matrix_free(space->be, &space->target);
	fp_matrix_free(space->be, &space->slope);
	fp_fit_metric_free(space->be, &space->metric);
	fp_tape_free(space->tape);
	fp_free(space->order);
}

/* order[first, count) in a random order */
static void shuffle(fit_space *space, int64_t first, int64_t count)
{
	for (int64_t i = count - 1; i > first; i--) {
		int64_t j = fp_mersenne_between(&space->random, first, i);
		int64_t window = space->order[i];
		space->order[i] = space->order[j];
		space->order[j] = window;
	}
}

/* A layer with other weights; it owns nothing. */
static fp_layer with_weights(const fp_layer *layer, const fp_layer_matrices *matrices)
{
	fp_layer other = *layer;
	memcpy(other.weight, matrices->weight, sizeof other.weight);
	memcpy(other.bias, matrices->bias, sizeof other.bias);
	return other;
}

static fp_status root_mean_square(fp_backend *be, fp_matrix W, double *out)
{
	fp_status status = be->linear->dot(be, W, W, out);
	*out = sqrt(*out / (double)(fp_matrix_size(W) > 0 ? fp_matrix_size(W) : 1));
	return status;
}

/* Steps of Adam move all of a row's weights by about the same length. When their signs agree with the inputs', as they
 * do for outliers, they move the output by a share of it that grows with the root of the number of inputs. */
static double step_length(const fp_settings *settings, fp_matrix weight)
{
	return settings->fit_rate * fmin(1, sqrt((double)settings->fit_width / (double)weight.cols));
}

static fp_status start_weights(fit_space *space)
{
	fp_backend *be = space->be;
	const fp_layer *layer = space->task->layer;
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (fp_matrix_is_absent(layer->weight[role]))
			continue;
		FP_TRY(be->memory->copy(be, space->weights.weight[role], layer->weight[role]));
		if (!fp_matrix_is_absent(space->narrow.weight[role]))
			FP_TRY(be->memory->copy(be, space->narrow.weight[role], layer->weight[role]));
		FP_TRY(be->memory->fill(be, space->mean.weight[role], 0));
		FP_TRY(be->memory->fill(be, space->square.weight[role], 0));
		FP_TRY(root_mean_square(be, space->weights.weight[role], &space->rate[role]));
		space->rate[role] *= step_length(space->task->settings, layer->weight[role]);
		if (fp_matrix_is_absent(layer->bias[role]))
			continue;
		FP_TRY(be->memory->copy(be, space->weights.bias[role], layer->bias[role]));
		FP_TRY(be->memory->fill(be, space->mean.bias[role], 0));
		FP_TRY(be->memory->fill(be, space->square.bias[role], 0));
	}
cleanup:
	return status;
}

/* One window's gradients to their place in the batch; zeros where it has none. */
static fp_status gather_slope(fit_space *space, int64_t window, fp_matrix rows)
{
	const fp_fit_task *task = space->task;
	if (window >= task->gradient_windows)
		return space->be->memory->fill(space->be, rows, 0);
	return task->read_gradients(task->read_data, window, rows);
}

/* The rows of order[first, first + count) to the batch's matrices. */
static fp_status gather(fit_space *space, int64_t first, int64_t count)
{
	const fp_fit_task *task = space->task;
	int64_t length = task->length;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < count; i++) {
		FP_TRY(task->read(task->read_data, space->order[first + i], fp_matrix_rows(space->input, i * length, length),
						  fp_matrix_rows(space->target, i * length, length)));
		if (!fp_matrix_is_absent(space->slope))
			FP_TRY(gather_slope(space, space->order[first + i], fp_matrix_rows(space->slope, i * length, length)));
	}
cleanup:
	return status;
}

/* The gradients of the token loss for a batch of so many rows; absent where they have no weight. */
static fp_matrix slope_rows(const fit_space *space, int64_t rows)
{
	return fp_matrix_is_absent(space->slope) ? space->slope : fp_matrix_rows(space->slope, 0, rows);
}

/* Σ‖target − input‖² in the metric over order[first, end) */
static fp_status measure_energy(fit_space *space, int64_t first, int64_t end, double *out)
{
	fp_backend *be = space->be;
	fp_status status = FP_OK;
	*out = 0;
	for (; first < end; first += space->task->batch) {
		double squares, linear;
		int64_t count = fp_smaller(space->task->batch, end - first), rows = count * space->task->length;
		fp_matrix target = fp_matrix_rows(space->target, 0, rows);
		FP_TRY(gather(space, first, count));
		FP_TRY(be->gradients->difference(be, 1, target, fp_matrix_rows(space->input, 0, rows), target, NULL));
		FP_TRY(fp_fit_metric_measure(&space->metric, be, target, (fp_matrix){0}, &squares, &linear));
		*out += squares;
	}
cleanup:
	return status;
}

/* What is multiplied: the weights at work in 16 bits where products round, and those on trial as the layer holds its
 * own. */
static fp_status operands_new(fit_space *space)
{
	const fp_layer *layer = space->task->layer;
	bool rounds = fp_backend_rounds(space->be, FP_USE_ACTIVATION);
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = layer->weight[role], bias = layer->bias[role];
		if (fp_matrix_is_absent(weight))
			continue;
		if (rounds)
			FP_TRY(fp_matrix_new(space->be, &space->narrow.weight[role], weight.rows, weight.cols, FP_BF16));
		FP_TRY(fp_matrix_new(space->be, &space->trial.weight[role], weight.rows, weight.cols, weight.dtype));
		if (!fp_matrix_is_absent(bias))
			FP_TRY(fp_matrix_new(space->be, &space->trial.bias[role], 1, bias.cols, FP_F32));
	}
cleanup:
	return status;
}

/* The metric from all gradients, a batch of windows at once. */
static fp_status metric_new(fit_space *space, int64_t rows)
{
	const fp_fit_task *task = space->task;
	fp_backend *be = space->be;
	int64_t hidden = space->input.cols, length = task->length;
	fp_status status;
	if (!task->read_gradients)
		return FP_OK;
	FP_TRY(fp_fit_metric_new(&space->metric, be, hidden, rows));
	FP_TRY(fp_matrix_new(be, &space->slope, rows, hidden, FP_F32));
	for (int64_t first = 0; first < task->gradient_windows; first += task->batch) {
		int64_t count = fp_smaller(task->batch, task->gradient_windows - first);
		for (int64_t i = 0; i < count; i++)
			FP_TRY(gather_slope(space, first + i, fp_matrix_rows(space->slope, i * length, length)));
		FP_TRY(fp_fit_metric_add(&space->metric, be, fp_matrix_rows(space->slope, 0, count * length)));
	}
	FP_TRY(fp_fit_metric_finish(&space->metric, be, task->settings->fit_descent));
	if (!(space->metric.slope > 0))
		fp_matrix_free(be, &space->slope);
cleanup:
	return status;
}

static fp_status space_new(fit_space *space)
{
	const fp_fit_task *task = space->task;
	fp_backend *be = space->be;
	int64_t rows = task->batch * task->length, width = fp_model_get_config(task->layer->model)->hidden;
	double energy;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &space->order, task->windows));
	for (int64_t i = 0; i < task->windows; i++)
		space->order[i] = i;
	/* of its own for each layer, so that the order in which layers are pruned does not matter */
	fp_mersenne_seed(&space->random, (uint64_t)task->settings->seed * 1000003 + (uint64_t)task->layer->index);
	shuffle(space, 0, task->windows);
	FP_TRY(fp_matrix_new(be, &space->input, rows, width, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->target, rows, width, FP_F32));
	FP_TRY(metric_new(space, rows));
	FP_TRY(measure_energy(space, 0, space->held, &space->held_energy));
	FP_TRY(measure_energy(space, space->held, task->windows, &energy));
	space->energy = energy / (double)(task->windows - space->held);
	FP_TRY(fp_tape_new(&space->tape, task->layer->model, rows));
	FP_TRY(fp_layer_matrices_new(&space->weights, task->layer));
	FP_TRY(operands_new(space));
	FP_TRY(fp_layer_matrices_new(&space->gradients, task->layer));
	FP_TRY(fp_layer_matrices_new(&space->mean, task->layer));
	FP_TRY(fp_layer_matrices_new(&space->square, task->layer));
cleanup:
	return status;
}

/* The loss of a layer on the held-out windows; *error: without the slope of the token loss. */
static fp_status measure_loss(fit_space *space, const fp_layer *layer, double *out, double *error)
{
	const fp_fit_task *task = space->task;
	fp_backend *be = space->be;
	fp_status status = FP_OK;
	double sum = 0, slope = 0;
	for (int64_t first = 0; first < space->held; first += task->batch) {
		int64_t count = fp_smaller(task->batch, space->held - first), rows = count * task->length;
		fp_matrix output;
		double squares, linear;
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(gather(space, first, count));
		FP_TRY(fp_layer_forward_taped(layer, count, task->length, fp_matrix_rows(space->input, 0, rows), space->tape,
									  &output));
		FP_TRY(be->gradients->difference(be, 1, output, fp_matrix_rows(space->target, 0, rows), output, NULL));
		FP_TRY(fp_fit_metric_measure(&space->metric, be, output, slope_rows(space, rows), &squares, &linear));
		sum += squares;
		slope += linear;
	}
	*error = sum / space->held_energy;
	*out = (sum + slope) / space->held_energy;
cleanup:
	return status;
}

/* Where the next `count` windows are in the order; a new round in another order when too few are left. */
static int64_t draw(fit_space *space, int64_t count)
{
	int64_t first = space->held + space->used;
	if (first + count > space->task->windows) {
		shuffle(space, space->held, space->task->windows);
		space->used = 0;
		first = space->held;
	}
	space->used += count;
	return first;
}

/* gradients ← of the loss over one batch of windows */
static fp_status batch_gradients(fit_space *space, const fp_layer *layer)
{
	const fp_fit_task *task = space->task;
	fp_backend *be = space->be;
	int64_t windows = fp_fit_batch(task->settings, task->windows, task->length);
	int64_t first = draw(space, windows);
	float scale = (float)(2 / ((double)windows * space->energy));
	bool plain = fp_matrix_is_absent(space->metric.F);
	fp_status status = FP_OK;
	for (int64_t done = 0; done < windows; done += task->batch) {
		int64_t count = fp_smaller(task->batch, windows - done), rows = count * task->length;
		fp_matrix output;
		FP_TRY(gather(space, first + done, count));
		FP_TRY(fp_layer_forward_taped(layer, count, task->length, fp_matrix_rows(space->input, 0, rows), space->tape,
									  &output));
		FP_TRY(be->gradients->difference(be, plain ? scale : 1, output, fp_matrix_rows(space->target, 0, rows), output,
										 NULL));
		if (!plain)
			FP_TRY(fp_fit_metric_gradient(&space->metric, be, scale, output, slope_rows(space, rows)));
		FP_TRY(fp_layer_backward(layer, space->tape, done > 0, &space->gradients));
	}
cleanup:
	return status;
}

/* Half a cosine from 1 to 0, after a short rise. */
static double schedule(int64_t step, int64_t steps)
{
	int64_t rise = steps / WARM_UP_SHARE;
	double decay = 0.5 * (1 + cos(3.14159265358979323846 * (double)step / (double)steps));
	return step < rise ? decay * (double)(step + 1) / (double)(rise + 1) : decay;
}

static fp_status update(fit_space *space, int64_t step, int64_t steps)
{
	fp_backend *be = space->be;
	double share = schedule(step, steps);
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_adam rule = {.rate = (float)(share * space->rate[role]),
						.beta1 = BETA1,
						.beta2 = BETA2,
						.epsilon = EPSILON,
						.step = step + 1,
						.keep_zeros = true,
						.narrow = space->narrow.weight[role]};
		if (fp_matrix_is_absent(space->weights.weight[role]))
			continue;
		FP_TRY(be->gradients->adam_step(be, &rule, space->gradients.weight[role], space->mean.weight[role],
										space->square.weight[role], space->weights.weight[role]));
		rule.keep_zeros = false;
		rule.narrow = (fp_matrix){0};
		if (!fp_matrix_is_absent(space->weights.bias[role]))
			FP_TRY(be->gradients->adam_step(be, &rule, space->gradients.bias[role], space->mean.bias[role],
											space->square.bias[role], space->weights.bias[role]));
	}
cleanup:
	return status;
}

/* out ← in, rounded to the type that the tensor has in the checkpoint */
static fp_status round_matrix(fp_backend *be, const fp_tensor_info *tensor, fp_matrix in, fp_matrix out)
{
	fp_matrix rounded = {0};
	fp_status status;
	if (tensor->dtype == FP_F32 || tensor->dtype == out.dtype)
		return be->memory->copy(be, out, in);
	FP_TRY(fp_matrix_new(be, &rounded, in.rows, in.cols, tensor->dtype));
	FP_TRY(be->memory->copy(be, rounded, in));
	FP_TRY(be->memory->copy(be, out, rounded));
cleanup:
	fp_matrix_free(be, &rounded);
	return status;
}

static fp_status round_weights(fit_space *space)
{
	const fp_layer *layer = space->task->layer;
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (!fp_matrix_is_absent(layer->weight[role]))
			FP_TRY(round_matrix(space->be, fp_model_operator(layer->model, layer->index, (fp_role)role),
								space->weights.weight[role], space->trial.weight[role]));
		if (!fp_matrix_is_absent(layer->bias[role]))
			FP_TRY(round_matrix(space->be, fp_model_operator_bias(layer->model, layer->index, (fp_role)role),
								space->weights.bias[role], space->trial.bias[role]));
	}
cleanup:
	return status;
}

static fp_status keep_trial(fit_space *space)
{
	fp_backend *be = space->be;
	fp_layer *layer = space->task->layer;
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (!fp_matrix_is_absent(layer->weight[role]))
			FP_TRY(be->memory->copy(be, layer->weight[role], space->trial.weight[role]));
		if (!fp_matrix_is_absent(layer->bias[role]))
			FP_TRY(be->memory->copy(be, layer->bias[role], space->trial.bias[role]));
	}
cleanup:
	return status;
}

static void scale_rates(fit_space *space, double share)
{
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		space->rate[role] *= share;
}

/* After so many steps the held-out windows are looked at for the first time, only to see whether the way leads off. */
static int64_t early_look(int64_t steps)
{
	return steps / EARLY_SHARE > LEAST_EARLY ? steps / EARLY_SHARE : LEAST_EARLY;
}

/* A fit that gets worse is stopped early: a loss a little above the start's may still fall below it, a larger one only
 * grows (docs/algorithm.md). `limit`: the loss at which it stops. */
static fp_status fit_steps(fit_space *space, int64_t steps, double limit, fp_fit_result *result)
{
	const fp_fit_task *task = space->task;
	fp_layer working = with_weights(task->layer, &space->weights), trial = with_weights(task->layer, &space->trial);
	fp_status status = FP_OK;
	if (fp_backend_rounds(space->be, FP_USE_ACTIVATION))
		memcpy(working.weight, space->narrow.weight, sizeof working.weight);
	for (int64_t step = 0; step < steps; step++) {
		double loss, error;
		FP_TRY(fp_check_interrupt(space->be->ctx));
		FP_TRY(batch_gradients(space, &working));
		FP_TRY(update(space, step, steps));
		bool regular = (step + 1) * EVALUATIONS / steps != step * EVALUATIONS / steps;
		if (!regular && step + 1 != early_look(steps))
			continue;
		FP_TRY(round_weights(space));
		FP_TRY(measure_loss(space, &trial, &loss, &error));
		fp_log(space->be->ctx, FP_LOG_DEBUG, "layer %lld: fit step %lld: loss %.6f, %.6f at the start",
			   (long long)task->layer->index, (long long)step + 1, loss, result->loss_before);
		if (!(loss < limit)) /* NaN too */
			break;
		if (regular && loss < result->loss_after) {
			FP_TRY(keep_trial(space));
			result->loss_after = loss;
			result->steps = step + 1;
		}
	}
cleanup:
	return status;
}

/* The weights need to move by about the share by which the output is wrong. Where no point of the way is better than
 * the start, as happens with little text, shorter steps are tried, and half as many: there is little to be had. */
static fp_status attempt_fits(fit_space *space, fp_fit_result *result)
{
	const fp_fit_task *task = space->task;
	int64_t steps = fp_fit_steps(task->settings, task->windows, task->length);
	double error, share, limit;
	fp_status status;
	FP_TRY(measure_loss(space, task->layer, &result->loss_before, &error));
	result->loss_after = result->loss_before;
	limit = result->loss_before + TOLERANCE * error; /* the error is never negative; the loss may be */
	share = sqrt(fmin(error, 1));                    /* NaN: no step */
	for (int attempt = 0; attempt < ATTEMPTS && result->steps == 0; attempt++, share *= NEXT_RATE) {
		FP_TRY(start_weights(space));
		scale_rates(space, share);
		FP_TRY(fit_steps(space, attempt == 0 ? steps : (steps + 1) / 2, limit, result));
	}
cleanup:
	return status;
}

fp_status fp_fit_layer(const fp_fit_task *task, fp_fit_result *result)
{
	fp_backend *be = fp_model_backend(task->layer->model);
	fit_space space = {.task = task, .be = be, .held = fp_fit_held_out(task->settings, task->windows)};
	double started = fp_clock();
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FIT);
	fp_status status;
	*result = (fp_fit_result){.layer = task->layer->index};
	FP_TRY(fp_fit_check(be));
	if (space.held == 0) {
		fp_log(be->ctx, FP_LOG_WARNING, "layer %lld: %lld windows are too few for a fit", (long long)task->layer->index,
			   (long long)task->windows);
		goto cleanup;
	}
	FP_TRY(space_new(&space));
	if (space.held_energy > 0 && space.energy > 0)
		FP_TRY(attempt_fits(&space, result));
cleanup:
	space_free(&space);
	result->seconds = fp_clock() - started;
	fp_stage_enter(be->ctx, stage);
	return status;
}
