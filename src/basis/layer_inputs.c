/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/layer_inputs.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "model/basis.h"
#include "sharing/part_sum.h"

#include <math.h>

/* Moments of d inputs need several times d tokens; small models get enough of them for a stable estimate anyway. */
enum { TOKENS_PER_INPUT = 8, LEAST_TOKENS = 32768, BATCH_TOKENS = 4096 };

static int64_t window_count(const fp_model *model, const fp_windows *windows)
{
	int64_t tokens = fp_larger(TOKENS_PER_INPUT * fp_model_get_config(model)->hidden, LEAST_TOKENS);
	return fp_smaller((tokens + windows->length - 1) / windows->length, windows->count);
}

static int64_t batch_windows(int64_t windows, int64_t length)
{
	return fp_larger(fp_smaller(BATCH_TOKENS / length, windows), 1);
}

fp_status fp_text_stream_open(fp_text_stream *out, fp_model *model, const fp_windows *windows, const fp_share *share)
{
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	int64_t all = window_count(model, windows), batch = batch_windows(all, windows->length);
	fp_share own = fp_share_is_divided(share) ? fp_share_divided(share->comm, all) : fp_share_whole(all);
	int64_t count = fp_share_count(&own), first = fp_share_first(&own);
	fp_status status;
	*out = (fp_text_stream){.model = model, .share = own, .windows = count, .length = windows->length, .batch = batch};
	FP_TRY(fp_matrix_new(be, &out->hidden, count * windows->length, c->hidden, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->context, batch * windows->length, c->heads * c->head_dim, FP_F32));
	FP_TRY(fp_workspace_new(&out->workspace, model, batch * windows->length));
	if (count > 0)
		FP_TRY(fp_model_embed(model, windows->ids + first * windows->length, count, windows->length, out->hidden));
cleanup:
	if (status != FP_OK)
		fp_text_stream_free(out);
	return status;
}

void fp_text_stream_free(fp_text_stream *stream)
{
	if (!stream->model)
		return;
	fp_backend *be = fp_model_backend(stream->model);
	fp_matrix_free(be, &stream->hidden);
	fp_matrix_free(be, &stream->context);
	fp_workspace_free(stream->workspace);
	*stream = (fp_text_stream){0};
}

int64_t fp_text_stream_tokens(const fp_model *model, const fp_windows *windows)
{
	return window_count(model, windows) * windows->length;
}

int64_t fp_text_stream_bytes(const fp_model *model, const fp_windows *windows)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t count = window_count(model, windows), batch = batch_windows(count, windows->length);
	int64_t floats = count * windows->length * c->hidden + batch * windows->length * c->heads * c->head_dim;
	return floats * (int64_t)sizeof(float) + fp_workspace_bytes(model, batch * windows->length) +
		   fp_model_embedding_bytes(model);
}

int64_t fp_most_channels(const fp_model *model)
{
	const fp_model_config *c = fp_model_get_config(model);
	return fp_larger(c->inner, c->experts.shared);
}

/* n of a group's H; 0: no operator of the group reads every token. */
static int64_t group_inputs(const fp_layer *layer, int group)
{
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (fp_role_group(role) == group && !fp_matrix_is_absent(layer->weight[role]))
			return layer->weight[role].cols;
	return 0;
}

void fp_layer_inputs_free(fp_backend *be, fp_layer_inputs *inputs)
{
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		fp_matrix_free(be, &inputs->H[group]);
	fp_matrix_free(be, &inputs->experts);
	fp_matrix_free(be, &inputs->inner);
}

int fp_layer_inputs_registers(const fp_share *share)
{
	return fp_share_is_divided(share) ? fp_part_sum_registers(share, FP_PARTS) : 1;
}

/* The layer's sums, and how many rows are in those of each expert: of some parts of the text each. */
typedef struct input_register {
	fp_layer_inputs *inputs;
	fp_layer_inputs own; /* unless they are the caller's */
	double *rows;        /* by expert; NULL: there are none */
} input_register;

