/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fisher.c: the forward pass writes the output of each layer into its slot. The backward pass reads it as the input of
 * the next layer, repeats that layer's forward pass, and replaces it by the gradient. Both are rounded to bf16. That is
 * precise enough: many models run in bf16, and the gradients of single tokens are mostly noise.
 */
#include "fitting/fisher.h"

#include "backend/work_space.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "fitting/fisher_store.h"
#include "sharing/row_slices.h"

enum {
	BATCH_TOKENS = 4096,
	LEAST_TOKENS = 65536,   /* of Σ ggᵀ, if the text has them */
	TOKENS_PER_FEATURE = 16 /* and so many times the hidden size: its rank is then full */
};
static const int64_t STATE_BYTES = (int64_t)16 << 30;   /* of hidden states in the file, if a stride can achieve it */
static const int64_t GRADIENT_BYTES = (int64_t)4 << 30; /* of the gradients of all layers, if they are kept */

struct fp_fisher {
	fp_model *model; /* borrowed */
	fp_backend *be;
	fp_fisher_store store; /* of this rank's windows */
	fp_share share;
	int64_t windows; /* of all ranks, the first ones of the share */
	/* during the passes only */
	fp_matrix hidden; /* of a batch */
	fp_part_sum sum;  /* Σ ggᵀ of a layer */
	fp_matrix registers[FP_PARTS + 1];
	int current;      /* the register of the present part */
	int32_t *targets; /* of a batch */
};

bool fp_fisher_wanted(const fp_settings *settings, const fp_windows *windows)
{
	return settings->fit_steps > 0 && fp_is(settings->fit_metric, "token") && windows->count > 0;
}

bool fp_fisher_keeps_gradients(const fp_settings *settings)
{
	return settings->adapt > 0;
}

int64_t fp_fisher_windows(const fp_model *model, const fp_settings *settings, const fp_windows *windows)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t tokens = fp_larger(LEAST_TOKENS, TOKENS_PER_FEATURE * c->hidden);
	int64_t most = (tokens + windows->length - 1) / windows->length;
	if (fp_fisher_keeps_gradients(settings))
		most = GRADIENT_BYTES / (c->layers * c->hidden * fp_dtype_size(FP_BF16)) / windows->length;
	return fp_smaller(fp_larger(most, 1), windows->count);
}

/* For all windows that the passes read. */
static fp_fisher_store plan_store(const fp_model *model, const fp_settings *settings, const fp_windows *windows,
								  fp_fisher_room room, int64_t first, int64_t end)
{
	int64_t batch = fp_smaller(BATCH_TOKENS / windows->length, windows->count);
	fp_fisher_store store = {.be = fp_model_backend(model),
							 .layers = fp_model_get_config(model)->layers,
							 .first = first,
							 .end = end,
							 .windows = fp_fisher_windows(model, settings, windows),
							 .length = windows->length,
							 .width = fp_model_get_config(model)->hidden,
							 .batch = fp_larger(batch, 1),
							 .resident = room.on_device,
							 .holds = room.keeps,
							 .slot_limit = room.bytes > 0 ? room.bytes : STATE_BYTES,
							 .keeps_slots = fp_fisher_keeps_gradients(settings)};
	fp_fisher_store_plan(&store);
	return store;
}

/* The head, a layer's forward pass and a layer's backward pass are never in memory together. */
int64_t fp_fisher_bytes(const fp_model *model, const fp_settings *settings, const fp_windows *windows, int64_t held,
						int registers)
{
	const fp_backend *be = fp_model_backend(model);
	fp_fisher_store f = plan_store(model, settings, windows, (fp_fisher_room){0}, 0, 0);
	int64_t tokens = f.batch * f.length, entries = tokens * f.width, batch = entries * fp_dtype_size(FP_F32);
	fp_attention_shape shape = fp_model_attention_shape(model, f.batch, f.length);
	int64_t work = fp_larger(fp_attention_backward_bytes(be, &shape),
							 fp_product_bytes(be, FP_USE_REFINEMENT, entries, entries)); /* one after the other */
	int64_t head = fp_model_head_bytes(model) + batch;
	int64_t layer = held + fp_larger(fp_tape_bytes(model, tokens) + work, fp_workspace_bytes(model, tokens));
	return batch + registers * f.width * f.width * fp_dtype_size(FP_F32) + fp_larger(head, layer);
}

