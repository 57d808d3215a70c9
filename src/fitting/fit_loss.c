/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fit_loss.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "fitting/matrix_parts.h"

enum { PART_COUNT = 3 };

/* The matrices of a batch; returns how many. */
static int list_parts(fp_fit_loss *f, int64_t tokens, int64_t hidden, bool slope, fp_matrix_part parts[PART_COUNT])
{
	parts[0] = (fp_matrix_part){&f->input, tokens, hidden, FP_F32};
	parts[1] = (fp_matrix_part){&f->target, tokens, hidden, FP_F32};
	parts[2] = (fp_matrix_part){&f->slope, tokens, hidden, FP_F32};
	return slope ? PART_COUNT : PART_COUNT - 1;
}

int64_t fp_fit_loss_bytes(const fp_model *model, int64_t tokens, bool metric, bool slope)
{
	int64_t hidden = fp_model_get_config(model)->hidden;
	fp_fit_loss f = {0};
	fp_matrix_part parts[PART_COUNT];
	int count = list_parts(&f, tokens, hidden, slope, parts);
	return fp_matrix_parts_bytes(parts, count) + fp_tape_bytes(model, tokens) +
		   (metric ? fp_fit_metric_bytes(hidden, tokens) : 0);
}

void fp_fit_loss_free(fp_fit_loss *loss)
{
	if (!loss->task)
		return;
	fp_backend *be = loss->task->be;
	fp_matrix_free(be, &loss->input);
	fp_matrix_free(be, &loss->target);
	fp_matrix_free(be, &loss->slope);
	fp_fit_metric_free(be, &loss->metric);
	fp_tape_free(loss->tape);
	fp_free(loss->order);
	*loss = (fp_fit_loss){0};
}

/* Puts order[first, count) in a random order. */
static void shuffle(fp_fit_loss *f, int64_t first, int64_t count)
{
	for (int64_t i = count - 1; i > first; i--) {
		int64_t j = fp_mersenne_between(&f->random, first, i);
		int64_t window = f->order[i];
		f->order[i] = f->order[j];
		f->order[j] = window;
	}
}

/* rows ← the token gradients of one window; zeros if it has none */
static fp_status read_slope(const fp_fit_loss *f, int64_t window, fp_matrix rows)
{
	const fp_fit_task *task = f->task;
	if (window >= task->gradient_windows)
		return task->be->memory->fill(task->be, rows, 0);
	return task->read_gradients(task->read_data, window, rows);
}

/* Reads the windows order[first, first + count) into the matrices of a batch. */
static fp_status read_batch(fp_fit_loss *f, int64_t first, int64_t count)
{
	const fp_fit_task *task = f->task;
	int64_t length = task->length;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < count; i++) {
		FP_TRY(task->read(task->read_data, f->order[first + i], fp_matrix_rows(f->input, i * length, length),
						  fp_matrix_rows(f->target, i * length, length)));
		if (!fp_matrix_is_absent(f->slope))
			FP_TRY(read_slope(f, f->order[first + i], fp_matrix_rows(f->slope, i * length, length)));
	}
cleanup:
	return status;
}

static fp_matrix slope_rows(const fp_fit_loss *f, int64_t rows)
{
	return fp_matrix_is_absent(f->slope) ? f->slope : fp_matrix_rows(f->slope, 0, rows);
}

/* *out ← Σ dᵀFd over the windows order[first, end) */
static fp_status measure_energy(fp_fit_loss *f, int64_t first, int64_t end, double *out)
{
	fp_backend *be = f->task->be;
	fp_status status = FP_OK;
	*out = 0;
	for (; first < end; first += f->task->batch) {
		double squares, linear;
		int64_t count = fp_smaller(f->task->batch, end - first), rows = count * f->task->length;
		fp_matrix target = fp_matrix_rows(f->target, 0, rows);
		FP_TRY(read_batch(f, first, count));
		FP_TRY(be->gradients->difference(be, 1, target, fp_matrix_rows(f->input, 0, rows), target, NULL));
		FP_TRY(fp_fit_metric_measure(&f->metric, be, target, (fp_matrix){0}, &squares, &linear));
		*out += squares;
	}
cleanup:
	return status;
}

static fp_status make_metric(fp_fit_loss *f)
{
	const fp_fit_task *task = f->task;
	fp_backend *be = task->be;
	fp_status status;
	FP_TRY(fp_fit_metric_new(&f->metric, be, f->input.cols, f->input.rows));
	FP_TRY(task->read_fisher(task->read_data, f->metric.F));
	FP_TRY(fp_fit_metric_finish(&f->metric, be, task->fisher_tokens, task->settings->adapt));
	if (!(f->metric.slope > 0))
		fp_matrix_free(be, &f->slope);
cleanup:
	return status;
}

