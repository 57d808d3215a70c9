/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/decoder.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "model/layer.h"

#include <string.h>

enum { BLOCK_TOKENS = 512 }; /* of a prompt, through a layer at a time */

struct fp_decoder {
	fp_model *model; /* borrowed */
	fp_backend *be;  /* borrowed */
	fp_layer **layers;
	fp_matrix *keys, *values; /* by layer: slots·capacity × kv_heads·head_dim */
	int64_t slots, capacity;
	int32_t *ids;    /* slots × capacity: the tokens of each slot */
	int64_t *counts; /* by slot */
	fp_workspace *workspace;
	fp_matrix hidden; /* block × hidden */
	int64_t block;    /* tokens through a layer at a time */
	/* Of the sequences in one step; at most `block`. */
	fp_past_sequence *sequences;
	int64_t *first; /* their counts */
};

/* Keys and values have the type of activations: BF16 where those are rounded to it. */
static fp_dtype cache_type(const fp_backend *be)
{
	return fp_backend_rounds(be, FP_USE_ACTIVATION) ? FP_BF16 : FP_F32;
}

static int64_t block_tokens(int64_t slots, int64_t capacity)
{
	return fp_larger(slots, fp_smaller(BLOCK_TOKENS, capacity));
}

/* Fails if the device has no room for the model (the message says so) or for the cache. */
static fp_status check_memory(const fp_model *model, int64_t slots, int64_t capacity, int64_t memory)
{
	int64_t largest = 0; /* the layer that is being loaded is there twice */
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	const char *name = fp_checkpoint_directory(fp_model_checkpoint(model));
	const double gib = 1.0 / (1 << 30);
	fp_dtype type = cache_type(be);
	int64_t available, total, cache, rows, weights = fp_model_head_bytes(model) + fp_model_embedding_bytes(model);
	fp_status status = be->memory->available(be, &available, &total);
	if (status != FP_OK)
		return status;
	if (memory > 0)
		available = memory;
	for (int64_t layer = 0; layer < c->layers; layer++) {
		weights += fp_layer_most_held_bytes(model, layer);
		largest = fp_larger(largest, fp_layer_bytes(model, layer));
	}
	weights += largest;
	weights += fp_workspace_bytes_past(model, block_tokens(slots, capacity), capacity, type);
	if (weights > available)
		return fp_fail(be->ctx, FP_ERROR_MEMORY,
					   "%s: the whole model must be in memory to generate text: it needs %.2f GiB, but %s has %.2f GiB "
					   "%s",
					   name, (double)weights * gib, be->name, (double)available * gib,
					   memory > 0 ? "by --memory" : "free");
	if (!fp_multiply_checked(slots, capacity, &rows) ||
		!fp_multiply_checked(rows, 2 * c->layers * c->kv_heads * c->head_dim * fp_dtype_size(type), &cache))
		cache = INT64_MAX;
	if (cache > available - weights)
		return fp_fail(
			be->ctx, FP_ERROR_MEMORY,
			"%s: the keys and values of %lld sequence%s of up to %lld tokens need %.2f GiB, but after the "
			"model's %.2f GiB there are %.2f GiB left; use fewer --max-tokens, a shorter prompt or a smaller "
			"--batch-size",
			name, (long long)slots, slots == 1 ? "" : "s", (long long)capacity, (double)cache * gib,
			(double)weights * gib, (double)(available - weights) * gib);
	return FP_OK;
}

