/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/streams.h"

#include "backend/work_space.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/numbers.h"

#include <string.h>
#include <unistd.h>

/* Enough tokens for GEMMs at full speed and, on a device, for products that cost more than adding them to A. More tokens
 * would only take memory. */
enum { BATCH_TOKENS = 4096, DEVICE_BATCH_TOKENS = 16384 };
static const int64_t MOST_WORKSPACE = (int64_t)3 << 30; /* bytes; wide models get smaller batches */

/* The type of activations between two products: 16 bits if products round them anyway. Hidden states are always F32. */
static fp_dtype activation_type(const fp_model *model)
{
	return fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION) ? FP_BF16 : FP_F32;
}

int64_t fp_streams_usual_batch(const fp_model *model, int64_t windows, int64_t length)
{
	int64_t batch = (fp_model_backend(model)->asynchronous ? DEVICE_BATCH_TOKENS : BATCH_TOKENS) / length;
	while (batch > 1 && fp_workspace_bytes_as(model, batch * length, activation_type(model)) > MOST_WORKSPACE)
		batch /= 2;
	if (batch < 1)
		batch = 1;
	return batch < windows ? batch : windows;
}

static int64_t context_width(const fp_model *model)
{
	const fp_model_config *config = fp_model_get_config(model);
	return config->heads * config->head_dim;
}

/* True if the attention outputs of all batches are kept. The dense stream needs them only within a batch: it moves from
 * attention past the output projection in one pass. The pruned stream stops between the two. */
static bool keeps_context(fp_residence residence, int stream)
{
	return residence == FP_RESIDENT && stream == FP_PRUNED;
}

/* At once where there is space: fp_model_embed() drops the pages of the embedding that it has read. */
static fp_status embed(fp_streams *streams, const fp_windows *windows)
{
	const int32_t *ids = windows->ids + streams->first * windows->length;
	fp_status status;
	if (streams->residence != FP_ON_DISK)
		return streams->windows == 0
				   ? FP_OK
				   : fp_model_embed(streams->model, ids, streams->windows, streams->length, streams->hidden[FP_DENSE]);
	FP_TRY(fp_streams_begin_pass(streams));
	fp_streams_begin_store(streams, FP_DENSE);
	for (int64_t first = 0; first < streams->windows; first = fp_streams_next(streams, first)) {
		fp_layer_state state = fp_streams_batch(streams, FP_DENSE, first);
		FP_TRY(
			fp_model_embed(streams->model, ids + first * windows->length, state.sequences, state.length, state.hidden));
		FP_TRY(fp_streams_store(streams, FP_DENSE, first));
	}
	fp_streams_stored(streams, FP_DENSE);
cleanup:
	fp_streams_end_pass(streams);
	return status;
}

/* Opens a file for each slot in use. */
static fp_status open_files(fp_streams *streams, int count, const char *folder)
{
	fp_context *ctx = fp_model_backend(streams->model)->ctx;
	int64_t width = fp_model_get_config(streams->model)->hidden;
	fp_status status = FP_OK;
	for (int s = 0; s < count; s++)
		FP_TRY(fp_scratch_file(&streams->file[s], ctx, folder,
							   fp_larger(streams->windows, 1) * streams->length * width * (int64_t)sizeof(float)));
	FP_TRY(FP_NEW(ctx, &streams->host, fp_streams_batch_tokens(streams) * width));
cleanup:
	return status;
}

