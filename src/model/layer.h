/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer.h: the weights and the forward pass of one decoder layer. The pass runs in six steps, one
 * per group of operators, so that the caller can observe each group's input.
 *
 * Between two steps the state of a batch of tokens is
 *     hidden   [tokens × hidden]           the residual stream
 *     context  [tokens × heads·head_dim]   attention's output; valid behind FP_GROUP_KEY_VALUE up to FP_GROUP_OUTPUT
 *                                          only, see below
 * The groups are
 *     attention   q, k, v      input: norm(hidden)       advance: nothing
 *     query       q_b          input: u                  advance: nothing
 *     key_value   kv_b         input: norm(c)            advance: context ← attention(q, k, v)
 *     output      o            input: context            advance: hidden ← hidden + o(context)
 *     feed        gate, up     input: norm(hidden)       advance: nothing
 *     down        down         input: φ(gate) ∘ up       advance: hidden ← hidden + down(φ(gate) ∘ up)
 *
 * Groups that store nothing leave it to the next that does, which computes again: queries, keys, values and inner
 * activations are wide. Of a model without latents the second and third group have no operators and an absent input, but
 * the third advances like that of any model. If both blocks read the layer's input (`parallel`), the output group adds
 * nothing, `context` must be valid until the last group, and that adds both: until then `hidden` is the layer's input,
 * from which everything can be computed again.
 *
 * In a layer with experts, the last two groups are those of the expert that reads every token, whose rows are scaled by its
 * weight, if there is one; fp_layer_expert_rows() has the inputs of the others.
 */
#ifndef FP_MODEL_LAYER_H
#define FP_MODEL_LAYER_H

#include "model/model.h"
#include "model/routing.h"

typedef struct fp_layer {
	const fp_model *model; /* borrowed */
	int64_t index;
	/* By the operators' numbers: outputs × inputs, of fp_model_held_type(), absent where the layer lacks one; and 1 ×
	 * outputs or absent. */
	fp_matrix *weight, *bias;
	/* By the same numbers, after fp_layer_hold(), instead of the weights, of which only the shapes are left; else NULL. */
	fp_held *held;
	fp_matrix norm_weight[FP_NORM_COUNT], norm_bias[FP_NORM_COUNT];
	fp_matrix query_norm, key_norm;           /* 1 × head_dim, or 1 × the width of all heads, or absent */
	fp_matrix query_latent_norm, latent_norm; /* of u and c (fp_latent_config), or absent */
	/* F32: experts × hidden, 1 × experts, 1 × hidden; absent without experts, correction, gate of a shared expert */
	fp_matrix router, correction, shared_gate;
} fp_layer;

/* Reads one layer from the checkpoint to the device. Non-finite weights are an error that names the tensor. */
fp_status fp_layer_load(fp_layer **out, const fp_model *model, int64_t index);
/* Copies the weights on the device. */
fp_status fp_layer_copy(fp_layer **out, const fp_layer *layer);
void fp_layer_free(fp_layer *layer); /* NULL is allowed */
/* Replaces the weights of all operators by such that are held for decoding, in this form. Only the forward pass can be
 * computed then. */
fp_status fp_layer_hold(fp_layer *layer, fp_held_form form);
/* The most bytes that they can take. */
int64_t fp_layer_most_held_bytes(const fp_model *model, int64_t index);
/* Bytes of a layer's operators on the device, for planning; biases and norms are not counted. */
int64_t fp_layer_bytes(const fp_model *model, int64_t index);
/* The first layer of [first, end) with the most of them: layers without experts are smaller than those with. */
int64_t fp_heaviest_layer(const fp_model *model, int64_t first, int64_t end);

/*
 * Sequences that share rows. Everything except attention works row by row. A prefix that several
 * sequences have in common can therefore be stored in `hidden` once, and padding not at all: `hidden`
 * is packed. Spans map runs of packed rows to unpacked rows (sequence·length + position).
 */
typedef struct fp_row_span {
	int64_t packed, unpacked, rows;
	bool copy; /* another span owns the same packed rows; this one is not packed again */
} fp_row_span;
typedef struct fp_packing {
	const fp_row_span *spans;
	int64_t span_count;
	fp_matrix workspace; /* the caller's; (sequences · length) × fp_packing_width() */
} fp_packing;

/*
 * Sequences that go on, as when text is generated: the keys and values of their tokens so far are kept. A layer appends
 * those of the new tokens behind them; the caller then counts these.
 */
