/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_backward.h: a decoder layer's forward pass that keeps what its backward pass needs, and that backward pass:
 * the gradients of a loss by the operators' weights and biases from its gradient by the layer's output.
 */
#ifndef FP_MODEL_LAYER_BACKWARD_H
#define FP_MODEL_LAYER_BACKWARD_H

#include "model/layer.h"

/* One matrix for each operator's weight and bias, shaped as the layer's. Freed with fp_layer_matrices_free(). */
typedef struct fp_layer_matrices {
	fp_matrix weight[FP_ROLE_COUNT], bias[FP_ROLE_COUNT];
} fp_layer_matrices;
fp_status fp_layer_matrices_new(fp_layer_matrices *out, const fp_layer *layer);
void fp_layer_matrices_free(fp_backend *be, fp_layer_matrices *matrices); /* all zero is allowed; leaves that */

/* What the two passes keep and work in, for up to `tokens` tokens. Freed with fp_tape_free(). */
typedef struct fp_tape fp_tape;
fp_status fp_tape_new(fp_tape **out, const fp_model *model, int64_t tokens);
void fp_tape_free(fp_tape *tape); /* NULL is allowed */
/* Bytes that fp_tape_new() takes, for planning. */
int64_t fp_tape_bytes(const fp_model *model, int64_t tokens);

/* Products of both passes are for FP_USE_ACTIVATION, whatever be->use says: on a device that rounds them to bf16 the
 * tape keeps such copies of what is multiplied more than once, and a layer's weights may be BF16.
 *
 * *output ← a view into the tape of layer(input), the same numbers as fp_layer_forward(). input (sequences·length ×
 * hidden) must stay as it is until the backward pass. */
fp_status fp_layer_forward_taped(const fp_layer *layer, int64_t sequences, int64_t length, fp_matrix input,
								 fp_tape *tape, fp_matrix *output);
/* Gradients from that of the last forward pass's output, which is given in *output's own view. With `add` they are
 * added to what is there. What the tape kept is used up. */
fp_status fp_layer_backward(const fp_layer *layer, fp_tape *tape, bool add, fp_layer_matrices *gradients);
/* The same for the energies of the gradients by the operators' outputs alone: energies[role] (1 × outputs) ← the sum of
 * squares over the tokens, or more by it. */
fp_status fp_layer_backward_energies(const fp_layer *layer, fp_tape *tape, bool add, fp_matrix energies[FP_ROLE_COUNT]);
/* The same for the gradient by the layer's input alone: *dinput ← a view of it into the tape. */
fp_status fp_layer_backward_input(const fp_layer *layer, fp_tape *tape, fp_matrix *dinput);

#endif
