/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allocation.c: measures all operators in one pass through the layers, so that each layer is loaded once. The pass
 * carries one stream of hidden states for the dense model and, from each operator's layer on, one for the model in which
 * only that operator is pruned.
 */
#include "pruning/allocation.h"

#include "base/clock.h"
#include "base/memory.h"
#include "model/layer_backward.h"
#include "solver/steps.h"
#include "statistics/statistics.h"

#include <math.h>
#include <string.h>

enum { PROBE_TOKENS = 2048 };
static const int64_t PROBE_BYTES = (int64_t)1 << 30; /* limit of the streams' memory, unless one window takes more */
/* β: the loss grew by a factor of 4 per 0.2 of sparsity in operators of small LLaMA and OPT models between 60% and 80%. */
static const double GROWTH = 6.93;
static const double SMALLEST_LOSS = 1e-6; /* for an operator whose pruning does not raise the loss */

/* What is measured as one: an operator that reads every token, or those of one role of all experts. */
enum { SLOT_COUNT = FP_ROLE_COUNT + FP_EXPERT_ROLES };

static int slot_of(int number)
{
	return number < FP_ROLE_COUNT ? number : fp_expert_operator(0, fp_operator_role(number));
}

/* Entries of a slot in a layer; 0: the layer has no such operator. */
static int64_t slot_entries(const fp_model *model, int64_t layer, int slot)
{
	int64_t entries = 0;
	for (int i = slot; i < (slot < FP_ROLE_COUNT ? slot + 1 : fp_model_operators(model)); i += FP_EXPERT_ROLES) {
		const fp_tensor_info *tensor = fp_model_operator(model, layer, i);
		entries += tensor ? tensor->elements : 0;
	}
	return entries;
}

typedef struct slot_share {
	int64_t zeros, entries; /* 0 entries: no such operator */
} slot_share;

struct fp_allocation {
	int64_t first, end;
	int64_t experts;   /* of a layer */
	slot_share *share; /* by layer and slot */
};

typedef struct probe {
	const fp_allocation_request *request;
	fp_backend *be;
	int64_t windows, tokens;    /* of the sample */
	int64_t operators, started; /* streams */
	fp_matrix base, scratch, context;
	fp_matrix *streams; /* by operator */
	fp_workspace *workspace;
	int32_t *targets;
	float *losses;
} probe;

void fp_allocation_free(fp_allocation *allocation)
{
	if (allocation)
		fp_free(allocation->share);
	fp_free(allocation);
}

/* Experts have equally many entries, and zeros that differ by one at most. */
fp_pattern fp_allocation_pattern(const fp_allocation *allocation, fp_pattern pattern, int64_t layer, int number)
{
	int64_t expert = fp_operator_expert(number);
	slot_share own;
	if (!allocation || layer < allocation->first || layer >= allocation->end)
		return pattern;
	own = allocation->share[(layer - allocation->first) * SLOT_COUNT + slot_of(number)];
	if (expert >= 0) {
		own.zeros = own.zeros * (expert + 1) / allocation->experts - own.zeros * expert / allocation->experts;
		own.entries /= allocation->experts;
	}
	if (own.entries > 0) /* half a zero more, so that rounding down gives the exact count */
		pattern.sparsity = ((double)own.zeros + 0.5) / (double)own.entries;
	return pattern;
}

/* An operator's share for the multiplier ln μ. */
static double share_at(double log_multiplier, double loss, int64_t entries, double share, double limit)
{
	double own = share + (log_multiplier + log((double)entries / loss)) / GROWTH;
	double low = fmax(share - limit, 0.0);
	double high = fmin(share + limit, 1.0);
	return fmin(fmax(own, low), high);
}

