/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_fit.c: a step passes a batch of windows forward through all layers and stores the input of each. On the way back
 * each layer's forward pass is repeated from there, and its weights move as soon as the gradient of its input is known.
 * After some of the steps the weights are rounded to the checkpoint's types and measured on the held-out windows. The best
 * such point, the start included, is kept.
 */
#include "fitting/model_fit.h"

#include "backend/work_space.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/mersenne.h"
#include "base/numbers.h"

#include <math.h>
#include <string.h>

enum { EVALUATIONS = 8, ATTEMPTS = 3 };
static const double NEXT_RATE = 0.25; /* of an attempt, relative to the one before */

typedef struct model_fit {
	const fp_model_fit_task *task;
	fp_context *ctx;
	fp_backend *be;
	int64_t layers, length;
	int64_t batch; /* windows in a step */
	fp_fitted_layers fitted;
	/* after the dense model's last layer: of all windows, on the device or in the host's memory */
	fp_matrix dense_hidden;
	float *dense_states;
	/* of a batch */
	fp_matrix *input; /* of each layer; then the hidden states after the last one */
	fp_matrix dense_batch, gradient;
	fp_tape *tape;
	int32_t *ids, *targets;
	fp_divergence_rows rows;
	/* the windows that are not held out, in random order */
	fp_mersenne random;
	int64_t *order, count, drawn;
} model_fit;

static void free_space(model_fit *m)
{
	fp_fitted_layers_close(&m->fitted);
	for (int64_t i = 0; m->input && i <= m->layers; i++)
		fp_matrix_free(m->be, &m->input[i]);
	fp_matrix *all[] = {&m->dense_hidden, &m->dense_batch, &m->gradient};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_matrix_free(m->be, all[i]);
	void *host[] = {
		m->dense_states,   m->input,          m->ids,  m->targets, m->rows.kl, m->rows.losses[0], m->rows.losses[1],
		m->rows.argmax[0], m->rows.argmax[1], m->order};
	for (size_t i = 0; i < sizeof host / sizeof *host; i++)
		fp_free(host[i]);
	fp_tape_free(m->tape);
}

static int64_t batch_of(const fp_model_fit_task *task)
{
	int64_t windows = fp_larger(task->settings->fit_tokens / task->windows->length, 1);
	return fp_smaller(windows, task->windows->count - task->held_out);
}

fp_status fp_model_fit_bytes(const fp_model_fit_task *task, int64_t *bytes)
{
	const fp_model_config *c = fp_model_get_config(task->pruned), *d = fp_model_get_config(task->dense);
	const fp_backend *be = fp_model_backend(task->pruned);
	int64_t tokens = batch_of(task) * task->windows->length;
	int64_t dense_tokens = task->windows->count * task->windows->length;
	if (task->offload == FP_OFFLOAD_STATES && !be->memory->address)
		dense_tokens = 0;
	int64_t states = (c->layers + 2) * tokens * c->hidden + (dense_tokens + tokens) * d->hidden;
	fp_attention_shape shape = fp_model_attention_shape(task->pruned, batch_of(task), task->windows->length);
	int64_t work = fp_larger(fp_attention_backward_bytes(be, &shape),
							 fp_product_bytes(be, FP_USE_ACTIVATION, tokens * c->inner, c->inner * c->hidden));
	fp_status status = fp_fitted_layers_bytes(task->pruned, task->offload != FP_OFFLOAD_NOTHING, bytes);
	*bytes += states * (int64_t)sizeof(float) + fp_tape_bytes(task->pruned, tokens) + work +
			  fp_model_head_bytes(task->pruned) + fp_model_head_bytes(task->dense);
	return status;
}

/* out ← the dense model's hidden states from window number `window` on; or the reverse. */
static fp_status copy_dense(model_fit *m, int64_t window, fp_matrix states, bool stores)
{
	const fp_memory_operations *memory = m->be->memory;
	if (!m->dense_states) {
		fp_matrix stored = fp_matrix_rows(m->dense_hidden, window * m->length, states.rows);
		return stores ? memory->copy(m->be, stored, states) : memory->copy(m->be, states, stored);
	}
	float *stored = m->dense_states + window * m->length * states.cols;
	fp_status status = stores ? memory->download(m->be, stored, FP_F32, states.cols, states)
							  : memory->upload(m->be, states, stored, FP_F32, states.cols);
	return status == FP_OK && stores ? memory->synchronize(m->be) : status;
}

