/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_backward.h: the backward pass of one decoder layer, and a forward pass that stores what the
 * backward pass needs.
 */
#ifndef FP_MODEL_LAYER_BACKWARD_H
#define FP_MODEL_LAYER_BACKWARD_H

#include "model/layer.h"

/* One matrix for each operator's weight and bias, by its number, shaped as the layer's. Freed with
 * fp_layer_matrices_free(). */
typedef struct fp_layer_matrices {
	int count;
	fp_matrix *weight, *bias;
} fp_layer_matrices;
fp_status fp_layer_matrices_new(fp_layer_matrices *out, const fp_layer *layer);
/* The same with all matrices absent. */
fp_status fp_layer_matrices_empty(fp_layer_matrices *out, const fp_model *model);
void fp_layer_matrices_free(fp_backend *be, fp_layer_matrices *matrices); /* all zero is allowed, and left behind */

/* Storage of both passes for up to `tokens` tokens. Freed with fp_tape_free(), before the model. */
typedef struct fp_tape fp_tape;
fp_status fp_tape_new(fp_tape **out, const fp_model *model, int64_t tokens);
void fp_tape_free(fp_tape *tape); /* NULL is allowed */
/* Bytes that fp_tape_new() allocates, for planning. */
int64_t fp_tape_bytes(const fp_model *model, int64_t tokens);

/*
 * *output ← layer(input), a view into the tape; the same numbers as fp_layer_forward(). `input`
 * (sequences·length × hidden) must not change before the backward pass.
 *
 * Both passes multiply for FP_USE_ACTIVATION, whatever be->use says. A device that rounds such
 * products to BF16 accepts BF16 weights, and the tape stores BF16 copies of operands used twice.
 */
fp_status fp_layer_forward_taped(const fp_layer *layer, int64_t sequences, int64_t length, fp_matrix input,
								 fp_tape *tape, fp_matrix *output);
/* The caller first overwrites *output of the last forward pass with its gradient. `add` adds the
 * gradients to the present values. A tape serves one backward pass per forward pass. */
fp_status fp_layer_backward(const fp_layer *layer, fp_tape *tape, bool add, fp_layer_matrices *gradients);
/* Computes only the squared gradients of the operators' outputs: energies[number] (1 × outputs) ← their
 * sum over the tokens, added to the present values with `add`. For experts these are outputs scaled by the tokens'
 * weights, as their statistics are. */
fp_status fp_layer_backward_energies(const fp_layer *layer, fp_tape *tape, bool add, fp_matrix *energies);
/* Computes only the gradient of the layer's input: *dinput ← a view into the tape; and, unless NULL, the energies, which
 * are added to the present values. */
fp_status fp_layer_backward_input(const fp_layer *layer, fp_tape *tape, fp_matrix *energies, fp_matrix *dinput);
/* As fp_layer_backward() without `add`, and the gradient of the layer's input as fp_layer_backward_input(). */
fp_status fp_layer_backward_through(const fp_layer *layer, fp_tape *tape, fp_layer_matrices *gradients,
									fp_matrix *dinput);

#endif