fp_status fp_streams_open(fp_streams *out, fp_model *model, const fp_windows *windows, const fp_streams_plan *plan)
{
	fp_backend *be = fp_model_backend(model);
	fp_share share = fp_share_or_whole(&plan->share, windows->count);
	int64_t count = fp_share_count(&share), tokens = fp_larger(count, 1) * windows->length; /* a rank may have none */
	fp_status status = FP_OK;
	*out = (fp_streams){.model = model,
						.share = share,
						.first = fp_share_first(&share),
						.windows = count,
						.length = windows->length,
						.batch = plan->batch,
						.residence = plan->residence,
						.count = plan->both ? FP_STREAM_COUNT : 1,
						.file = {-1, -1, -1},
						.source = {-1, -1, -1},
						.target = {-1, -1, -1}};
	for (int s = 0; s < out->count && plan->residence != FP_ON_DISK; s++)
		FP_TRY(fp_matrix_new(be, &out->hidden[s], tokens, fp_model_get_config(model)->hidden, FP_F32));
	if (plan->residence == FP_RESIDENT && plan->both)
		FP_TRY(fp_matrix_new(be, &out->context[FP_PRUNED], tokens, context_width(model), activation_type(model)));
	if (plan->residence == FP_ON_DISK)
		FP_TRY(open_files(out, out->count + plan->fitted, plan->folder));
	if (windows->ids)
		FP_TRY(embed(out, windows));
	if (windows->ids && plan->both)
		FP_TRY(fp_streams_copy(out, FP_PRUNED, FP_DENSE));
cleanup:
	if (status != FP_OK)
		fp_streams_free(out);
	return status;
}

/* Frees what only a pass needs. */
static void free_pass_space(fp_streams *streams)
{
	fp_backend *be = fp_model_backend(streams->model);
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		fp_workspace_free(streams->workspace[s]);
		streams->workspace[s] = NULL;
		if (streams->residence != FP_RESIDENT)
			fp_matrix_free(be, &streams->context[s]);
		if (streams->residence == FP_ON_DISK)
			fp_matrix_free(be, &streams->hidden[s]);
	}
}

fp_status fp_streams_begin_pass(fp_streams *streams)
{
	fp_backend *be = fp_model_backend(streams->model);
	int64_t tokens = fp_streams_batch_tokens(streams);
	fp_dtype type = activation_type(streams->model);
	fp_status status = FP_OK;
	for (int s = 0; s < streams->count; s++) {
		if (!streams->workspace[s])
			FP_TRY(fp_workspace_new_as(&streams->workspace[s], streams->model, tokens, type));
		if (fp_matrix_is_absent(streams->context[s]))
			FP_TRY(fp_matrix_new(be, &streams->context[s], tokens, context_width(streams->model), type));
		if (fp_matrix_is_absent(streams->hidden[s]))
			FP_TRY(fp_matrix_new(be, &streams->hidden[s], tokens, fp_model_get_config(streams->model)->hidden, FP_F32));
	}
cleanup:
	return status;
}

void fp_streams_end_pass(fp_streams *streams)
{
	if (streams->residence != FP_RESIDENT)
		free_pass_space(streams);
}

void fp_streams_free(fp_streams *streams)
{
	if (!streams->model)
		return;
	fp_backend *be = fp_model_backend(streams->model);
	free_pass_space(streams);
	for (int s = 0; s < FP_STREAM_COUNT; s++)
		fp_matrix_free(be, &streams->context[s]);
	for (int s = 0; s < FP_SLOT_COUNT; s++) {
		fp_matrix_free(be, &streams->hidden[s]);
		if (streams->file[s] >= 0)
			close(streams->file[s]);
	}
	fp_free(streams->host);
	memset(streams, 0, sizeof *streams);
}

int64_t fp_streams_bytes(const fp_model *model, int64_t windows, int64_t length, const fp_streams_plan *plan)
{
	int64_t tokens = windows * length, hidden = fp_model_get_config(model)->hidden;
	int64_t count = plan->both ? FP_STREAM_COUNT : 1;
	if (plan->residence == FP_ON_DISK)
		return plan->batch * length * hidden * (int64_t)sizeof(float);
	int64_t kept = keeps_context(plan->residence, FP_PRUNED) ? (count - 1) * context_width(model) : 0;
	return tokens * (count * hidden * (int64_t)sizeof(float) + kept * fp_dtype_size(activation_type(model)));
}

int64_t fp_streams_pass_bytes(const fp_model *model, int64_t length, const fp_streams_plan *plan)
{
	int64_t tokens = plan->batch * length, bytes = 0;
	fp_dtype type = activation_type(model);
	for (int s = 0; s < (plan->both ? FP_STREAM_COUNT : 1); s++) {
		int64_t context = keeps_context(plan->residence, s) ? 0 : context_width(model);
		int64_t hidden = plan->residence == FP_ON_DISK ? fp_model_get_config(model)->hidden : 0;
		bytes += fp_workspace_bytes_as(model, tokens, type) +
				 tokens * (context * fp_dtype_size(type) + hidden * (int64_t)sizeof(float));
	}
	return bytes;
}

