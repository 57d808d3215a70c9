/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer.h: one decoder layer's weights and its forward pass, in steps that stop at the input of each operator group.
 *
 * For a batch of tokens the state between two steps is
 *     hidden   [tokens × hidden]              the residual stream
 *     context  [tokens × heads·head_dim]      attention's output, the input of `o`; valid between groups 0 and 1 only
 * and the groups are
 *     0  q, k, v     input: norm(hidden)      advance: context ← attention(q, k, v)
 *     1  o           input: context           advance: hidden ← hidden + o(context)
 *     2  gate, up    input: norm(hidden)      advance: nothing
 *     3  down        input: φ(gate)∘up        advance: hidden ← hidden + down(φ(gate)∘up)
 *
 * Group 2 keeps nothing, because the inner activations are wide: group 3 computes them again. Post-norm models
 * normalise after each sum instead.
 */
#ifndef FP_MODEL_LAYER_H
#define FP_MODEL_LAYER_H

#include "model/model.h"

typedef struct fp_layer {
	const fp_model *model; /* borrowed */
	int64_t index;
	fp_matrix weight[FP_ROLE_COUNT]; /* outputs × inputs, of fp_model_held_type(); absent: the model has no such role */
	fp_matrix bias[FP_ROLE_COUNT];   /* 1 × outputs or absent */
	fp_matrix norm_weight[2], norm_bias[2]; /* before (or after) attention; before (or after) the feed-forward part */
	fp_matrix query_norm, key_norm;         /* 1 × head_dim or absent */
} fp_layer;

/*
 * Sequences that share rows. Everything but attention works row by row, so a beginning that several sequences have in
 * common can lie in `hidden` once, and padding need not lie there at all: then hidden has fewer rows than sequences ×
 * length, and the spans say where each run of them stands among the unpacked rows (row = sequence·length + position).
 */
typedef struct fp_row_span {
	int64_t packed, unpacked, rows;
	bool copy; /* another span holds the same packed rows: nothing is taken back from this one */
} fp_row_span;
typedef struct fp_packing {
	const fp_row_span *spans;
	int64_t span_count;
	fp_matrix room; /* (sequences · length) × fp_packing_width(), the caller's */
} fp_packing;

typedef struct fp_layer_state {
	int64_t sequences, length;
	fp_matrix hidden, context; /* the caller's; fp_layer_forward() does without a context (all zero) */
	const fp_packing *packing; /* NULL: every sequence has `length` rows of its own */
} fp_layer_state;

/* The width of a packing's room: queries, keys, values and attention's output, unpacked. */
int64_t fp_packing_width(const fp_model *model);

/* Work space for the steps, sized for up to `tokens` tokens. Freed with fp_workspace_free(). */
typedef struct fp_workspace fp_workspace;
fp_status fp_workspace_new(fp_workspace **out, const fp_model *model, int64_t tokens);
/* The same with everything between two products in `type`: F32, or BF16 where fp_backend_rounds() activations. The
 * state's context has that type then. */
fp_status fp_workspace_new_as(fp_workspace **out, const fp_model *model, int64_t tokens, fp_dtype type);
void fp_workspace_free(fp_workspace *workspace); /* NULL is allowed */
/* Bytes that the two take, for planning. */
int64_t fp_workspace_bytes(const fp_model *model, int64_t tokens);
int64_t fp_workspace_bytes_as(const fp_model *model, int64_t tokens, fp_dtype type);

/* Reads one layer from the checkpoint to the device. Non-finite weights are an error that names the tensor. */
fp_status fp_layer_load(fp_layer **out, const fp_model *model, int64_t index);
/* A second one with the same weights, from the device's own memory. */
fp_status fp_layer_copy(fp_layer **out, const fp_layer *layer);
void fp_layer_free(fp_layer *layer); /* NULL is allowed */

/* Of this layer's attention, its sliding window included. */
fp_attention_shape fp_layer_attention_shape(const fp_layer *layer, int64_t sequences, int64_t length);

/* *input ← a view (into the work space or the state) of the group's input: tokens × inputs. Valid until the next call.
 */
fp_status fp_layer_input(const fp_layer *layer, int group, const fp_layer_state *state, fp_workspace *workspace,
						 fp_matrix *input);
/* Runs the group's operators on *input as fp_layer_input() gave it and moves the state on. */
fp_status fp_layer_advance(const fp_layer *layer, int group, fp_matrix input, fp_layer_state *state,
						   fp_workspace *workspace);
/* All four groups: hidden ← layer(hidden). */
fp_status fp_layer_forward(const fp_layer *layer, fp_layer_state *state, fp_workspace *workspace);

#endif