void fp_spread_zeros(int64_t *zeros, const double *loss, const int64_t *entries, int64_t count, double share,
					 double limit)
{
	double low = 0;
	double high = 0;
	double total = 0;
	for (int64_t i = 0; i < count; i++) { /* at `low` every share is at its lower limit, at `high` at its upper */
		double own = log((double)entries[i] / loss[i]);
		low = i == 0 ? -own : fmin(low, -own);
		high = i == 0 ? -own : fmax(high, -own);
		total += (double)entries[i];
	}
	low -= GROWTH;
	high += GROWTH;
	for (int step = 0; step < 100; step++) {
		double middle = 0.5 * (low + high);
		double sum = 0;
		for (int64_t i = 0; i < count; i++)
			sum += (double)entries[i] * share_at(middle, loss[i], entries[i], share, limit);
		if (sum < share * total)
			low = middle;
		else
			high = middle;
	}
	int64_t left = (int64_t)floor(share * total);
	for (int64_t i = 0; i < count; i++) {
		zeros[i] = (int64_t)floor((double)entries[i] * share_at(low, loss[i], entries[i], share, limit));
		left -= zeros[i];
	}
	for (int64_t i = 0; left > 0; i = (i + 1) % count) /* distribute what the floors left */
		if (zeros[i] < entries[i]) {
			zeros[i]++;
			left--;
		}
}

static void probe_free(probe *p)
{
	for (int64_t i = 0; p->streams && i < p->operators; i++)
		fp_matrix_free(p->be, &p->streams[i]);
	fp_matrix_free(p->be, &p->base);
	fp_matrix_free(p->be, &p->scratch);
	fp_matrix_free(p->be, &p->context);
	fp_workspace_free(p->workspace);
	fp_free(p->streams);
	fp_free(p->targets);
	fp_free(p->losses);
}

static int64_t count_operators(const fp_allocation_request *request)
{
	int64_t count = 0;
	for (int64_t layer = request->first; layer < request->end; layer++)
		for (int slot = 0; slot < SLOT_COUNT; slot++)
			count += slot_entries(request->model, layer, slot) > 0;
	return count;
}

static fp_status probe_new(probe *p)
{
	const fp_allocation_request *request = p->request;
	const fp_model_config *config = fp_model_get_config(request->model);
	int64_t length = request->windows->length;
	int64_t hidden = config->hidden;
	fp_status status;
	p->be = fp_model_backend(request->model);
	p->operators = count_operators(request);
	int64_t most = PROBE_BYTES / (int64_t)sizeof(float) / hidden / (p->operators + 2);
	p->windows = (most < PROBE_TOKENS ? most : PROBE_TOKENS) / length;
	if (p->windows < 1)
		p->windows = 1;
	if (p->windows > request->windows->count)
		p->windows = request->windows->count;
	p->tokens = p->windows * length;
	FP_TRY(fp_matrix_new(p->be, &p->base, p->tokens, hidden, FP_F32));
	FP_TRY(fp_matrix_new(p->be, &p->scratch, p->tokens, hidden, FP_F32));
	FP_TRY(fp_matrix_new(p->be, &p->context, p->tokens, config->heads * config->head_dim, FP_F32));
	FP_TRY(fp_workspace_new(&p->workspace, request->model, p->tokens));
	FP_TRY(FP_NEW(p->be->ctx, &p->streams, p->operators));
	FP_TRY(FP_NEW(p->be->ctx, &p->targets, p->tokens));
	FP_TRY(FP_NEW(p->be->ctx, &p->losses, p->tokens));
	for (int64_t i = 0; i < p->tokens; i++)
		p->targets[i] = i % length == length - 1 ? -1 : request->windows->ids[i + 1];
	FP_TRY(fp_model_embed(request->model, request->windows->ids, p->windows, length, p->base));
cleanup:
	return status;
}

static fp_status forward(const probe *p, const fp_layer *layer, fp_matrix hidden)
{
	fp_layer_state state = {.sequences = p->windows, .length = p->request->windows->length, .hidden = hidden};
	return fp_layer_forward(layer, &state, p->workspace);
}