int64_t fp_fisher_kept_bytes(const fp_model *model, const fp_settings *settings, const fp_windows *windows)
{
	fp_fisher_store f =
		plan_store(model, settings, windows, (fp_fisher_room){0}, 0, fp_model_get_config(model)->layers);
	return fp_fisher_store_matrix_bytes(&f) + (f.keeps_slots ? fp_fisher_store_slot_bytes(&f) : 0);
}

fp_fisher_room fp_fisher_choose_room(const fp_model *model, const fp_settings *settings, const fp_windows *windows,
									 int64_t free_bytes, int64_t spare_bytes)
{
	fp_fisher_room room = {.on_device = true, .bytes = fp_larger(free_bytes, 1)}, none = {0};
	fp_fisher_store f = plan_store(model, settings, windows, room, 0, 0);
	none.keeps = room.keeps = fp_fisher_kept_bytes(model, settings, windows) <= spare_bytes;
	if (f.keeps_slots)
		return room.keeps ? room : none;
	return fp_fisher_store_slot_bytes(&f) <= free_bytes ? room : none;
}

/* Through each layer twice forward (three times with a stride) and once backward by the inputs, then Σ ggᵀ; through the
 * head once each. */
double fp_fisher_flops(const fp_model *model, const fp_settings *settings, const fp_windows *windows, int64_t weights)
{
	const fp_model_config *c = fp_model_get_config(model);
	fp_fisher_store f = plan_store(model, settings, windows, (fp_fisher_room){0}, 0, 0);
	double layer = (f.stride > 1 ? 8 : 6) * (double)weights + 2 * (double)(c->hidden * c->hidden);
	double head = 4 * (double)(c->vocabulary * c->embedding);
	return (double)(f.windows * f.length) * ((double)c->layers * layer + head);
}

static void free_space(fp_fisher *s)
{
	fp_part_sum_close(&s->sum);
	fp_matrix_free(s->be, &s->hidden);
	for (int i = 0; i <= FP_PARTS; i++)
		fp_matrix_free(s->be, &s->registers[i]);
	fp_free(s->targets);
	s->targets = NULL;
	fp_fisher_store_drop_slots(&s->store);
}

void fp_fisher_free(fp_fisher *fisher)
{
	if (!fisher)
		return;
	free_space(fisher);
	fp_fisher_store_close(&fisher->store);
	fp_free(fisher);
}

/* The first window of a part, counted from this rank's first. */
static int64_t part_window(const fp_fisher *s, int part)
{
	return fp_smaller(fp_share_window(&s->share, part), s->windows) - fp_share_first(&s->share);
}

static int part_of(const fp_fisher *s, int64_t window)
{
	return fp_share_part(&s->share, fp_share_first(&s->share) + window);
}

/* The windows of the batch that begins at this rank's `window`: it ends with its part. */
static int64_t batch_count(const fp_fisher *s, int64_t window)
{
	return fp_smaller(s->store.batch, part_window(s, part_of(s, window) + 1) - window);
}

static const int32_t *tokens_at(const fp_fisher *s, const fp_windows *windows, int64_t window)
{
	return windows->ids + (fp_share_first(&s->share) + window) * windows->length;
}

/* Writes the layer's outputs for all windows into its slot. */
static fp_status forward_layer(const fp_fisher *s, const fp_windows *windows, int64_t index)
{
	int64_t length = s->store.length;
	fp_layer *layer = NULL;
	fp_workspace *workspace = NULL;
	fp_status status;
	FP_TRY(fp_layer_load(&layer, s->model, index));
	FP_TRY(fp_workspace_new(&workspace, s->model, s->store.batch * length));
	for (int64_t window = 0; window < s->store.windows; window += batch_count(s, window)) {
		int64_t count = batch_count(s, window);
		fp_layer_state state = {
			.sequences = count, .length = length, .hidden = fp_matrix_rows(s->hidden, 0, count * length)};
		FP_TRY(fp_check_interrupt(s->be->ctx));
		if (index == 0)
			FP_TRY(fp_model_embed(s->model, tokens_at(s, windows, window), count, length, state.hidden));
		else
			FP_TRY(fp_fisher_read_slot(&s->store, index - 1, window, state.hidden));
		FP_TRY(fp_layer_forward(layer, &state, workspace));
		FP_TRY(fp_fisher_write_slot(&s->store, index, window, state.hidden));
	}
cleanup:
	fp_workspace_free(workspace);
	fp_layer_free(layer);
	return status;
}

