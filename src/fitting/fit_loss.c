/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fit_loss.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "fitting/matrix_parts.h"
#include "sharing/row_slices.h"

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
	for (int i = 0; i <= FP_PARTS; i++)
		fp_layer_matrices_free(be, &loss->registers[i]);
	fp_free(loss->order);
	fp_free(loss->chosen);
	*loss = (fp_fit_loss){0};
}

static int64_t sum_of(const int64_t *numbers, int begin, int end)
{
	int64_t sum = 0;
	for (; begin < end; begin++)
		sum += numbers[begin];
	return sum;
}

/* The part to take the next window from. The parts are halved until one is left: each time the half stays from which fewer
 * windows were taken, or the other one if it has none left. */
static int next_part(const int64_t taken[FP_PARTS], const int64_t left[FP_PARTS])
{
	int begin = 0, end = FP_PARTS;
	while (end - begin > 1) {
		int middle = (begin + end) / 2;
		bool first = sum_of(taken, begin, middle) <= sum_of(taken, middle, end);
		if (sum_of(left, first ? begin : middle, first ? middle : end) == 0)
			first = !first;
		*(first ? &end : &begin) = middle;
	}
	return begin;
}

/* Rearranges order[first, count) so that `chunk` windows of a part, or what is left of it, stand together, and any few
 * successive chunks are of parts that lie far apart. Windows of a part keep their order. */
static void deal(fp_fit_loss *f, int64_t first, int64_t count, int64_t chunk)
{
	int64_t begin[FP_PARTS + 1] = {0}, end[FP_PARTS], taken[FP_PARTS] = {0}, left[FP_PARTS];
	for (int64_t i = first; i < count; i++)
		begin[fp_share_part(&f->share, f->order[i]) + 1]++;
	for (int part = 0; part < FP_PARTS; part++)
		begin[part + 1] += begin[part];
	for (int part = 0; part < FP_PARTS; part++)
		end[part] = begin[part];
	for (int64_t i = first; i < count; i++)
		f->chosen[end[fp_share_part(&f->share, f->order[i])]++] = f->order[i];
	for (int part = 0; part < FP_PARTS; part++)
		left[part] = end[part] - begin[part];
	for (int64_t at = first; at < count;) {
		int part = next_part(taken, left);
		for (int64_t k = 0; k < chunk && left[part] > 0; k++, left[part]--)
			f->order[at++] = f->chosen[begin[part] + taken[part]++];
	}
}

/* How many windows of a part stand together in the order. On CPUs it is one, so that every batch has about as many windows
 * of each rank. On devices it is a whole batch, if the part has enough windows: one pass over many tokens is faster than
 * several over few, and ranks could not save time by sharing a step, since they would send all gradients each time. */
static int64_t chunk_of(const fp_fit_loss *f, int64_t first, int64_t count)
{
	const fp_fit_task *task = f->task;
	int64_t windows[FP_PARTS] = {0}, fewest = fp_fit_batch(task->settings, task->windows, task->length);
	if (!task->be->asynchronous || !fp_share_is_divided(&f->share))
		return 1;
	for (int64_t i = first; i < count; i++)
		windows[fp_share_part(&f->share, f->order[i])]++;
	for (int part = 0; part < FP_PARTS; part++)
		if (windows[part] > 0)
			fewest = fp_smaller(windows[part], fewest);
	return fewest;
}

/* Puts order[first, count) in a random order. */
static void shuffle(fp_fit_loss *f, int64_t first, int64_t count, int64_t chunk)
{
	for (int64_t i = count - 1; i > first; i--) {
		int64_t j = fp_mersenne_between(&f->random, first, i);
		int64_t window = f->order[i];
		f->order[i] = f->order[j];
		f->order[j] = window;
	}
	if (fp_share_is_divided(&f->share))
		deal(f, first, count, chunk);
}

/* f->chosen ← the windows of order[first, end) that are in the part; returns how many. */
static int64_t choose(fp_fit_loss *f, int64_t first, int64_t end, int part)
{
	int64_t count = 0;
	for (; first < end; first++)
		if (fp_share_part(&f->share, f->order[first]) == part)
			f->chosen[count++] = f->order[first];
	return count;
}

/* rows ← the token gradients of one window; zeros if it has none */
static fp_status read_slope(const fp_fit_loss *f, int64_t window, fp_matrix rows)
{
	const fp_fit_task *task = f->task;
	if (window >= task->gradient_windows)
		return task->be->memory->fill(task->be, rows, 0);
	return task->read_gradients(task->read_data, window, rows);
}

