/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis.h: a change of basis of a model, and how it is folded into the weights. The model computes the same function in
 * the new basis, but other weights are small in it.
 *
 * With rows for tokens and y = xWᵀ + b, the parts are
 *
 *     residual stream   h ← hR, R orthogonal. The weights γ and biases β of the norms go into the operators that read
 *                       them: W ← W diag(γ) R and b ← b + Wβ, then γ ← 1 and β ← 0; operators that write into the
 *                       stream become W ← RᵀW, b ← bR. Embeddings and positions: E ← ER. The head becomes
 *                       W ← W diag(γ) R, and the bias of the final norm (β/γ)R, because a head has no bias.
 *                       LayerNorm subtracts means: R must keep the vector of ones, R1 = 1.
 *     value heads       v ← vM for each key-value head, M orthogonal: W_v ← MᵀW_v, and W_o ← W_oM in the columns of
 *                       each query head that reads it.
 *     queries and keys  q ← qM, k ← kM for each key-value head and its query heads; not with rotary positions.
 *     inner channels    a permutation of the rows of gate and up and of the columns of down, of each expert its own.
 *
 * The router and the gate of a shared expert read the stream like any operator.
 */
#ifndef FP_MODEL_BASIS_H
#define FP_MODEL_BASIS_H

#include "model/layer.h"

enum { FP_HEAD_NAME_SIZE = 64 };

typedef struct fp_layer_basis {
	fp_matrix value; /* kv_heads·head_dim × head_dim: M of each key-value head; absent: values are left alone */
	fp_matrix query; /* the same for queries and keys */
	/* Inner channel i of a block was channel inner[i] of it: of the block that reads every token, if the layer has one,
	 * then of each expert. NULL: channels are left alone. */
	int32_t *inner;
} fp_layer_basis;

typedef struct fp_basis { /* freed with fp_basis_free() */
	fp_backend *be;       /* borrowed */
	fp_matrix R;          /* hidden × hidden; absent: the residual stream is left alone */
	bool turned;          /* else R is the identity, and products with it are left out */
	int64_t layer_count;
	fp_layer_basis *layers;
} fp_basis;

/* The inner channels of all blocks of a layer, and where those of an expert (−1: of the block that reads every token)
 * begin among them. */
int64_t fp_layer_channels(const fp_model *model, int64_t layer);
int64_t fp_first_channel(const fp_model *model, int64_t layer, int64_t expert);

/* What a model permits. */
typedef struct fp_basis_freedom {
	const char *stream; /* NULL: the residual stream may be turned; else the reason why not, for messages */
	bool value;
	bool query; /* queries and keys; not with rotary positions, where only turns of single pairs would be left */
} fp_basis_freedom;
/* Reads the weights of the final norm. */
fp_status fp_basis_freedom_of(fp_basis_freedom *out, fp_model *model);

/* *out ← `blocks` identities of order n, one above the other */
fp_status fp_identities(fp_backend *be, fp_matrix *out, int64_t blocks, int64_t n);
/* The identity: R if `stream`, and the M that `freedom` permits. */
fp_status fp_basis_new(fp_basis **out, fp_model *model, const fp_basis_freedom *freedom, bool stream);
void fp_basis_free(fp_basis *basis); /* NULL is allowed */

/* Everything loaded after this call is in the new basis; NULL: as in the checkpoint. Layers of which the overlay has an
 * operator are taken from it as they are. Borrowed. */
void fp_model_set_basis(fp_model *model, const fp_basis *basis);
const fp_basis *fp_model_basis(const fp_model *model);

/* Y ← MᵀX for each head: X has head_dim rows for each, and `shared` heads in a row have the same M. */
fp_status fp_turn_head_rows(fp_backend *be, fp_matrix M, int64_t shared, fp_matrix X, fp_matrix Y);
/* Y ← XM for each head: the same for columns. */
fp_status fp_turn_head_columns(fp_backend *be, fp_matrix M, int64_t shared, fp_matrix X, fp_matrix Y);

/* For fp_layer_load(): the layer's matrices ← those in the new basis. */
fp_status fp_layer_change_basis(fp_layer *layer, const fp_basis *basis);
/* Bytes that it allocates for a moment, for planning. */
int64_t fp_layer_change_basis_bytes(const fp_model *model, int64_t index);

/* Takes the bytes of a tensor in the new basis. */
typedef fp_status (*fp_tensor_sink)(void *data, const fp_tensor_info *tensor, const void *bytes);
/* The layer's matrices except its operators, in the checkpoint's types: norms and biases. */
fp_status fp_layer_give_vectors(const fp_layer *layer, fp_tensor_sink sink, void *data);
/* Rounds them to the checkpoint's types: what follows a pruned layer must see it as a resumed run reads it. */
fp_status fp_layer_round_vectors(fp_layer *layer);
fp_status fp_layer_give_operator(const fp_layer *layer, int number, fp_tensor_sink sink, void *data);
/* Everything outside the layers that the basis changes: embeddings, positions, final norm and head. A tied head becomes
 * `head`. */
fp_status fp_model_give_outer(fp_model *model, const fp_tensor_info *head, fp_tensor_sink sink, void *data);
/* The head that the model has or gets when its residual stream is turned; a tied one gets a name of its own and the
 * embedding's type and shape. `name` has the space for it. */
fp_tensor_info fp_model_untied_head(const fp_model *model, char name[FP_HEAD_NAME_SIZE]);

#endif