/* The dense model's hidden states ← of all windows. */
static fp_status pass_dense(model_fit *m)
{
	const fp_windows *windows = m->task->windows;
	int64_t layers = fp_model_get_config(m->task->dense)->layers;
	fp_layer *layer = NULL;
	fp_workspace *workspace = NULL;
	fp_status status;
	FP_TRY(fp_workspace_new(&workspace, m->task->dense, m->batch * m->length));
	for (int64_t i = 0; i < layers; i++) {
		FP_TRY(fp_layer_load(&layer, m->task->dense, i));
		for (int64_t window = 0; window < windows->count; window += m->batch) {
			int64_t count = fp_smaller(m->batch, windows->count - window);
			fp_layer_state state = {.sequences = count, .length = m->length};
			state.hidden = fp_matrix_rows(m->dense_batch, 0, count * m->length);
			FP_TRY(fp_check_interrupt(m->ctx));
			FP_TRY(i > 0 ? copy_dense(m, window, state.hidden, false)
						 : fp_model_embed(m->task->dense, windows->ids + window * m->length, count, m->length,
										  state.hidden));
			FP_TRY(fp_layer_forward(layer, &state, workspace));
			FP_TRY(copy_dense(m, window, state.hidden, true));
		}
		fp_layer_free(layer);
		layer = NULL;
		fp_report_progress(m->ctx, "dense model", i + 1, layers);
	}
cleanup:
	fp_layer_free(layer);
	fp_workspace_free(workspace);
	return status;
}

static fp_status allocate(model_fit *m)
{
	int64_t tokens = m->batch * m->length, width = fp_model_get_config(m->task->pruned)->hidden;
	int64_t dense_width = fp_model_get_config(m->task->dense)->hidden;
	fp_status status;
	FP_TRY(FP_NEW(m->ctx, &m->input, m->layers + 1));
	FP_TRY(FP_NEW(m->ctx, &m->ids, tokens));
	FP_TRY(FP_NEW(m->ctx, &m->targets, tokens));
	FP_TRY(FP_NEW(m->ctx, &m->rows.kl, tokens));
	for (int i = 0; i < 2; i++) {
		FP_TRY(FP_NEW(m->ctx, &m->rows.losses[i], tokens));
		FP_TRY(FP_NEW(m->ctx, &m->rows.argmax[i], tokens));
	}
	FP_TRY(FP_NEW(m->ctx, &m->order, m->count));
	for (int64_t i = 0; i < m->count; i++)
		m->order[i] = m->task->held_out + i;
	m->drawn = m->count; /* the first draw shuffles */
	fp_mersenne_seed(&m->random, (uint64_t)m->task->settings->seed);
	for (int64_t i = 0; i <= m->layers; i++)
		FP_TRY(fp_matrix_new(m->be, &m->input[i], tokens, width, FP_F32));
	FP_TRY(fp_matrix_new(m->be, &m->gradient, tokens, width, FP_F32));
	FP_TRY(fp_matrix_new(m->be, &m->dense_batch, tokens, dense_width, FP_F32));
	FP_TRY(m->task->offload == FP_OFFLOAD_STATES
			   ? fp_allocate_undefined(m->ctx, (void **)&m->dense_states,
									   m->task->windows->count * m->length * dense_width * (int64_t)sizeof(float))
			   : fp_matrix_new(m->be, &m->dense_hidden, m->task->windows->count * m->length, dense_width, FP_F32));
	FP_TRY(fp_tape_new(&m->tape, m->task->pruned, tokens));
cleanup:
	return status;
}