/* pruned[number] ← the group's operators, those of an expert or (−1) of none, pruned by Wanda for the inputs X */
static fp_status prune_group(const probe *p, const fp_layer *layer, int group, int64_t expert, fp_matrix X,
							 fp_matrix *pruned)
{
	fp_backend *be = p->be;
	fp_statistics statistics = {0};
	fp_gram gram = {0};
	fp_matrix mask = {0}, own = {0};
	fp_status status;
	FP_TRY(fp_statistics_new(&statistics, be, &(fp_statistics_plan){.inputs = X.cols, .batch = p->tokens}));
	if (X.rows > 0)
		FP_TRY(fp_statistics_fold(&statistics, X, X));
	FP_TRY(fp_statistics_finish(&statistics));
	if (X.rows == 0) /* an expert that no token reaches */
		FP_TRY(fp_statistics_identity(&statistics));
	FP_TRY(fp_gram_new(&gram, be, statistics.A));
	for (int i = 0; i < fp_model_operators(layer->model); i++) {
		fp_matrix W = layer->weight[i];
		if (fp_role_group(i) != group || fp_operator_expert(i) != expert || fp_matrix_is_absent(W))
			continue;
		FP_TRY(fp_matrix_widen(be, W, &own, &W));
		fp_problem problem = {.gram = &gram, .W = W, .C = W, .pattern = p->request->pattern};
		FP_TRY(fp_matrix_new(be, &mask, W.rows, W.cols, FP_U8));
		FP_TRY(fp_matrix_new(be, &pruned[i], W.rows, W.cols, FP_F32));
		FP_TRY(fp_warm_start(&problem, "wanda", p->request->settings, pruned[i], mask));
		fp_matrix_free(be, &mask);
		fp_matrix_free(be, &own);
	}
cleanup:
	fp_matrix_free(be, &mask);
	fp_matrix_free(be, &own);
	fp_gram_free(&gram);
	fp_statistics_free(&statistics);
	return status;
}

/* Swaps the operators of a slot with the pruned ones. */
static void swap_slot(fp_layer *layer, int slot, fp_matrix *pruned)
{
	for (int i = slot; i < fp_model_operators(layer->model); i++)
		if (slot_of(i) == slot) {
			fp_matrix weight = layer->weight[i];
			layer->weight[i] = pruned[i];
			pruned[i] = weight;
		}
}

/* pruned ← all operators of the layer, pruned for the inputs that they have in the dense model */
static fp_status prune_layer(const probe *p, const fp_layer *layer, fp_layer_state *state, fp_matrix *pruned)
{
	fp_status status = FP_OK;
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		fp_matrix X;
		FP_TRY(fp_layer_input(layer, group, state, p->workspace, &X));
		if (!fp_matrix_is_absent(X))
			FP_TRY(prune_group(p, layer, group, -1, X, pruned));
		fp_expert_rows rows = fp_layer_expert_rows(layer, p->workspace);
		for (int64_t e = 0; group >= fp_role_group(FP_UP) && rows.routing && e < rows.routing->experts; e++)
			FP_TRY(prune_group(p, layer, group, e, fp_routing_rows(rows.routing, e, rows.rows), pruned));
		FP_TRY(fp_layer_advance(layer, group, X, state, p->workspace));
	}
cleanup:
	return status;
}

/* Starts a stream for each slot of the layer: the layer's output with its operators pruned. */
static fp_status start_streams(probe *p, fp_layer *layer)
{
	fp_backend *be = p->be;
	fp_layer_matrices pruned = {0};
	fp_layer_state state = {
		.sequences = p->windows, .length = p->request->windows->length, .hidden = p->scratch, .context = p->context};
	fp_status status;
	FP_TRY(fp_layer_matrices_empty(&pruned, layer->model));
	FP_TRY(be->memory->copy(be, p->scratch, p->base));
	FP_TRY(prune_layer(p, layer, &state, pruned.weight));
	for (int slot = 0; slot < SLOT_COUNT; slot++) {
		if (slot_entries(layer->model, layer->index, slot) == 0)
			continue;
		fp_matrix *stream = &p->streams[p->started++];
		FP_TRY(fp_matrix_new(be, stream, p->base.rows, p->base.cols, FP_F32));
		FP_TRY(be->memory->copy(be, *stream, p->base));
		swap_slot(layer, slot, pruned.weight);
		status = forward(p, layer, *stream);
		swap_slot(layer, slot, pruned.weight);
		FP_TRY(status);
	}
cleanup:
	fp_layer_matrices_free(be, &pruned);
	return status;
}

static fp_status run_layers(probe *p)
{
	const fp_allocation_request *request = p->request;
	fp_context *ctx = p->be->ctx;
	int64_t layers = fp_model_get_config(request->model)->layers;
	fp_layer *layer = NULL;
	fp_status status = FP_OK;
	for (int64_t index = 0; index < layers; index++) {
		fp_report_progress(ctx, "measuring sensitivity", index, layers);
		FP_TRY(fp_check_interrupt(ctx));
		FP_TRY(fp_layer_load(&layer, request->model, index));
		for (int64_t i = 0; i < p->started; i++)
			FP_TRY(forward(p, layer, p->streams[i]));
		if (index >= request->first && index < request->end)
			FP_TRY(start_streams(p, layer));
		FP_TRY(forward(p, layer, p->base));
		fp_layer_free(layer);
		layer = NULL;
	}
	fp_report_progress(ctx, "measuring sensitivity", layers, layers);
cleanup:
	fp_layer_free(layer);
	return status;
}