static fp_status allocate(fp_decoder *d, fp_held_form form)
{
	fp_context *ctx = d->be->ctx;
	const fp_model_config *c = fp_model_get_config(d->model);
	fp_dtype type = cache_type(d->be);
	fp_status status;
	FP_TRY(FP_NEW(ctx, &d->layers, c->layers));
	FP_TRY(FP_NEW(ctx, &d->keys, c->layers));
	FP_TRY(FP_NEW(ctx, &d->values, c->layers));
	FP_TRY(FP_NEW(ctx, &d->ids, d->slots * d->capacity));
	FP_TRY(FP_NEW(ctx, &d->counts, d->slots));
	FP_TRY(FP_NEW(ctx, &d->sequences, d->block));
	FP_TRY(FP_NEW(ctx, &d->first, d->block));
	FP_TRY(fp_workspace_new_past(&d->workspace, d->model, d->block, d->capacity, type));
	FP_TRY(fp_matrix_new(d->be, &d->hidden, d->block, c->hidden, FP_F32));
	for (int64_t layer = 0; layer < c->layers; layer++) {
		int64_t width = c->kv_heads * c->head_dim;
		FP_TRY(fp_matrix_new(d->be, &d->keys[layer], d->slots * d->capacity, width, type));
		FP_TRY(fp_matrix_new(d->be, &d->values[layer], d->slots * d->capacity, width, type));
	}
	for (int64_t layer = 0; layer < c->layers; layer++) {
		FP_TRY(fp_check_interrupt(ctx));
		FP_TRY(fp_layer_load(&d->layers[layer], d->model, layer));
		FP_TRY(fp_layer_hold(d->layers[layer], form));
		fp_report_progress(ctx, "loading", layer + 1, c->layers);
	}
	FP_TRY(fp_model_hold_head(d->model));
cleanup:
	return status;
}

fp_status fp_decoder_new(fp_decoder **out, fp_model *model, int64_t slots, int64_t capacity, int64_t memory,
						 fp_held_form form)
{
	fp_status status;
	fp_backend *be = fp_model_backend(model);
	fp_decoder *d = NULL;
	*out = NULL;
	FP_REQUIRE(be, slots > 0);
	FP_TRY(fp_model_check_length(model, capacity));
	FP_TRY(check_memory(model, slots, capacity, memory));
	FP_TRY(FP_NEW(be->ctx, &d, 1));
	d->model = model;
	d->be = be;
	d->slots = slots;
	d->capacity = capacity;
	d->block = block_tokens(slots, capacity);
	FP_TRY(allocate(d, form));
	*out = d;
	d = NULL;
cleanup:
	fp_decoder_free(d);
	return status;
}

void fp_decoder_free(fp_decoder *d)
{
	if (!d)
		return;
	for (int64_t layer = 0; layer < fp_model_get_config(d->model)->layers; layer++) {
		if (d->layers)
			fp_layer_free(d->layers[layer]);
		if (d->keys)
			fp_matrix_free(d->be, &d->keys[layer]);
		if (d->values)
			fp_matrix_free(d->be, &d->values[layer]);
	}
	fp_matrix_free(d->be, &d->hidden);
	fp_workspace_free(d->workspace);
	fp_free(d->layers);
	fp_free(d->keys);
	fp_free(d->values);
	fp_free(d->ids);
	fp_free(d->counts);
	fp_free(d->sequences);
	fp_free(d->first);
	fp_free(d);
}

fp_decoder_weights fp_decoder_held(const fp_decoder *d)
{
	const fp_held *head = fp_model_held_head(d->model);
	fp_decoder_weights w = {.head_bytes = head->bytes, .head_entries = head->rows * head->cols};
	for (int64_t layer = 0; layer < fp_model_get_config(d->model)->layers; layer++)
		for (int i = 0; i < fp_model_operators(d->model); i++) {
			const fp_held *held = &d->layers[layer]->held[i];
			if (fp_matrix_is_absent(held->values))
				continue;
			w.operators[held->form]++;
			w.bytes[held->form] += held->bytes;
			w.entries += held->rows * held->cols;
		}
	return w;
}

void fp_decoder_clear(fp_decoder *d, int64_t slot)
{
	d->counts[slot] = 0;
}

/* Runs `count` sequences of `length` new tokens each, which d->sequences describes, through all layers, and counts them. */
static fp_status run_layers(fp_decoder *d, const int32_t *ids, int64_t count, int64_t length)
{
	fp_status status;
	FP_PRODUCTS_FOR(d->be, FP_USE_ACTIVATION);
	fp_matrix hidden = fp_matrix_rows(d->hidden, 0, count * length);
	for (int64_t s = 0; s < count; s++)
		d->first[s] = d->sequences[s].count;
	FP_TRY(fp_model_embed_at(d->model, ids, count, length, d->first, hidden));
	for (int64_t layer = 0; layer < fp_model_get_config(d->model)->layers; layer++) {
		const fp_past past = {
			.keys = d->keys[layer], .values = d->values[layer], .capacity = d->capacity, .sequences = d->sequences};
		fp_layer_state state = {.sequences = count, .length = length, .hidden = hidden, .past = &past};
		FP_TRY(fp_layer_forward(d->layers[layer], &state, d->workspace));
	}
	for (int64_t s = 0; s < count; s++)
		d->counts[d->sequences[s].slot] += length;
cleanup:
	return status;
}

