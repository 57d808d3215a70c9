/* SPDX-License-Identifier: Apache-2.0 */
/* layer_workspace.h: the memory of one forward pass. For the files of this folder only. */
#ifndef FP_MODEL_LAYER_WORKSPACE_H
#define FP_MODEL_LAYER_WORKSPACE_H

#include "model/experts.h"
#include "model/latent_attention.h"
#include "model/position_tables.h"

struct fp_workspace {
	fp_backend *be; /* borrowed */
	int64_t tokens;
	fp_dtype type;        /* of the matrices below, unless noted */
	fp_matrix normalised; /* T × h; absent if no norm stands before the blocks */
	fp_matrix scratch;    /* T × max(q + 2k, f or 2f): Q, K, V, then the inner activations */
	fp_matrix context;    /* T × q; for fp_layer_forward() */
	fp_matrix rounded;    /* T × h in BF16: an F32 input that several products would each round */
	fp_matrix branch;     /* T × h in F32: a block's output, if it is changed before it is added; else absent */
	fp_latent_space latents;
	fp_expert_space experts;
	fp_position_tables positions;
};

/* Normalises the heads of queries or keys and turns them by their positions, if the model does. */
fp_status fp_layer_prepare_heads(const fp_layer *layer, fp_matrix norm, int64_t heads, fp_token_range tokens,
								 fp_workspace *workspace, fp_matrix X);
/* state->context ← attention(Q, K, V), whose heads are normalised and turned here */
fp_status fp_layer_attention(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace, fp_matrix Q,
							 fp_matrix K, fp_matrix V);
/* Appends K and V to the state's past, and context ← attention(Q, keys, values). */
fp_status fp_layer_past_attention(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace,
								  fp_matrix Q, fp_matrix K, fp_matrix V, fp_matrix context);
/* Fails unless the state's past has room for its new tokens. */
fp_status fp_layer_check_past(const fp_layer *layer, const fp_layer_state *state, const fp_workspace *workspace);

#endif