int64_t fp_streams_product_bytes(const fp_model *model, int64_t length, const fp_streams_plan *plan, int64_t inputs,
								 int64_t outputs, int64_t rounded)
{
	const fp_backend *be = fp_model_backend(model);
	fp_attention_shape shape = fp_model_attention_shape(model, plan->batch, length);
	int64_t tokens = plan->batch * length;
	bool split = fp_operand_bytes(be, FP_USE_ACTIVATION) > 2; /* otherwise activations already have 16 bits */
	int64_t left = split ? tokens * inputs : 0, results = split ? 0 : tokens * outputs;
	/* one after the other: attention, an operator, the statistics */
	int64_t most = fp_attention_bytes(be, &shape);
	most = fp_larger(fp_product_bytes(be, FP_USE_ACTIVATION, left, rounded), most);
	most = fp_larger(fp_product_bytes(be, FP_USE_ACTIVATION, left, left), most);
	return fp_larger(fp_product_bytes(be, FP_USE_ACTIVATION, results, 0), most);
}

int64_t fp_streams_batch_tokens(const fp_streams *streams)
{
	return streams->batch * streams->length;
}

int fp_streams_part(const fp_streams *streams, int64_t first)
{
	return fp_share_part(&streams->share, streams->first + first);
}

/* One past the last window of the part. */
static int64_t part_end(const fp_streams *streams, int64_t first)
{
	return fp_share_window(&streams->share, fp_streams_part(streams, first) + 1) - streams->first;
}

int64_t fp_streams_next(const fp_streams *streams, int64_t first)
{
	return fp_smaller(first + streams->batch, part_end(streams, first));
}

bool fp_streams_begins_part(const fp_streams *streams, int64_t first)
{
	return fp_share_window(&streams->share, fp_streams_part(streams, first)) == streams->first + first;
}

bool fp_streams_ends_part(const fp_streams *streams, int64_t first)
{
	return fp_streams_next(streams, first) == part_end(streams, first);
}

fp_layer_state fp_streams_batch(const fp_streams *streams, int stream, int64_t first)
{
	int64_t count = fp_streams_next(streams, first) - first;
	int64_t row = first * streams->length;
	int64_t rows = count * streams->length;
	return (fp_layer_state){
		.sequences = count,
		.length = streams->length,
		.hidden = fp_matrix_rows(streams->hidden[stream], streams->residence == FP_ON_DISK ? 0 : row, rows),
		.context = fp_matrix_rows(streams->context[stream], keeps_context(streams->residence, stream) ? row : 0, rows),
	};
}

static int64_t file_offset(const fp_streams *streams, int64_t first)
{
	return first * streams->length * fp_model_get_config(streams->model)->hidden * (int64_t)sizeof(float);
}

/* rows ← a slot's rows from window `first` on, if they are in a file */
static fp_status fetch_rows(fp_streams *streams, int slot, int64_t first, fp_matrix rows)
{
	fp_backend *be = fp_model_backend(streams->model);
	fp_status status;
	if (streams->residence != FP_ON_DISK)
		return FP_OK;
	FP_REQUIRE(be, streams->source[slot] >= 0);
	FP_TRY(fp_read_parallel(be->ctx, be->threads, streams->file[streams->source[slot]], "hidden states", streams->host,
							fp_matrix_size(rows) * (int64_t)sizeof(float), file_offset(streams, first)));
	FP_TRY(be->memory->upload(be, rows, streams->host, FP_F32, rows.cols));
cleanup:
	return status;
}

fp_status fp_streams_fetch(fp_streams *streams, int stream, int64_t first)
{
	return fetch_rows(streams, stream, first, fp_streams_batch(streams, stream, first).hidden);
}