/* Whether rotary angles are others when a sequence grows from `before` to `whole` tokens (longrope). */
static bool angles_change(const fp_model_config *c, int64_t before, int64_t whole)
{
	for (int rope = 0; c->rotary && rope < 2; rope++) {
		int64_t original = c->rope[rope].original;
		if (original > 0 && before <= original && whole > original)
			return true;
	}
	return false;
}

/* Runs the tokens of a slot from counts[slot] up to `end` through the layers, in blocks. `whole` tokens will be there. */
static fp_status run_blocks(fp_decoder *d, int64_t slot, int64_t end, int64_t whole, int64_t *last)
{
	fp_status status = FP_OK;
	while (d->counts[slot] < end) {
		int64_t count = d->counts[slot];
		*last = fp_smaller(d->block, end - count);
		d->sequences[0] = (fp_past_sequence){.slot = slot, .count = count, .whole = whole};
		FP_TRY(fp_check_interrupt(d->be->ctx));
		FP_TRY(run_layers(d, d->ids + slot * d->capacity + count, 1, *last));
	}
cleanup:
	return status;
}

/* Makes room for `added` tokens: checks, and recomputes the keys of a slot whose angles change. */
static fp_status grow(fp_decoder *d, int64_t slot, int64_t added)
{
	int64_t before, whole, last;
	FP_REQUIRE(d->be, slot >= 0 && slot < d->slots && added > 0);
	before = d->counts[slot];
	whole = before + added;
	FP_REQUIRE(d->be, whole <= d->capacity);
	if (before == 0 || !angles_change(fp_model_get_config(d->model), before, whole))
		return FP_OK;
	fp_decoder_clear(d, slot);
	return run_blocks(d, slot, before, whole, &last);
}

static fp_status read_logits(fp_decoder *d, fp_matrix hidden, float *logits)
{
	fp_status status = FP_OK;
	int64_t vocabulary = fp_model_get_config(d->model)->vocabulary, most = fp_model_logit_rows(d->model);
	for (int64_t first = 0; first < hidden.rows; first += most) {
		fp_matrix part;
		int64_t rows = fp_smaller(most, hidden.rows - first);
		FP_TRY(fp_model_logits(d->model, fp_matrix_rows(hidden, first, rows), &part));
		FP_TRY(d->be->memory->download(d->be, logits + first * vocabulary, FP_F32, vocabulary, part));
	}
	FP_TRY(d->be->memory->synchronize(d->be));
cleanup:
	return status;
}

fp_status fp_decoder_append(fp_decoder *d, int64_t slot, const int32_t *ids, int64_t count, float *logits)
{
	fp_status status;
	int64_t last = 0;
	FP_TRY(grow(d, slot, count));
	int64_t end = d->counts[slot] + count;
	memcpy(d->ids + slot * d->capacity + d->counts[slot], ids, (size_t)count * sizeof *ids);
	FP_TRY(run_blocks(d, slot, end, end, &last));
	FP_TRY(read_logits(d, fp_matrix_rows(d->hidden, last - 1, 1), logits));
cleanup:
	return status;
}

fp_status fp_decoder_step(fp_decoder *d, const int64_t *slots, const int32_t *ids, int64_t count, float *logits)
{
	fp_status status = FP_OK;
	FP_REQUIRE(d->be, count > 0 && count <= d->slots);
	for (int64_t s = 0; s < count; s++) {
		FP_TRY(grow(d, slots[s], 1));
		d->ids[slots[s] * d->capacity + d->counts[slots[s]]] = ids[s];
	}
	for (int64_t s = 0; s < count; s++) {
		int64_t before = d->counts[slots[s]];
		d->sequences[s] = (fp_past_sequence){.slot = slots[s], .count = before, .whole = before + 1};
	}
	FP_TRY(run_layers(d, ids, count, 1));
	FP_TRY(read_logits(d, fp_matrix_rows(d->hidden, 0, count), logits));
cleanup:
	return status;
}
