/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/sensitivity.h"

#include "backend/work_space.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "model/basis.h"
#include "model/layer_backward.h"

enum { TOKENS = 4096, BATCH_TOKENS = 2048 }; /* at least one window */

typedef struct passes {
	fp_model *model;
	fp_backend *be;
	const fp_windows *windows;
	fp_share share;
	int64_t layers, count, batch; /* windows of this rank, and at once */
	fp_matrix *inputs;            /* of each layer, and the output of the last: tokens × hidden */
	fp_matrix gradient;           /* of a layer's output; of its input after its backward pass */
	fp_layer_matrices energies;   /* of the outputs, as weights */
	fp_workspace *workspace;
	fp_tape *tape;
	int32_t *targets;
	double *sums; /* part · layers · operators: of the energies of all outputs and tokens of a part */
} passes;

static int64_t window_count(const fp_windows *windows)
{
	return fp_larger(fp_smaller(TOKENS / windows->length, windows->count), 1);
}

static int64_t batch_windows(const fp_windows *windows)
{
	return fp_larger(fp_smaller(BATCH_TOKENS / windows->length, window_count(windows)), 1);
}

static void passes_free(passes *p)
{
	for (int64_t i = 0; p->inputs && i <= p->layers; i++)
		fp_matrix_free(p->be, &p->inputs[i]);
	fp_free(p->inputs);
	fp_matrix_free(p->be, &p->gradient);
	fp_layer_matrices_free(p->be, &p->energies);
	fp_workspace_free(p->workspace);
	fp_tape_free(p->tape);
	fp_free(p->targets);
	fp_free(p->sums);
}

double fp_sensitivities_flops(const fp_model *model, const fp_windows *windows, int64_t weights)
{
	const fp_model_config *c = fp_model_get_config(model);
	double tokens = (double)(window_count(windows) * windows->length), head = (double)(c->vocabulary * c->embedding);
	/* through the layers twice forward and once backward by the inputs; through the head once each */
	return tokens * (6 * (double)c->layers * (double)weights + 4 * head);
}

int64_t fp_sensitivities_bytes(const fp_model *model, const fp_windows *windows)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t tokens = window_count(windows) * windows->length, batch = batch_windows(windows) * windows->length;
	fp_attention_shape shape = fp_model_attention_shape(model, batch_windows(windows), windows->length);
	int64_t heaviest = fp_heaviest_layer(model, 0, c->layers);
	int64_t tape = fp_tape_bytes(model, batch) +
				   fp_larger(fp_attention_backward_bytes(fp_model_backend(model), &shape),
							 fp_layer_change_basis_bytes(model, heaviest)); /* layers are loaded while it is there */
	int64_t most = fp_larger(fp_larger(tape, fp_workspace_bytes(model, batch)) + fp_layer_bytes(model, heaviest),
							 fp_model_head_bytes(model));
	return (c->layers + 2) * tokens * c->hidden * (int64_t)sizeof(float) + most;
}

static int part_of(const passes *p, int64_t window)
{
	return fp_share_part(&p->share, fp_share_first(&p->share) + window);
}

/* The first window of a part, counted from this rank's first. */
static int64_t part_window(const passes *p, int part)
{
	return fp_share_window(&p->share, part) - fp_share_first(&p->share);
}

/* The windows of the batch that begins with this rank's window `first`: it ends with its part. */
static int64_t batch_count(const passes *p, int64_t first)
{
	return fp_smaller(p->batch, part_window(p, part_of(p, first) + 1) - first);
}

static fp_matrix batch_rows(const passes *p, fp_matrix all, int64_t first)
{
	int64_t length = p->windows->length;
	return fp_matrix_rows(all, first * length, batch_count(p, first) * length);
}

static const int32_t *own_tokens(const passes *p)
{
	return p->windows->ids + fp_share_first(&p->share) * p->windows->length;
}

static fp_status forward(passes *p)
{
	int64_t tokens = p->count * p->windows->length, hidden = fp_model_get_config(p->model)->hidden;
	fp_layer *layer = NULL;
	fp_status status;
	FP_TRY(fp_workspace_new(&p->workspace, p->model, p->batch * p->windows->length));
	FP_TRY(fp_matrix_new(p->be, &p->inputs[0], tokens, hidden, FP_F32));
	FP_TRY(fp_model_embed(p->model, own_tokens(p), p->count, p->windows->length, p->inputs[0]));
	for (int64_t i = 0; i < p->layers; i++) {
		FP_TRY(fp_check_interrupt(p->be->ctx));
		FP_TRY(fp_layer_load(&layer, p->model, i));
		FP_TRY(fp_matrix_new(p->be, &p->inputs[i + 1], tokens, hidden, FP_F32));
		FP_TRY(p->be->memory->copy(p->be, p->inputs[i + 1], p->inputs[i]));
		for (int64_t first = 0; first < p->count; first += batch_count(p, first)) {
			fp_layer_state state = {.sequences = batch_count(p, first),
									.length = p->windows->length,
									.hidden = batch_rows(p, p->inputs[i + 1], first)};
			FP_TRY(fp_layer_forward(layer, &state, p->workspace));
		}
		fp_layer_free(layer);
		layer = NULL;
	}
cleanup:
	fp_layer_free(layer);
	fp_workspace_free(p->workspace);
	p->workspace = NULL;
	return status;
}

