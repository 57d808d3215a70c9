/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_inputs.h: the hidden states of some windows on their way through the dense model, and the Gram matrices of what
 * the operators of a layer read. Ranks that learn a basis together have some of the windows each, and all get the same
 * matrices.
 */
#ifndef FP_BASIS_LAYER_INPUTS_H
#define FP_BASIS_LAYER_INPUTS_H

#include "model/layer.h"
#include "sharing/share.h"
#include "text/windows.h"

typedef struct fp_text_stream { /* freed with fp_text_stream_free() */
	fp_model *model;            /* borrowed */
	fp_share share;
	int64_t windows, length, batch; /* windows: of this rank */
	fp_matrix hidden;               /* windows·length × hidden */
	fp_matrix context;              /* of a batch */
	fp_workspace *workspace;
} fp_text_stream;

/* Embeds the first windows of a text: enough of them for Gram matrices of `hidden` inputs; of these, the windows of this
 * rank. share: of ranks that work together, divided or all zero. */
fp_status fp_text_stream_open(fp_text_stream *out, fp_model *model, const fp_windows *windows, const fp_share *share);
void fp_text_stream_free(fp_text_stream *stream); /* all zero is allowed */
/* Its tokens, of all ranks. */
int64_t fp_text_stream_tokens(const fp_model *model, const fp_windows *windows);
int64_t fp_text_stream_bytes(const fp_model *model, const fp_windows *windows);

/* H = E[xxᵀ] of each group's inputs (fp_role_group()), of operators that read every token. The inputs of experts are
 * scaled as their statistics are; the mean is over the rows of all or of each. */
typedef struct fp_layer_inputs { /* freed with fp_layer_inputs_free() */
	fp_matrix H[FP_GROUP_COUNT]; /* absent: not asked for */
	fp_matrix experts;           /* H of the rows that gate and up of all experts read together; with FP_GROUP_FEED */
	fp_matrix inner;             /* 1 × fp_layer_channels(): E[x²] of the last group, always computed */
} fp_layer_inputs;

/* For `groups`: those of the operators at both ends of attention, and those of all that read or write the stream. */
enum {
	FP_ATTENTION_INPUTS = 1 << FP_GROUP_ATTENTION | 1 << FP_GROUP_OUTPUT,
	FP_STREAM_INPUTS = FP_ATTENTION_INPUTS | 1 << FP_GROUP_FEED | 1 << FP_GROUP_DOWN
};

/* Moves the stream past the layer and computes H of the groups whose bit is set in `groups`. */
fp_status fp_layer_inputs_measure(fp_layer_inputs *out, fp_text_stream *stream, const fp_layer *layer, unsigned groups);
void fp_layer_inputs_free(fp_backend *be, fp_layer_inputs *inputs);
/* For estimates: how many fp_layer_inputs are in memory while they are measured. */
int fp_layer_inputs_registers(const fp_share *share);
/* The most n of the last group's H, in any layer. */
int64_t fp_most_channels(const fp_model *model);

#endif
