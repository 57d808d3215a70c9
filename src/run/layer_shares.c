/* SPDX-License-Identifier: Apache-2.0 */
#include "run/layer_shares.h"

#include "base/clock.h"
#include "base/memory.h"

/* Gives each rank as many layers as it can finish within `limit`; true if that covers all layers. */
static bool fill_shares(int64_t *first, int ranks, int64_t layers, double forward, const double *cost, double limit)
{
	int64_t layer = 0;
	for (int rank = 0; rank < ranks; rank++) {
		double busy = 0;
		first[rank] = layer;
		while (layer < layers && busy + cost[layer] + forward * (double)(layer + 1) <= limit)
			busy += cost[layer++];
	}
	first[ranks] = layer;
	return layer == layers;
}

void fp_share_layers(int64_t *first, int ranks, int64_t layers, double forward, const double *cost)
{
	enum { HALVINGS = 60 };
	double low = 0, high = forward * (double)layers;
	for (int64_t layer = 0; layer < layers; layer++)
		high += cost[layer];
	high *= 1.0 + 1e-9; /* fill_shares() sums in another order */
	for (int i = 0; i < HALVINGS; i++) {
		double middle = (low + high) / 2;
		if (fill_shares(first, ranks, layers, forward, cost, middle))
			high = middle;
		else
			low = middle;
	}
	fill_shares(first, ranks, layers, forward, cost, high);
}

typedef struct relay {
	fp_streams *streams;
	fp_comm *comm;
	float *host; /* one batch */
} relay;

static fp_status receive_batch(const relay *r, int64_t first)
{
	fp_backend *be = fp_model_backend(r->streams->model);
	fp_matrix hidden = fp_streams_batch(r->streams, FP_DENSE, first).hidden;
	fp_status status =
		r->comm->ops->receive(r->comm, r->comm->rank - 1, r->host, fp_matrix_size(hidden) * (int64_t)sizeof(float));
	if (status == FP_OK)
		status = be->memory->upload(be, hidden, r->host, FP_F32, hidden.cols);
	return status == FP_OK ? fp_streams_store(r->streams, FP_DENSE, first) : status;
}

static fp_status send_batch(const relay *r, int64_t first)
{
	fp_backend *be = fp_model_backend(r->streams->model);
	fp_matrix hidden = fp_streams_batch(r->streams, FP_PRUNED, first).hidden;
	fp_status status = be->memory->download(be, r->host, FP_F32, hidden.cols, hidden);
	if (status != FP_OK)
		return status;
	return r->comm->ops->send(r->comm, r->comm->rank + 1, r->host, fp_matrix_size(hidden) * (int64_t)sizeof(float));
}

/* Runs one layer over all batches. Each batch is received before the first layer and sent after the last. */
static fp_status relay_layer(const relay *r, const fp_layer *layer, bool receives, bool copies, bool sends)
{
	fp_streams *streams = r->streams;
	fp_backend *be = fp_model_backend(streams->model);
	fp_status status;
	FP_TRY(fp_streams_begin_pass(streams));
	if (receives)
		fp_streams_begin_store(streams, FP_DENSE);
	if (layer && !sends)
		fp_streams_begin_store(streams, FP_PRUNED);
	for (int64_t first = 0; first < streams->windows; first = fp_streams_next(streams, first)) {
		FP_TRY(fp_check_interrupt(be->ctx));
		if (receives)
			FP_TRY(receive_batch(r, first));
		if (!layer)
			continue;
		fp_layer_state state = fp_streams_batch(streams, FP_PRUNED, first);
		if (copies && !receives)
			FP_TRY(fp_streams_fetch(streams, FP_DENSE, first));
		if (copies)
			FP_TRY(be->memory->copy(be, state.hidden, fp_streams_batch(streams, FP_DENSE, first).hidden));
		else
			FP_TRY(fp_streams_fetch(streams, FP_PRUNED, first));
		FP_TRY(fp_layer_forward(layer, &state, streams->workspace[FP_PRUNED]));
		FP_TRY(sends ? send_batch(r, first) : fp_streams_store(streams, FP_PRUNED, first));
	}
	if (receives)
		fp_streams_stored(streams, FP_DENSE);
	if (layer && !sends)
		fp_streams_stored(streams, FP_PRUNED);
	else if (layer)
		fp_streams_forget(streams, FP_PRUNED);
cleanup:
	fp_streams_end_pass(streams);
	return status;
}

fp_status fp_streams_relay(fp_streams *streams, fp_comm *comm, int64_t begin, int64_t end, bool sends)
{
	fp_backend *be = fp_model_backend(streams->model);
	relay r = {.streams = streams, .comm = comm};
	fp_layer *layer = NULL;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FORWARD);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	bool receives = comm->rank > 0;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &r.host, fp_streams_batch_tokens(streams) * fp_model_get_config(streams->model)->hidden));
	if (!sends && receives)
		FP_TRY(relay_layer(&r, NULL, true, false, false));
	for (int64_t index = begin; sends && index < end; index++) {
		FP_TRY(fp_layer_load(&layer, streams->model, index));
		FP_TRY(relay_layer(&r, layer, receives && index == begin, index == begin, index + 1 == end));
		fp_layer_free(layer);
		layer = NULL;
	}
cleanup:
	fp_layer_free(layer);
	fp_free(r.host);
	fp_stage_enter(be->ctx, stage);
	return status;
}