static fp_status backward_head(passes *p)
{
	int64_t length = p->windows->length, tokens = p->count * length;
	fp_status status;
	FP_TRY(FP_NEW(p->be->ctx, &p->targets, tokens));
	for (int64_t i = 0; i < tokens; i++)
		p->targets[i] = (i + 1) % length == 0 ? -1 : own_tokens(p)[i + 1];
	FP_TRY(fp_matrix_new(p->be, &p->gradient, tokens, fp_model_get_config(p->model)->hidden, FP_F32));
	for (int64_t first = 0; first < p->count; first += batch_count(p, first)) /* the same rows at once with any ranks */
		FP_TRY(fp_model_loss_gradient(p->model, batch_rows(p, p->inputs[p->layers], first), p->targets + first * length,
									  batch_rows(p, p->gradient, first)));
cleanup:
	fp_model_drop_head(p->model);
	return status;
}

/* *out ← the mean over outputs of the sums of energies (1 × outputs) */
static fp_status mean_energy(const passes *p, fp_matrix energies, double *out)
{
	fp_matrix ones = {0};
	double sum;
	fp_status status;
	FP_TRY(fp_matrix_new(p->be, &ones, 1, energies.cols, FP_F32));
	FP_TRY(p->be->memory->fill(p->be, ones, 1));
	FP_TRY(p->be->linear->dot(p->be, energies, ones, &sum));
	*out = sum / (double)energies.cols;
cleanup:
	fp_matrix_free(p->be, &ones);
	return status;
}

/* out ← of the operators of a layer, over the windows of a part */
static fp_status backward_part(passes *p, const fp_layer *layer, int part, double *out)
{
	fp_backend *be = p->be;
	fp_status status = FP_OK;
	for (int i = 0; i < p->energies.count; i++)
		if (!fp_matrix_is_absent(p->energies.weight[i]))
			FP_TRY(be->memory->fill(be, p->energies.weight[i], 0));
	for (int64_t first = part_window(p, part); first < part_window(p, part + 1); first += batch_count(p, first)) {
		fp_matrix output, dinput, gradient = batch_rows(p, p->gradient, first);
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(fp_layer_forward_taped(layer, batch_count(p, first), p->windows->length,
									  batch_rows(p, p->inputs[layer->index], first), p->tape, &output));
		FP_TRY(be->memory->copy(be, output, gradient));
		FP_TRY(fp_layer_backward_input(layer, p->tape, p->energies.weight, &dinput));
		FP_TRY(be->memory->copy(be, gradient, dinput));
	}
	for (int i = 0; i < p->energies.count; i++)
		if (!fp_matrix_is_absent(p->energies.weight[i]))
			FP_TRY(mean_energy(p, p->energies.weight[i], &out[i]));
cleanup:
	return status;
}

static fp_status backward_layer(passes *p, int64_t index)
{
	fp_backend *be = p->be;
	fp_layer *layer = NULL;
	int operators = p->energies.count;
	fp_status status;
	FP_TRY(fp_layer_load(&layer, p->model, index));
	for (int i = 0; i < operators; i++)
		if (!fp_matrix_is_absent(layer->weight[i]))
			FP_TRY(fp_matrix_new(be, &p->energies.weight[i], 1, layer->weight[i].rows, FP_F32));
	for (int part = p->share.begin; part < p->share.end; part++)
		if (part_window(p, part) < part_window(p, part + 1))
			FP_TRY(backward_part(p, layer, part, p->sums + (part * p->layers + index) * operators));
	for (int i = 0; i < operators; i++)
		fp_matrix_free(be, &p->energies.weight[i]);
	fp_matrix_free(be, &p->inputs[index + 1]);
cleanup:
	fp_layer_free(layer);
	return status;
}

/* The passes with this rank's windows. */
static fp_status run_passes(passes *p)
{
	fp_status status;
	FP_TRY(FP_NEW(p->be->ctx, &p->inputs, p->layers + 1));
	FP_TRY(forward(p));
	FP_TRY(backward_head(p));
	FP_TRY(fp_tape_new(&p->tape, p->model, p->batch * p->windows->length));
	for (int64_t i = p->layers - 1; i >= 0; i--)
		FP_TRY(backward_layer(p, i));
cleanup:
	return status;
}

fp_status fp_sensitivities(double *out, fp_model *model, const fp_windows *windows, const fp_share *share)
{
	int64_t all = window_count(windows), values = fp_model_get_config(model)->layers * fp_model_operators(model);
	passes p = {.model = model,
				.be = fp_model_backend(model),
				.windows = windows,
				.share = fp_share_is_divided(share) ? fp_share_divided(share->comm, all) : fp_share_whole(all),
				.layers = fp_model_get_config(model)->layers,
				.batch = batch_windows(windows)};
	FP_PRODUCTS_FOR(p.be, FP_USE_ACTIVATION);
	fp_status status;
	p.count = fp_share_count(&p.share);
	FP_TRY(FP_NEW(p.be->ctx, &p.sums, p.share.parts * values));
	FP_TRY(fp_layer_matrices_empty(&p.energies, model));
	if (p.count > 0)
		FP_TRY(run_passes(&p));
	FP_TRY(fp_share_gather(&p.share, p.sums, values * (int64_t)sizeof *p.sums));
	for (int64_t i = 0; i < values; i++) {
		out[i] = 0;
		for (int part = 0; part < p.share.parts; part++)
			out[i] += p.sums[part * values + i];
		out[i] /= (double)(all * windows->length);
	}
cleanup:
	passes_free(&p);
	return status;
}