static int unused_file(const fp_streams *streams)
{
	for (int f = 0; f < FP_SLOT_COUNT; f++) {
		bool used = streams->file[f] < 0;
		for (int slot = 0; slot < FP_SLOT_COUNT; slot++)
			used = used || streams->source[slot] == f || streams->target[slot] == f;
		if (!used)
			return f;
	}
	return -1;
}

/* A stream is stored in place or, if another slot still reads its file after this pass, in an unused file. There are as
 * many files as slots in use, so that one is unused whenever two slots share a file. */
void fp_streams_begin_store(fp_streams *streams, int stream)
{
	int own = streams->source[stream];
	bool shared = false;
	if (streams->residence != FP_ON_DISK)
		return;
	for (int slot = 0; slot < FP_SLOT_COUNT; slot++)
		shared = shared || (slot != stream && streams->source[slot] == own && streams->target[slot] < 0);
	streams->target[stream] = own < 0 || shared ? unused_file(streams) : own;
}

fp_status fp_streams_store(fp_streams *streams, int stream, int64_t first)
{
	fp_backend *be = fp_model_backend(streams->model);
	fp_matrix hidden = fp_streams_batch(streams, stream, first).hidden;
	fp_status status;
	if (streams->residence != FP_ON_DISK)
		return FP_OK;
	FP_REQUIRE(be, streams->target[stream] >= 0);
	FP_TRY(be->memory->download(be, streams->host, FP_F32, hidden.cols, hidden));
	FP_TRY(fp_write_parallel(be->ctx, be->threads, streams->file[streams->target[stream]], "hidden states",
							 streams->host, fp_matrix_size(hidden) * (int64_t)sizeof(float),
							 file_offset(streams, first)));
cleanup:
	return status;
}

void fp_streams_stored(fp_streams *streams, int stream)
{
	if (streams->residence != FP_ON_DISK)
		return;
	streams->source[stream] = streams->target[stream];
	streams->target[stream] = -1;
}

void fp_streams_forget(fp_streams *streams, int stream)
{
	streams->source[stream] = -1;
}

/* On disk, streams share a file until one of them is stored again. */
fp_status fp_streams_copy(fp_streams *streams, int to, int from)
{
	fp_backend *be = fp_model_backend(streams->model);
	fp_matrix hidden = streams->hidden[from];
	fp_status status = FP_OK;
	streams->source[to] = streams->source[from];
	if (streams->residence == FP_ON_DISK)
		return FP_OK;
	if (fp_matrix_is_absent(streams->hidden[to]))
		FP_TRY(fp_matrix_new(be, &streams->hidden[to], hidden.rows, hidden.cols, FP_F32));
	FP_TRY(be->memory->copy(be, streams->hidden[to], hidden));
cleanup:
	return status;
}

fp_status fp_streams_read(fp_streams *streams, int slot, int64_t window, fp_matrix out)
{
	fp_backend *be = fp_model_backend(streams->model);
	int64_t own = window - streams->first;
	FP_REQUIRE(be, own >= 0 && own < streams->windows);
	fp_status status = fetch_rows(streams, slot, own, out);
	if (streams->residence != FP_ON_DISK)
		status =
			be->memory->copy(be, out, fp_matrix_rows(streams->hidden[slot], own * streams->length, streams->length));
	return status;
}

fp_status fp_streams_forward(fp_streams *streams, int stream, const fp_layer *layer)
{
	fp_backend *be = fp_model_backend(streams->model);
	fp_context *ctx = be->ctx;
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_FORWARD);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	fp_status status;
	FP_TRY(fp_streams_begin_pass(streams));
	fp_streams_begin_store(streams, stream);
	for (int64_t first = 0; first < streams->windows; first = fp_streams_next(streams, first)) {
		fp_layer_state state = fp_streams_batch(streams, stream, first);
		FP_TRY(fp_check_interrupt(ctx));
		FP_TRY(fp_streams_fetch(streams, stream, first));
		FP_TRY(fp_layer_forward(layer, &state, streams->workspace[stream]));
		FP_TRY(fp_streams_store(streams, stream, first));
	}
	fp_streams_stored(streams, stream);
cleanup:
	fp_streams_end_pass(streams);
	fp_stage_enter(ctx, stage);
	return status;
}