/* Reads the windows chosen[first, first + count) into the matrices of a batch. */
static fp_status read_batch(fp_fit_loss *f, int64_t first, int64_t count)
{
	const fp_fit_task *task = f->task;
	int64_t length = task->length;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < count; i++) {
		FP_TRY(task->read(task->read_data, f->chosen[first + i], fp_matrix_rows(f->input, i * length, length),
						  fp_matrix_rows(f->target, i * length, length)));
		if (!fp_matrix_is_absent(f->slope))
			FP_TRY(read_slope(f, f->chosen[first + i], fp_matrix_rows(f->slope, i * length, length)));
	}
cleanup:
	return status;
}

static fp_matrix slope_rows(const fp_fit_loss *f, int64_t rows)
{
	return fp_matrix_is_absent(f->slope) ? f->slope : fp_matrix_rows(f->slope, 0, rows);
}

/* Sums over windows: of squares and of what is linear in the error. */
typedef struct loss_sums {
	double squares, linear;
} loss_sums;

/* Adds a batch: chosen[first, first + count). */
typedef fp_status (*loss_of_batch)(fp_fit_loss *f, const fp_layer *layer, int64_t first, int64_t count, loss_sums *out);

/* *out ← the sums over the windows order[first, end), on every rank */
static fp_status sum_losses(fp_fit_loss *f, const fp_layer *layer, int64_t first, int64_t end, loss_of_batch add,
							loss_sums *out)
{
	loss_sums sums[FP_PARTS] = {{0, 0}};
	int64_t batch = f->task->batch;
	fp_status status = FP_OK;
	*out = (loss_sums){0, 0};
	for (int part = f->share.begin; part < f->share.end; part++) {
		int64_t count = choose(f, first, end, part);
		for (int64_t i = 0; i < count; i += batch)
			FP_TRY(add(f, layer, i, fp_smaller(batch, count - i), &sums[part]));
	}
	FP_TRY(fp_share_gather(&f->share, sums, sizeof sums[0]));
	for (int part = 0; part < f->share.parts; part++) {
		out->squares += sums[part].squares;
		out->linear += sums[part].linear;
	}
cleanup:
	return status;
}

/* Σ dᵀFd */
static fp_status add_energy(fp_fit_loss *f, const fp_layer *layer, int64_t first, int64_t count, loss_sums *out)
{
	fp_backend *be = f->task->be;
	int64_t rows = count * f->task->length;
	fp_matrix target = fp_matrix_rows(f->target, 0, rows);
	double squares, linear;
	fp_status status;
	(void)layer;
	FP_TRY(read_batch(f, first, count));
	FP_TRY(be->gradients->difference(be, 1, target, fp_matrix_rows(f->input, 0, rows), target, NULL));
	FP_TRY(fp_fit_metric_measure(&f->metric, be, target, (fp_matrix){0}, &squares, &linear));
	out->squares += squares;
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
	loss_sums energy;
	fp_status status;
	*out = (fp_fit_loss){.task = task, .held_out = fp_fit_held_out(task->settings, task->windows)};
	out->share = task->share ? *task->share : fp_share_whole(task->windows);
	FP_TRY(FP_NEW(task->ctx, &out->order, task->windows));
	FP_TRY(FP_NEW(task->ctx, &out->chosen, task->windows));
	for (int64_t i = 0; i < task->windows; i++)
		out->order[i] = i;
	/* Each layer has its own seed, so that the order in which layers are pruned does not matter. */
	fp_mersenne_seed(&out->random, (uint64_t)task->settings->seed * 1000003 + (uint64_t)task->layer->index);
	shuffle(out, 0, task->windows, 1);
	int64_t chunk = chunk_of(out, out->held_out, task->windows);
	if (chunk > 1) /* the windows that are held out stay */
		deal(out, out->held_out, task->windows, chunk);
	FP_TRY(fp_matrix_parts_new(task->be, parts, list_parts(out, tokens, hidden, slope, parts)));
	if (task->read_fisher)
		FP_TRY(make_metric(out));
	FP_TRY(sum_losses(out, NULL, 0, out->held_out, add_energy, &energy));
	out->held_out_energy = energy.squares;
	FP_TRY(fp_tape_new(&out->tape, task->layer->model, tokens));
cleanup:
	if (status != FP_OK)
		fp_fit_loss_free(out);
	return status;
}

/* *e ← scale·(layer(input) − target) of the `count` windows chosen[first, …), a view into the tape */
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