typedef struct input_sums {
	fp_text_stream *stream;
	const fp_layer *layer;
	unsigned groups;
	input_register registers[FP_PARTS + 1]; /* number 0 has the caller's inputs */
	fp_layer_inputs *out;                   /* of the present part */
	double *rows;
} input_sums;

/* The part of `inner` that belongs to an expert, or (−1) to the block that reads every token. */
static fp_matrix channels_of(const input_sums *s, int64_t expert, int64_t width)
{
	return fp_matrix_cols(s->out->inner, fp_first_channel(s->stream->model, s->layer->index, expert), width);
}

/* Adds the rows of a batch that experts read. */
static fp_status add_experts(input_sums *s, int group, bool first)
{
	fp_backend *be = fp_model_backend(s->stream->model);
	fp_expert_rows read = fp_layer_expert_rows(s->layer, s->stream->workspace);
	fp_status status = FP_OK;
	if (!read.routing)
		return FP_OK;
	if (group == fp_role_group(FP_UP) && !fp_matrix_is_absent(s->out->experts))
		FP_TRY(be->linear->gram(be, read.rows, !first, s->out->experts));
	for (int64_t e = 0; group == fp_role_group(FP_DOWN) && e < read.routing->experts; e++) {
		fp_matrix rows = fp_routing_rows(read.routing, e, read.rows);
		FP_TRY(be->gradients->column_squares(be, rows, !first, channels_of(s, e, rows.cols)));
		s->rows[e] = (first ? 0 : s->rows[e]) + (double)rows.rows;
	}
cleanup:
	return status;
}

/* Adds a batch of windows to all sums, which it begins or continues, and moves it past the layer. */
static fp_status pass_batch(input_sums *s, int64_t first, int64_t count, bool begins)
{
	fp_text_stream *stream = s->stream;
	const fp_layer *layer = s->layer;
	fp_backend *be = fp_model_backend(stream->model);
	int64_t rows = count * stream->length;
	fp_layer_state state = {.sequences = count,
							.length = stream->length,
							.hidden = fp_matrix_rows(stream->hidden, first * stream->length, rows),
							.context = fp_matrix_rows(stream->context, 0, rows)};
	fp_status status;
	FP_TRY(fp_check_interrupt(be->ctx));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		fp_matrix X;
		FP_TRY(fp_layer_input(layer, group, &state, stream->workspace, &X));
		if (!fp_matrix_is_absent(s->out->H[group]))
			FP_TRY(be->linear->gram(be, X, !begins, s->out->H[group]));
		if (group == FP_GROUP_COUNT - 1 && !fp_matrix_is_absent(X))
			FP_TRY(be->gradients->column_squares(be, X, !begins, channels_of(s, -1, X.cols)));
		if (group >= fp_role_group(FP_UP))
			FP_TRY(add_experts(s, group, begins));
		FP_TRY(fp_layer_advance(layer, group, X, &state, stream->workspace));
	}
cleanup:
	return status;
}

/* H ← its mean over so many rows, both triangles */
static fp_status finish(fp_backend *be, fp_matrix H, float share)
{
	fp_status status;
	if (fp_matrix_is_absent(H))
		return FP_OK;
	FP_TRY(be->linear->mirror(be, H));
	FP_TRY(be->linear->axpby(be, 0, H, share, H));
cleanup:
	return status;
}

/* The sums become means. */
static fp_status finish_all(const input_sums *s)
{
	fp_layer_inputs *out = s->out;
	fp_backend *be = fp_model_backend(s->stream->model);
	const fp_experts_config *experts = &fp_model_get_config(s->stream->model)->experts;
	int64_t tokens = s->stream->share.windows * s->stream->length;
	float share = 1.0F / (float)tokens;
	fp_matrix down = s->layer->weight[FP_DOWN];
	fp_status status = FP_OK;
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		FP_TRY(finish(be, out->H[group], share));
	FP_TRY(finish(be, out->experts, share / (float)fp_larger(experts->active, 1)));
	if (!fp_matrix_is_absent(down)) {
		fp_matrix own = channels_of(s, -1, down.cols);
		FP_TRY(be->linear->axpby(be, 0, own, share, own));
	}
	for (int64_t e = 0; s->rows && e < experts->count; e++) {
		fp_matrix own = channels_of(s, e, experts->inner);
		FP_TRY(be->linear->axpby(be, 0, own, 1.0F / (float)fmax(s->rows[e], 1), own));
	}
cleanup:
	return status;
}