/* input[0], dense_batch ← the window, as number `place` of the batch */
static fp_status put_window(model_fit *m, int64_t window, int64_t place)
{
	memcpy(m->ids + place * m->length, m->task->windows->ids + window * m->length, (size_t)m->length * sizeof *m->ids);
	return copy_dense(m, window, fp_matrix_rows(m->dense_batch, place * m->length, m->length), false);
}

/* input[0 … layers] ← of the first `count` windows of the batch, through the weights, or as the checkpoint would hold them */
static fp_status forward(model_fit *m, bool rounded, int64_t count)
{
	int64_t rows = count * m->length;
	fp_status status;
	FP_TRY(fp_model_embed(m->task->pruned, m->ids, count, m->length, fp_matrix_rows(m->input[0], 0, rows)));
	for (int64_t i = 0; i < m->layers; i++) {
		fp_fit_optimiser *o = &m->fitted.optimiser[i];
		fp_matrix output;
		FP_TRY(fp_check_interrupt(m->ctx));
		FP_TRY(fp_fitted_layers_enter(&m->fitted, i, rounded ? FP_FIT_WEIGHTS | FP_FIT_ROUNDED : FP_FIT_WEIGHTS));
		if (rounded)
			FP_TRY(fp_fit_optimiser_round(o));
		fp_layer layer = rounded ? fp_fit_optimiser_rounded_layer(o) : fp_fit_optimiser_layer(o);
		FP_TRY(
			fp_layer_forward_taped(&layer, count, m->length, fp_matrix_rows(m->input[i], 0, rows), m->tape, &output));
		FP_TRY(m->be->memory->copy(m->be, fp_matrix_rows(m->input[i + 1], 0, rows), output));
		FP_TRY(fp_fitted_layers_leave(&m->fitted, i, 0));
	}
cleanup:
	return status;
}

/* Moves the weights of each layer. m->gradient is that of its output, at first of the last layer's. */
static fp_status backward(model_fit *m, int64_t step, int64_t steps)
{
	const int moved = FP_FIT_WEIGHTS | FP_FIT_MOMENTS;
	fp_status status = FP_OK;
	fp_matrix output, below;
	for (int64_t i = m->layers - 1; i >= 0; i--) {
		fp_fit_optimiser *o = &m->fitted.optimiser[i];
		FP_TRY(fp_check_interrupt(m->ctx));
		FP_TRY(fp_fitted_layers_enter(&m->fitted, i, moved | FP_FIT_GRADIENTS));
		fp_layer layer = fp_fit_optimiser_layer(o);
		FP_TRY(fp_layer_forward_taped(&layer, m->batch, m->length, m->input[i], m->tape, &output));
		FP_TRY(m->be->memory->copy(m->be, output, m->gradient));
		FP_TRY(fp_layer_backward_through(&layer, m->tape, &o->gradients, &below));
		FP_TRY(m->be->memory->copy(m->be, m->gradient, below));
		FP_TRY(fp_fit_optimiser_step(o, step, steps));
		FP_TRY(fp_fitted_layers_leave(&m->fitted, i, moved));
	}
cleanup:
	return status;
}

/* Draws the windows of a batch without repetition within an epoch. */
static fp_status draw(model_fit *m)
{
	fp_status status = FP_OK;
	if (m->drawn + m->batch > m->count) {
		for (int64_t i = m->count - 1; i > 0; i--) {
			int64_t j = fp_mersenne_between(&m->random, 0, i), window = m->order[i];
			m->order[i] = m->order[j];
			m->order[j] = window;
		}
		m->drawn = 0;
	}
	for (int64_t i = 0; i < m->batch; i++)
		FP_TRY(put_window(m, m->order[m->drawn++], i));
cleanup:
	return status;
}

static fp_status take_step(model_fit *m, int64_t step, int64_t steps)
{
	fp_status status;
	FP_TRY(draw(m));
	FP_TRY(forward(m, false, m->batch));
	FP_TRY(fp_model_divergence_gradient(m->task->dense, m->dense_batch, m->task->pruned, m->input[m->layers],
										m->gradient));
	FP_TRY(backward(m, step, steps));
cleanup:
	return status;
}