static fp_status add_error(fp_fit_loss *f, const fp_layer *layer, int64_t first, int64_t count, loss_sums *out)
{
	const fp_fit_task *task = f->task;
	fp_matrix e;
	double squares, linear;
	fp_status status;
	FP_TRY(fp_check_interrupt(task->ctx));
	FP_TRY(forward_error(f, layer, first, count, 1, &e));
	FP_TRY(fp_fit_metric_measure(&f->metric, task->be, e, slope_rows(f, e.rows), &squares, &linear));
	out->squares += squares;
	out->linear += linear;
cleanup:
	return status;
}

fp_status fp_fit_loss_measure(fp_fit_loss *f, const fp_layer *layer, double *loss, double *squared_error)
{
	loss_sums sums;
	fp_status status = sum_losses(f, layer, 0, f->held_out, add_error, &sums);
	*squared_error = sums.squares / f->held_out_energy;
	*loss = (sums.squares + sums.linear) / f->held_out_energy;
	return status;
}

/* Draws `count` windows without repetition within an epoch; returns their place in the order. When too few are left, a
 * new epoch begins in another order. */
static int64_t draw(fp_fit_loss *f, int64_t count)
{
	if (f->held_out + f->drawn + count > f->task->windows) {
		shuffle(f, f->held_out, f->task->windows, chunk_of(f, f->held_out, f->task->windows));
		f->drawn = 0;
	}
	int64_t first = f->held_out + f->drawn;
	f->drawn += count;
	return first;
}

typedef struct gradient_sums {
	fp_fit_loss *f;
	const fp_layer *layer;
	fp_layer_matrices *first; /* register 0 */
} gradient_sums;

static fp_layer_matrices *register_of(const gradient_sums *sums, int which)
{
	return which == 0 ? sums->first : &sums->f->registers[which];
}

/* Registers stay from step to step. */
static fp_status make_register(void *data, int which, fp_addends *out)
{
	gradient_sums *sums = data;
	fp_layer_matrices *made = register_of(sums, which);
	fp_context *ctx = sums->f->task->ctx;
	fp_status status = FP_OK;
	if (!made->weight)
		FP_TRY(fp_layer_matrices_new(made, sums->layer));
	for (int i = 0; i < made->count; i++) {
		if (sums->f->task->frozen && sums->f->task->frozen[i])
			continue;
		FP_TRY(fp_addends_matrix(out, ctx, made->weight[i]));
		FP_TRY(fp_addends_matrix(out, ctx, made->bias[i]));
	}
cleanup:
	return status;
}

/* gradients ← of the loss over the `count` windows in f->chosen, all of one part */
static fp_status part_gradients(fp_fit_loss *f, const fp_layer *layer, int64_t count, float scale,
								fp_layer_matrices *gradients)
{
	const fp_fit_task *task = f->task;
	bool plain = fp_matrix_is_absent(f->metric.F);
	fp_status status = FP_OK;
	for (int64_t done = 0; done < count; done += task->batch) {
		fp_matrix e;
		FP_TRY(forward_error(f, layer, done, fp_smaller(task->batch, count - done), plain ? scale : 1, &e));
		if (!plain)
			FP_TRY(fp_fit_metric_gradient(&f->metric, task->be, scale, e, slope_rows(f, e.rows)));
		FP_TRY(fp_layer_backward(layer, f->tape, done > 0, gradients));
	}
cleanup:
	return status;
}

fp_status fp_fit_loss_gradients(fp_fit_loss *f, const fp_layer *layer, const fp_kept_entries *kept,
								fp_layer_matrices *gradients)
{
	const fp_fit_task *task = f->task;
	int64_t windows = fp_fit_batch(task->settings, task->windows, task->length);
	int64_t first = draw(f, windows);
	/* that of the held-out windows serves for all: Adam's steps do not depend on the scale of the gradients */
	float scale = (float)(2 * (double)f->held_out / ((double)windows * f->held_out_energy));
	gradient_sums sums = {.f = f, .layer = layer, .first = gradients};
	fp_part_sum sum;
	fp_status status = FP_OK;
	fp_part_sum_open(&sum, &f->share, task->be, make_register, &sums);
	for (int part = 0; part < f->share.parts; part++) {
		int64_t count = choose(f, first, first + windows, part);
		int which;
		sum.used[part] = count > 0;
		if (count == 0 || part < f->share.begin || part >= f->share.end)
			continue;
		FP_TRY(fp_part_sum_begin(&sum, part, &which));
		FP_TRY(part_gradients(f, layer, count, scale, register_of(&sums, which)));
		FP_TRY(fp_part_sum_end(&sum));
	}
	FP_TRY(fp_part_sum_scatter(&sum, kept));
cleanup:
	fp_part_sum_close(&sum);
	return status;
}