static fp_status make_register(void *data, int which, fp_addends *out)
{
	input_sums *s = data;
	const fp_layer *layer = s->layer;
	input_register *made = &s->registers[which];
	fp_backend *be = fp_model_backend(s->stream->model);
	fp_status status = FP_OK;
	if (!made->inputs)
		made->inputs = &made->own;
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		int64_t n = group_inputs(layer, group);
		if (s->groups & 1U << group && n > 0)
			FP_TRY(fp_matrix_new(be, &made->inputs->H[group], n, n, FP_F32));
		FP_TRY(fp_addends_matrix(out, be->ctx, made->inputs->H[group]));
	}
	if (fp_layer_has_experts(layer)) {
		int64_t n = layer->router.cols;
		FP_TRY(FP_NEW(be->ctx, &made->rows, layer->router.rows));
		if (s->groups & 1U << fp_role_group(FP_UP))
			FP_TRY(fp_matrix_new(be, &made->inputs->experts, n, n, FP_F32));
		FP_TRY(fp_addends_matrix(out, be->ctx, made->inputs->experts));
		for (int64_t e = 0; e < layer->router.rows; e++)
			FP_TRY(fp_addends_number(out, be->ctx, &made->rows[e]));
	}
	FP_TRY(fp_matrix_new(be, &made->inputs->inner, 1, fp_layer_channels(s->stream->model, layer->index), FP_F32));
	FP_TRY(fp_addends_matrix(out, be->ctx, made->inputs->inner));
cleanup:
	return status;
}

/* Adds the windows of a part, and moves them past the layer. */
static fp_status pass_part(input_sums *s, fp_part_sum *sum, int part)
{
	const fp_text_stream *stream = s->stream;
	int64_t own = fp_share_first(&stream->share), begin = fp_share_window(&stream->share, part) - own,
			end = fp_share_window(&stream->share, part + 1) - own;
	int which;
	fp_status status = FP_OK;
	if (begin == end)
		return FP_OK;
	FP_TRY(fp_part_sum_begin(sum, part, &which));
	s->out = s->registers[which].inputs;
	s->rows = s->registers[which].rows;
	for (int64_t first = begin; first < end; first += stream->batch)
		FP_TRY(pass_batch(s, first, fp_smaller(stream->batch, end - first), first == begin));
	FP_TRY(fp_part_sum_end(sum));
cleanup:
	return status;
}

fp_status fp_layer_inputs_measure(fp_layer_inputs *out, fp_text_stream *stream, const fp_layer *layer, unsigned groups)
{
	fp_backend *be = fp_model_backend(stream->model);
	input_sums s = {.stream = stream, .layer = layer, .groups = groups, .registers = {{.inputs = out}}};
	fp_part_sum sum;
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	fp_status status = FP_OK;
	*out = (fp_layer_inputs){0};
	fp_part_sum_open(&sum, &stream->share, be, make_register, &s);
	for (int part = stream->share.begin; part < stream->share.end; part++)
		FP_TRY(pass_part(&s, &sum, part));
	FP_TRY(fp_part_sum_finish(&sum, true));
	s.out = out;
	s.rows = s.registers[0].rows;
	FP_TRY(finish_all(&s));
cleanup:
	fp_part_sum_close(&sum);
	for (int i = 0; i <= FP_PARTS; i++) {
		fp_layer_inputs_free(be, &s.registers[i].own);
		fp_free(s.registers[i].rows);
	}
	if (status != FP_OK)
		fp_layer_inputs_free(be, out);
	return status;
}
