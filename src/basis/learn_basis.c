/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/learn_basis.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "basis/channel_order.h"
#include "basis/head_basis.h"
#include "basis/layer_inputs.h"
#include "basis/sensitivity.h"
#include "basis/stream_basis.h"

#include <math.h>

double fp_basis_rate(const fp_basis_task *task, int64_t step, int64_t steps)
{
	const double rise = 0.05, pi = 3.14159265358979323846;
	double way = ((double)step + 0.5) / (double)steps;
	return task->settings->basis_rate * fmin(1, way / rise) * 0.5 * (1 + cos(pi * way));
}

int64_t fp_learn_basis_bytes(const fp_basis_task *task)
{
	const fp_model *model = task->model;
	const fp_model_config *c = fp_model_get_config(model);
	int64_t q = c->heads * c->head_dim, basis = 2 * c->layers * c->kv_heads * c->head_dim * c->head_dim;
	int64_t grams = c->hidden * c->hidden + q * q, heaviest = fp_heaviest_layer(model, 0, c->layers);
	int64_t held = fp_share_ranks(&task->share) > 1 ? 1 : 0; /* a layer to learn from, while others are measured */
	int64_t heads = fp_text_stream_bytes(model, task->windows) + (1 + held) * fp_layer_bytes(model, heaviest) +
					fp_layer_change_basis_bytes(model, heaviest) + fp_learn_heads_bytes(task) +
					(1 + held + fp_layer_inputs_registers(&task->share)) * grams * (int64_t)sizeof(float);
	int64_t most = fp_larger(heads, fp_sensitivities_bytes(model, task->windows));
	if (task->stream) {
		basis += c->hidden * c->hidden;
		most = fp_larger(most, fp_learn_stream_bytes(task, 1));
	}
	return most + basis * (int64_t)sizeof(float);
}

double fp_learn_basis_flops(const fp_basis_task *task, int64_t weights)
{
	const fp_model_config *c = fp_model_get_config(task->model);
	double layers = (double)c->layers, tokens = (double)fp_text_stream_tokens(task->model, task->windows);
	double forward = 2 * tokens * (double)weights * layers; /* once for the stream, once for the heads */
	double flops = fp_sensitivities_flops(task->model, task->windows, weights) + forward;
	if (task->stream)
		flops += forward + fp_learn_stream_flops(task, weights);
	return flops + layers * fp_learn_heads_flops(task);
}

/* A layer that this rank learns from, in the basis of the stream. */
typedef struct own_layer {
	fp_layer *layer;
	fp_layer_inputs inputs;
} own_layer;

static void own_layer_free(fp_backend *be, own_layer *own)
{
	fp_layer_inputs_free(be, &own->inputs);
	fp_layer_free(own->layer);
	*own = (own_layer){0};
}

/* The basis of one layer, and its masses before and after. */
static fp_status learn_layer(const fp_basis_task *task, own_layer *own, const double *sensitivities,
							 fp_layer_basis *basis, fp_mass masses[2])
{
	int64_t first = own->layer->index * fp_model_operators(task->model);
	fp_status status;
	FP_TRY(fp_learn_heads(task, own->layer, sensitivities + first, &own->inputs, basis, &masses[0], &masses[1]));
	FP_TRY(fp_order_channels(&basis->inner, task, own->layer, own->inputs.inner));
cleanup:
	return status;
}

/* Every rank ← what rank `from` has learned of a layer */
static fp_status exchange_layer(const fp_basis_task *task, int from, int64_t index, fp_layer_basis *basis,
								fp_mass masses[2])
{
	const fp_share *share = &task->share;
	int64_t channels = fp_layer_channels(task->model, index);
	int ordered = basis->inner != NULL;
	fp_status status = FP_OK;
	if (fp_share_ranks(share) == 1)
		return FP_OK;
	FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, from, basis->value));
	FP_TRY(fp_share_matrix(share, task->be, FP_BROADCASTS, from, basis->query));
	FP_TRY(fp_share_bytes(share, FP_BROADCASTS, from, masses, 2 * (int64_t)sizeof *masses));
	FP_TRY(fp_share_bytes(share, FP_BROADCASTS, from, &ordered, sizeof ordered));
	if (ordered && !basis->inner)
		FP_TRY(FP_NEW(task->ctx, &basis->inner, channels));
	if (ordered)
		FP_TRY(fp_share_bytes(share, FP_BROADCASTS, from, basis->inner, channels * (int64_t)sizeof *basis->inner));