typedef struct fp_past_sequence {
	int64_t slot;  /* its rows in the cache are slot·capacity and on */
	int64_t count; /* tokens that are there already */
	int64_t whole; /* tokens when all that are being added are there: rotary angles may depend on it (longrope) */
} fp_past_sequence;
typedef struct fp_past {
	fp_matrix keys,
		values; /* the caller's, for this layer: slots·capacity × kv_heads·head_dim, of the workspace's type */
	int64_t capacity;
	const fp_past_sequence *sequences; /* one for each of the state's; slots differ */
} fp_past;

typedef struct fp_layer_state {
	int64_t sequences, length;
	fp_matrix hidden, context; /* the caller's; fp_layer_forward() accepts an absent context */
	const fp_packing *packing; /* NULL: every sequence has `length` rows of its own */
	const fp_past *past;       /* NULL: sequences begin with these tokens; not with a packing */
	const fp_routing *routing; /* how these tokens are routed; NULL: as the layer's router says */
} fp_layer_state;

/* Width of a packing's workspace: unpacked queries, keys, values and context. */
int64_t fp_packing_width(const fp_model *model);

/* Workspace for up to `tokens` tokens. Freed with fp_workspace_free(). */
typedef struct fp_workspace fp_workspace;
fp_status fp_workspace_new(fp_workspace **out, const fp_model *model, int64_t tokens);
/* The same with activations in `type`: F32, or BF16 if fp_backend_rounds() activations. The state's
 * context must have that type. */
fp_status fp_workspace_new_as(fp_workspace **out, const fp_model *model, int64_t tokens, fp_dtype type);
/* The same for sequences that have up to `positions` tokens in a cache. */
fp_status fp_workspace_new_past(fp_workspace **out, const fp_model *model, int64_t tokens, int64_t positions,
								fp_dtype type);
void fp_workspace_free(fp_workspace *workspace); /* NULL is allowed */
/* Bytes that the three allocate, for planning. */
int64_t fp_workspace_bytes(const fp_model *model, int64_t tokens);
int64_t fp_workspace_bytes_as(const fp_model *model, int64_t tokens, fp_dtype type);
int64_t fp_workspace_bytes_past(const fp_model *model, int64_t tokens, int64_t positions, fp_dtype type);

/* Includes this layer's sliding window. */
fp_attention_shape fp_layer_attention_shape(const fp_layer *layer, int64_t sequences, int64_t length);

/* *input ← the group's input (tokens × inputs), a view into the workspace or the state that is valid
 * until the next call; absent if no operator reads it. */
fp_status fp_layer_input(const fp_layer *layer, int group, const fp_layer_state *state, fp_workspace *workspace,
						 fp_matrix *input);
static inline bool fp_layer_has_experts(const fp_layer *layer)
{
	return !fp_matrix_is_absent(layer->router);
}
/* Whether one of them reads every token. */
static inline bool fp_layer_has_shared(const fp_layer *layer)
{
	return fp_layer_has_experts(layer) && fp_model_get_config(layer->model)->experts.shared > 0;
}
/* What the experts read, after fp_layer_input() for group 2 (gate and up) or 3 (down). */
typedef struct fp_expert_rows {
	fp_matrix rows;            /* one for each place, scaled by its weight; absent: the layer has no experts */
	const fp_routing *routing; /* which rows are whose */
} fp_expert_rows;
fp_expert_rows fp_layer_expert_rows(const fp_layer *layer, const fp_workspace *workspace);
/* *out ← E for each place, by the share of its expert in what is added to the token, in memory that the next group's
 * output overwrites. E: tokens × hidden. */
fp_status fp_layer_expert_errors(const fp_layer *layer, fp_workspace *workspace, fp_matrix E, fp_matrix *out);

/* Whether the group's operators change the state, or leave that to a later group. */
static inline bool fp_group_advances(int group)
{
	return group == FP_GROUP_KEY_VALUE || group == FP_GROUP_OUTPUT || group == FP_GROUP_DOWN;
}
/* Applies the group's operators to the input from fp_layer_input(), the last call with this workspace, and updates the
 * state. */
fp_status fp_layer_advance(const fp_layer *layer, int group, fp_matrix input, fp_layer_state *state,
						   fp_workspace *workspace);
/* All groups: hidden ← layer(hidden). */
fp_status fp_layer_forward(const fp_layer *layer, fp_layer_state *state, fp_workspace *workspace);

#endif