static fp_status make_register(void *data, int which, fp_addends *out)
{
	fp_fisher *s = data;
	fp_matrix *made = &s->registers[which];
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(*made)) { /* they stay from layer to layer */
		FP_TRY(fp_matrix_new(s->be, made, s->store.width, s->store.width, FP_F32));
		FP_TRY(s->be->memory->fill(s->be, *made, 0)); /* the lower triangle goes to the file too */
	}
	FP_TRY(fp_addends_matrix(out, s->be->ctx, *made));
cleanup:
	return status;
}

static void begin_sum(fp_fisher *s)
{
	fp_part_sum_open(&s->sum, &s->share, s->be, make_register, s);
	for (int part = 0; part < s->share.parts; part++)
		s->sum.used[part] = part_window(s, part) < part_window(s, part + 1);
}

/* Adds a batch to the sum of its part. */
static fp_status add_batch(fp_fisher *s, int64_t window, fp_matrix gradients)
{
	FP_PRODUCTS_FOR(s->be, FP_USE_REFINEMENT);
	int part = part_of(s, window);
	bool begins = window == part_window(s, part);
	fp_status status = FP_OK;
	if (begins)
		FP_TRY(fp_part_sum_begin(&s->sum, part, &s->current));
	FP_TRY(s->be->linear->gram(s->be, gradients, begins ? 0 : 1, s->registers[s->current]));
	if (window + batch_count(s, window) == part_window(s, part + 1))
		FP_TRY(fp_part_sum_end(&s->sum));
cleanup:
	return status;
}

/* Replaces some outputs of a layer by their gradients, and adds those to the sum. */
static fp_status take_gradients(fp_fisher *s, int64_t layer, int64_t window, fp_matrix gradients)
{
	fp_status status = FP_OK;
	if (layer < s->store.end)
		FP_TRY(add_batch(s, window, gradients));
	FP_TRY(fp_fisher_write_slot(&s->store, layer, window, gradients));
cleanup:
	return status;
}

/* The gradients of the last layer's outputs. */
static fp_status backward_head(fp_fisher *s, const fp_windows *windows)
{
	int64_t length = s->store.length, last = s->store.layers - 1;
	fp_matrix gradient = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(s->be, &gradient, s->hidden.rows, s->hidden.cols, FP_F32));
	for (int64_t window = 0; window < s->store.windows; window += batch_count(s, window)) {
		int64_t rows = batch_count(s, window) * length;
		const int32_t *ids = tokens_at(s, windows, window);
		fp_matrix hidden = fp_matrix_rows(s->hidden, 0, rows), part = fp_matrix_rows(gradient, 0, rows);
		for (int64_t i = 0; i < rows; i++)
			s->targets[i] = (i + 1) % length == 0 ? -1 : ids[i + 1];
		FP_TRY(fp_check_interrupt(s->be->ctx));
		FP_TRY(fp_fisher_read_slot(&s->store, last, window, hidden));
		FP_TRY(fp_model_loss_gradient(s->model, hidden, s->targets, part));
		FP_TRY(take_gradients(s, last, window, part));
	}
cleanup:
	fp_matrix_free(s->be, &gradient);
	fp_model_drop_head(s->model);
	return status;
}

/* The gradients of a layer's inputs, the outputs of the layer below. */
static fp_status backward_layer(fp_fisher *s, int64_t index)
{
	fp_layer *layer = NULL;
	fp_tape *tape = NULL;
	fp_status status;
	FP_TRY(fp_layer_load(&layer, s->model, index));
	FP_TRY(fp_tape_new(&tape, s->model, s->store.batch * s->store.length));
	for (int64_t window = 0; window < s->store.windows; window += batch_count(s, window)) {
		int64_t count = batch_count(s, window);
		fp_matrix input = fp_matrix_rows(s->hidden, 0, count * s->store.length), output, gradient;
		FP_TRY(fp_check_interrupt(s->be->ctx));
		FP_TRY(fp_fisher_read_slot(&s->store, index - 1, window, input));
		FP_TRY(fp_layer_forward_taped(layer, count, s->store.length, input, tape, &output));
		FP_TRY(fp_fisher_read_slot(&s->store, index, window, output));
		FP_TRY(fp_layer_backward_input(layer, tape, NULL, &gradient));
		FP_TRY(take_gradients(s, index - 1, window, gradient));
	}
cleanup:
	fp_tape_free(tape);
	fp_layer_free(layer);
	return status;
}

/* The sum over the windows of all ranks. */
static fp_status store_sum(fp_fisher *s, int64_t layer)
{
	fp_status status = FP_OK;
	if (layer < s->store.end) {
		FP_TRY(fp_part_sum_finish_rows(&s->sum));
		FP_TRY(fp_fisher_write_matrix(&s->store, layer, s->registers[0]));
	}
cleanup:
	fp_part_sum_close(&s->sum);
	return status;
}