fp_status fp_fit_loss_new(fp_fit_loss *out, const fp_fit_task *task)
{
	int64_t tokens = task->batch * task->length, hidden = fp_model_get_config(task->layer->model)->hidden;
	bool slope = task->read_fisher && task->read_gradients;
	fp_matrix_part parts[PART_COUNT];
	double energy;
	fp_status status;
	*out = (fp_fit_loss){.task = task, .held_out = fp_fit_held_out(task->settings, task->windows)};
	FP_TRY(FP_NEW(task->ctx, &out->order, task->windows));
	for (int64_t i = 0; i < task->windows; i++)
		out->order[i] = i;
	/* Each layer has its own seed, so that the order in which layers are pruned does not matter. */
	fp_mersenne_seed(&out->random, (uint64_t)task->settings->seed * 1000003 + (uint64_t)task->layer->index);
	shuffle(out, 0, task->windows);
	FP_TRY(fp_matrix_parts_new(task->be, parts, list_parts(out, tokens, hidden, slope, parts)));
	if (task->read_fisher)
		FP_TRY(make_metric(out));
	FP_TRY(measure_energy(out, 0, out->held_out, &out->held_out_energy));
	FP_TRY(measure_energy(out, out->held_out, task->windows, &energy));
	out->mean_energy = energy / (double)(task->windows - out->held_out);
	FP_TRY(fp_tape_new(&out->tape, task->layer->model, tokens));
cleanup:
	if (status != FP_OK)
		fp_fit_loss_free(out);
	return status;
}

/* *e ← scale·(layer(input) − target) of the `count` windows order[first, …), a view into the tape */
static fp_status forward_error(fp_fit_loss *f, const fp_layer *layer, int64_t first, int64_t count, float scale,
							   fp_matrix *e)
{
	const fp_fit_task *task = f->task;
	int64_t rows = count * task->length;
	fp_status status;
	FP_TRY(read_batch(f, first, count));
	FP_TRY(fp_layer_forward_taped(layer, count, task->length, fp_matrix_rows(f->input, 0, rows), f->tape, e));
	FP_TRY(task->be->gradients->difference(task->be, scale, *e, fp_matrix_rows(f->target, 0, rows), *e, NULL));
cleanup:
	return status;
}

fp_status fp_fit_loss_measure(fp_fit_loss *f, const fp_layer *layer, double *loss, double *squared_error)
{
	const fp_fit_task *task = f->task;
	fp_status status = FP_OK;
	double sum = 0, slope = 0;
	for (int64_t first = 0; first < f->held_out; first += task->batch) {
		int64_t count = fp_smaller(task->batch, f->held_out - first);
		fp_matrix e;
		double squares, linear;
		FP_TRY(fp_check_interrupt(task->ctx));
		FP_TRY(forward_error(f, layer, first, count, 1, &e));
		FP_TRY(fp_fit_metric_measure(&f->metric, task->be, e, slope_rows(f, e.rows), &squares, &linear));
		sum += squares;
		slope += linear;
	}
	*squared_error = sum / f->held_out_energy;
	*loss = (sum + slope) / f->held_out_energy;
cleanup:
	return status;
}

/* Draws `count` windows without repetition within an epoch; returns their place in the order. When too few are left, a
 * new epoch begins in another order. */
static int64_t draw(fp_fit_loss *f, int64_t count)
{
	if (f->held_out + f->drawn + count > f->task->windows) {
		shuffle(f, f->held_out, f->task->windows);
		f->drawn = 0;
	}
	int64_t first = f->held_out + f->drawn;
	f->drawn += count;
	return first;
}

fp_status fp_fit_loss_gradients(fp_fit_loss *f, const fp_layer *layer, fp_layer_matrices *gradients)
{
	const fp_fit_task *task = f->task;
	int64_t windows = fp_fit_batch(task->settings, task->windows, task->length);
	int64_t first = draw(f, windows);
	float scale = (float)(2 / ((double)windows * f->mean_energy));
	bool plain = fp_matrix_is_absent(f->metric.F);
	fp_status status = FP_OK;
	for (int64_t done = 0; done < windows; done += task->batch) {
		fp_matrix e;
		FP_TRY(forward_error(f, layer, first + done, fp_smaller(task->batch, windows - done), plain ? scale : 1, &e));
		if (!plain)
			FP_TRY(fp_fit_metric_gradient(&f->metric, task->be, scale, e, slope_rows(f, e.rows)));
		FP_TRY(fp_layer_backward(layer, f->tape, done > 0, gradients));
	}
cleanup:
	return status;
}