/* *kl ← the mean over the tokens of the held-out windows, with the weights as the checkpoint would hold them */
static fp_status measure(model_fit *m, double *kl)
{
	double sum = 0;
	fp_status status = FP_OK;
	for (int64_t window = 0; window < m->task->held_out; window += m->batch) {
		int64_t count = fp_smaller(m->batch, m->task->held_out - window), rows = count * m->length;
		for (int64_t i = 0; i < count; i++)
			FP_TRY(put_window(m, window + i, i));
		FP_TRY(forward(m, true, count));
		FP_TRY(fp_model_divergence(m->task->dense, fp_matrix_rows(m->dense_batch, 0, rows), m->task->pruned,
								   fp_matrix_rows(m->input[m->layers], 0, rows), m->targets, &m->rows));
		for (int64_t i = 0; i < rows; i++)
			sum += m->rows.kl[i];
	}
	*kl = sum / (double)(m->task->held_out * m->length);
cleanup:
	return status;
}

/* One attempt, whose rates are `factor` times those of a layer's fit. */
static fp_status take_steps(model_fit *m, double factor, int64_t steps, fp_model_fit_result *result)
{
	fp_status status;
	FP_TRY(fp_fitted_layers_start(&m->fitted, factor));
	for (int64_t step = 0; step < steps; step++) {
		double now;
		FP_TRY(take_step(m, step, steps));
		fp_report_progress(m->ctx, "distilling", step + 1, steps);
		if ((step + 1) * EVALUATIONS / steps == step * EVALUATIONS / steps)
			continue;
		FP_TRY(measure(m, &now));
		fp_log(m->ctx, FP_LOG_INFO, "step %lld of %lld: KL %.5f on held-out windows, %.5f at the start",
			   (long long)step + 1, (long long)steps, now, result->kl_before);
		if (!isfinite(now) || now > 2 * result->kl_before)
			break; /* the rate is too high */
		if (!(now < result->kl_after))
			continue;
		FP_TRY(fp_fitted_layers_keep(&m->fitted));
		result->kl_after = now;
		result->steps = step + 1;
	}
cleanup:
	return status;
}

/* The rate is proportional to the root of the divergence, which is quadratic in the error of the weights. If no point is
 * better than the start, as happens with little text, a lower rate and half the steps are tried. */
static fp_status attempt(model_fit *m, fp_model_fit_result *result)
{
	int64_t steps = result->most_steps;
	double factor;
	fp_status status;
	FP_TRY(fp_fitted_layers_start(&m->fitted, 1));
	FP_TRY(measure(m, &result->kl_before));
	result->kl_after = result->kl_before;
	factor = 0.2 * sqrt(fmin(result->kl_before, 1));
	for (int i = 0; i < ATTEMPTS && result->steps == 0; i++, factor *= NEXT_RATE)
		FP_TRY(take_steps(m, factor, i == 0 ? steps : (steps + 1) / 2, result));
cleanup:
	return status;
}

fp_status fp_fit_model(const fp_model_fit_task *task, fp_take_layer take, void *data, fp_model_fit_result *result)
{
	fp_backend *be = fp_model_backend(task->pruned);
	const fp_windows *windows = task->windows;
	model_fit m = {.task = task, .ctx = be->ctx, .be = be, .layers = fp_model_get_config(task->pruned)->layers};
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FIT);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	fp_status status;
	m.length = windows->length;
	m.count = windows->count - task->held_out;
	m.batch = batch_of(task);
	*result = (fp_model_fit_result){.most_steps = fp_fit_steps(task->settings, m.count, windows->length)};
	FP_TRY(fp_fit_check(be));
	FP_REQUIRE(be, task->held_out > 0 && m.count > 0);
	FP_TRY(allocate(&m));
	FP_TRY(pass_dense(&m));
	FP_TRY(fp_fitted_layers_open(&m.fitted, task->pruned, task->settings, task->offload != FP_OFFLOAD_NOTHING));
	FP_TRY(attempt(&m, result));
	FP_TRY(fp_fitted_layers_give(&m.fitted, take, data));
cleanup:
	free_space(&m);
	fp_stage_enter(be->ctx, stage);
	return status;
}