static fp_status mean_loss(const probe *p, fp_matrix hidden, double *out)
{
	fp_status status = fp_model_loss(p->request->model, hidden, p->targets, p->losses, NULL);
	double sum = 0;
	for (int64_t i = 0; status == FP_OK && i < p->tokens; i++)
		sum += p->losses[i];
	*out = sum / (double)(p->tokens - p->windows);
	return status;
}

/* allocation->share ← the shares that follow from the losses of the streams at the end of the model */
static fp_status set_shares(const probe *p, fp_allocation *allocation)
{
	const fp_allocation_request *request = p->request;
	fp_context *ctx = p->be->ctx;
	double *loss = NULL;
	int64_t *entries = NULL;
	int64_t *zeros = NULL;
	double dense;
	fp_status status;
	FP_TRY(FP_NEW(ctx, &loss, p->operators));
	FP_TRY(FP_NEW(ctx, &entries, p->operators));
	FP_TRY(FP_NEW(ctx, &zeros, p->operators));
	FP_TRY(mean_loss(p, p->base, &dense));
	for (int64_t i = 0; i < p->operators; i++) {
		FP_TRY(mean_loss(p, p->streams[i], &loss[i]));
		loss[i] = fmax(loss[i] - dense, SMALLEST_LOSS);
	}
	for (int pass = 0; pass < 2; pass++) {
		int64_t i = 0;
		for (int64_t at = 0; at < (request->end - request->first) * SLOT_COUNT; at++) {
			int64_t layer = request->first + at / SLOT_COUNT;
			int slot = (int)(at % SLOT_COUNT);
			int64_t size = slot_entries(request->model, layer, slot);
			if (size > 0 && pass == 0) {
				entries[i++] = size;
			} else if (size > 0) {
				allocation->share[at] = (slot_share){zeros[i], size};
				fp_log(ctx, FP_LOG_INFO, "layer %lld %s%s: loss %+.4f, share %.4f", (long long)layer,
					   slot < FP_ROLE_COUNT ? "" : "experts' ", fp_role_name(slot), loss[i],
					   (double)zeros[i] / (double)entries[i]);
				i++;
			}
		}
		if (pass == 0)
			fp_spread_zeros(zeros, loss, entries, p->operators, request->pattern.sparsity, request->settings->allocate);
	}
cleanup:
	fp_free(loss);
	fp_free(entries);
	fp_free(zeros);
	return status;
}

fp_status fp_allocation_new(fp_allocation **out, const fp_allocation_request *request)
{
	probe p = {.request = request, .be = fp_model_backend(request->model)};
	fp_context *ctx = p.be->ctx;
	fp_allocation *allocation = NULL;
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_FORWARD);
	FP_PRODUCTS_FOR(p.be, FP_USE_ACTIVATION);
	fp_status status;
	*out = NULL;
	FP_REQUIRE(p.be, request->pattern.group == 0);
	if (request->windows->count < 1 || request->windows->length < 2)
		FP_TRY(fp_fail(ctx, FP_ERROR_USAGE,
					   "allocate %g: needs calibration text to measure the loss; give some, or use allocate=0",
					   request->settings->allocate));
	FP_TRY(FP_NEW(ctx, &allocation, 1));
	allocation->first = request->first;
	allocation->end = request->end;
	allocation->experts = fp_model_get_config(request->model)->experts.count;
	FP_TRY(FP_NEW(ctx, &allocation->share, (request->end - request->first) * SLOT_COUNT));
	FP_TRY(probe_new(&p));
	FP_TRY(run_layers(&p));
	FP_TRY(set_shares(&p, allocation));
cleanup:
	probe_free(&p);
	fp_stage_enter(ctx, stage);
	if (status == FP_OK)
		*out = allocation;
	else
		fp_allocation_free(allocation);
	return status;
}