static fp_status run_passes(fp_fisher *s, const fp_windows *windows)
{
	FP_PRODUCTS_FOR(s->be, FP_USE_ACTIVATION);
	const fp_fisher_store *f = &s->store;
	int64_t last = f->layers - 1;
	fp_status status;
	FP_TRY(FP_NEW(s->be->ctx, &s->targets, f->batch * f->length));
	FP_TRY(fp_matrix_new(s->be, &s->hidden, f->batch * f->length, f->width, FP_F32));
	for (int64_t layer = 0; layer <= last; layer++)
		FP_TRY(forward_layer(s, windows, layer));
	begin_sum(s);
	FP_TRY(backward_head(s, windows));
	FP_TRY(store_sum(s, last));
	for (int64_t layer = last; layer > f->first; layer--) {
		if (fp_fisher_store_shares_below(f, layer)) /* the same bits as the first time */
			for (int64_t below = layer - f->stride + 1; below < layer; below++)
				FP_TRY(forward_layer(s, windows, below));
		begin_sum(s);
		FP_TRY(backward_layer(s, layer));
		FP_TRY(store_sum(s, layer - 1));
	}
cleanup:
	free_space(s);
	return status;
}

/* The windows of this rank: those whose gradients it will read, or an equal share if only the matrices are read. */
static void take_share(fp_fisher *s, const fp_fisher_request *request)
{
	s->windows = s->store.windows;
	s->share = fp_share_or_whole(&request->share, s->windows);
	if (fp_share_is_divided(&s->share) && !s->store.keeps_slots)
		s->share = fp_share_divided(s->share.comm, s->windows);
	s->store.windows = fp_larger(fp_smaller(fp_share_count(&s->share), s->windows - fp_share_first(&s->share)), 0);
}

fp_status fp_fisher_new(fp_fisher **out, const fp_fisher_request *request)
{
	fp_backend *be = fp_model_backend(request->model);
	fp_fisher *s = NULL;
	double started = fp_clock();
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_FIT);
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &s, 1));
	*s = (fp_fisher){.model = request->model, .be = be};
	s->store =
		plan_store(request->model, request->settings, request->windows, request->room, request->first, request->end);
	take_share(s, request);
	fp_fisher_store_plan(&s->store);
	FP_TRY(fp_fisher_store_open(&s->store, request->folder));
	FP_TRY(run_passes(s, request->windows));
	fp_log(be->ctx, FP_LOG_INFO, "Fisher matrices: %lld layers, %lld windows, %.1f s",
		   (long long)(request->end - request->first), (long long)s->windows, fp_clock() - started);
	*out = s;
	s = NULL;
cleanup:
	fp_fisher_free(s);
	fp_stage_enter(be->ctx, stage);
	return status;
}

int64_t fp_fisher_tokens(const fp_fisher *fisher)
{
	return fisher->windows * fisher->store.length;
}

fp_status fp_fisher_read(const fp_fisher *fisher, int64_t layer, fp_matrix out)
{
	const fp_fisher_store *f = &fisher->store;
	FP_REQUIRE(f->be, layer >= f->first && layer < f->end && out.rows == f->width && out.cols == f->width);
	return fp_fisher_read_matrix(f, layer, out);
}

int64_t fp_fisher_gradient_windows(const fp_fisher *fisher)
{
	return fisher->store.keeps_slots ? fisher->windows : 0;
}

fp_status fp_fisher_read_gradients(const fp_fisher *fisher, int64_t layer, int64_t first, int64_t windows,
								   fp_matrix out)
{
	const fp_fisher_store *f = &fisher->store;
	fp_status status = FP_OK;
	FP_REQUIRE(f->be, f->keeps_slots && layer >= f->first && layer < f->end);
	first -= fp_share_first(&fisher->share);
	FP_REQUIRE(f->be, first >= 0 && first + windows <= f->windows);
	FP_REQUIRE(f->be, out.rows == windows * f->length && out.cols == f->width);
	for (int64_t window = 0; window < windows; window += f->batch) {
		int64_t count = fp_smaller(f->batch, windows - window);
		fp_matrix rows = fp_matrix_rows(out, window * f->length, count * f->length);
		FP_TRY(fp_fisher_read_slot(f, layer, first + window, rows));
	}
cleanup:
	return status;
}