cleanup:
	return status;
}

/* In the basis of the stream. Ranks measure the inputs of as many layers as there are ranks together, and then learn from
 * one of these each. */
static fp_status learn_layers(const fp_basis_task *task, fp_basis *basis, const double *sensitivities,
							  fp_basis_gain *gain)
{
	int64_t layers = basis->layer_count, ranks = fp_share_ranks(&task->share);
	int me = fp_share_rank(&task->share);
	fp_text_stream stream = {0};
	own_layer own = {0}, other = {0};
	fp_mass before = {0}, after = {0};
	fp_status status;
	FP_TRY(fp_text_stream_open(&stream, task->model, task->windows, &task->share));
	for (int64_t first = 0; first < layers; first += ranks) {
		int64_t end = fp_smaller(first + ranks, layers);
		for (int64_t i = first; i < end; i++) {
			own_layer *measured = i - first == me ? &own : &other;
			fp_report_progress(task->ctx, "basis: heads", i, layers);
			FP_TRY(fp_layer_load(&measured->layer, task->model, i));
			FP_TRY(fp_layer_inputs_measure(&measured->inputs, &stream, measured->layer, FP_ATTENTION_INPUTS));
			own_layer_free(task->be, &other);
		}
		fp_mass own_masses[2] = {{0, 0}, {0, 0}};
		if (own.layer)
			FP_TRY(learn_layer(task, &own, sensitivities, &basis->layers[own.layer->index], own_masses));
		own_layer_free(task->be, &own);
		for (int64_t i = first; i < end; i++) {
			fp_mass masses[2] = {own_masses[0], own_masses[1]};
			FP_TRY(exchange_layer(task, (int)(i - first), i, &basis->layers[i], masses));
			before.removed += masses[0].removed;
			before.all += masses[0].all;
			after.removed += masses[1].removed;
		}
	}
	gain->local_before = before.all > 0 ? before.removed / before.all : 0;
	gain->local_after = before.all > 0 ? after.removed / before.all : 0;
cleanup:
	own_layer_free(task->be, &own);
	own_layer_free(task->be, &other);
	fp_text_stream_free(&stream);
	return status;
}

fp_status fp_learn_basis(fp_basis **out, const fp_basis_task *task, fp_basis_gain *gain)
{
	fp_model *model = task->model;
	fp_basis *basis = NULL;
	double *sensitivities = NULL, started = fp_clock();
	fp_stage stage = fp_stage_enter(task->ctx, FP_STAGE_BASIS);
	fp_status status;
	*out = NULL;
	*gain = (fp_basis_gain){0};
	int64_t count = fp_model_get_config(model)->layers * fp_model_operators(model);
	FP_TRY(FP_NEW(task->ctx, &sensitivities, count));
	/* Identities: only the weights of the norms go into the operators, and heads stay as they are while they are learned. */
	FP_TRY(fp_basis_new(&basis, model, &task->freedom, task->stream));
	fp_model_set_basis(model, basis);
	FP_TRY(fp_sensitivities(sensitivities, model, task->windows, &task->share));
	for (int64_t i = 0; task->pruned && i < count; i++)
		sensitivities[i] = task->pruned[i] ? sensitivities[i] : 0;
	if (task->stream)
		FP_TRY(fp_learn_stream(task, basis, sensitivities, gain));
	FP_TRY(learn_layers(task, basis, sensitivities, gain));
	gain->seconds = fp_clock() - started;
	*out = basis;
	basis = NULL;
cleanup:
	fp_model_set_basis(model, NULL);
	fp_basis_free(basis);
	fp_free(sensitivities);
	fp_stage_enter(task->ctx, stage);
	return status;
}
