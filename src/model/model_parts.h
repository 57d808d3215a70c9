/* SPDX-License-Identifier: Apache-2.0 */
/* model_parts.h: the parts of an open model. For the files of this folder only. */
#ifndef FP_MODEL_MODEL_PARTS_H
#define FP_MODEL_MODEL_PARTS_H

#include "checkpoint/tensor_part.h"
#include "model/architecture.h"
#include "model/basis.h"
#include "model/layer.h"

/* A layer's tensors, borrowed from the checkpoint. NULL: the model has no such tensor. */
typedef struct fp_layer_tensors {
	const fp_tensor_info **weight, **bias; /* by the operators' numbers */
	const fp_tensor_info *norm_weight[FP_NORM_COUNT], *norm_bias[FP_NORM_COUNT];
	const fp_tensor_info *query_norm, *key_norm, *query_latent_norm, *latent_norm, *router, *correction, *shared_gate;
	/* Where the above are parts; own their names. Those of experts by their numbers without the roles; NULL: each has a
	 * tensor of its own. */
	fp_tensor_info weight_part[FP_ROLE_COUNT], bias_part[FP_ROLE_COUNT], *expert_part;
} fp_layer_tensors;

struct fp_model {
	fp_backend *be;                  /* borrowed */
	const fp_checkpoint *checkpoint; /* borrowed */
	const fp_overlay *overlay;       /* borrowed; may be NULL */
	const fp_basis *basis;           /* borrowed; NULL: the checkpoint's */
	const fp_architecture *architecture;
	fp_model_config config;
	const char *prefix; /* borrowed from the architecture */
	fp_layer_tensors *layers;
	const fp_tensor_info *embedding, *positions, *project_in, *project_out, *final_weight, *final_bias, *head,
		*head_bias;
	const fp_tensor_info *embedding_norm_weight, *embedding_norm_bias;

	void *decoded_table; /* the embedding on the host, if the checkpoint stores it coded; NULL until its first use */

	/* On the device; each is loaded on first use and kept. */
	fp_matrix position_rows; /* positions × hidden */
	fp_matrix input_projection;
	fp_matrix embedding_norm[2]; /* weight, bias */
	bool head_loaded;
	fp_matrix norm_weight, norm_bias, output_projection, head_weight, head_bias_row;
	fp_held held_head; /* instead of head_weight after fp_model_hold_head() */
	/* The head's workspace for one block of rows. */
	fp_matrix normalised, projected, logits, losses;
	fp_matrix
		dense_logits; /* those of the model that fp_model_divergence() compares with; and a copy for the gradient of a cap */
};

/* Finds every tensor that the config requires and checks its type and shape. */
fp_status fp_model_find_tensors(fp_model *model);
void fp_model_forget_tensors(fp_model *model); /* frees model->layers */
/* *out ← a tensor of a layer by its name without the layer's and without `kind`, which is "weight" or "bias"; rows = 0: a
 * vector of `cols` entries. Fails if it is missing or of another shape. */
fp_status fp_model_require(const fp_model *model, int64_t layer, const char *name, const char *kind, int64_t rows,
						   int64_t cols, const fp_tensor_info **out);
/* The same by the whole name in the layer for a stack of `count` matrices, or with count = 0 for one. `turned`: a stack of
 * cols × rows is as good, unless both are the same; *turned ← whether it is one. NULL: it is not. */
fp_status fp_model_require_stack(const fp_model *model, int64_t layer, const char *name, int64_t count, int64_t rows,
								 int64_t cols, bool *turned, const fp_tensor_info **out);
/* *out ← `part`, which gets its place in `stored` and that one's name with ":" and `what` behind it. */
fp_status fp_model_take_part(const fp_model *model, const fp_tensor_info *stored, const char *what,
							 const fp_part_place *place, fp_tensor_info *part, const fp_tensor_info **out);
/* Those of a mixture of experts: the router, the operators of each expert, and those of the expert that reads every token. */
fp_status fp_model_find_experts(fp_model *model, int64_t index);

/* Allocates *out and uploads a tensor (rank 1: 1 × n), asynchronously if the backend can. Releases the
 * file's pages. */
fp_status fp_model_start_upload(const fp_model *model, const fp_tensor_info *tensor, fp_dtype type, fp_matrix *out);
/* Waits for the device. NaN or infinity is an error that names the tensor. */
fp_status fp_model_check_finite(const fp_model *model, const fp_tensor_info *tensor, fp_matrix matrix);
/* Both, as F32. */
fp_status fp_model_upload(const fp_model *model, const fp_tensor_info *tensor, fp_matrix *out);
/* Adds one to the weights of a norm if the model does so. */
fp_status fp_model_finish_norm(const fp_model *model, fp_matrix weight);

/* X ← XR, in blocks of rows; nothing if the basis leaves the residual stream alone. */
fp_status fp_turn_rows(const fp_basis *basis, fp_matrix X);
/* Loads the final norm and the head unless they are there. */
fp_status fp_model_load_head(fp_model *model);
/* The final norm and the head, just loaded ← those in the model's basis. */
fp_status fp_head_change_basis(fp_model *model);

/* A matrix of a layer and the checkpoint tensor that it is loaded from. */
typedef struct fp_layer_part {
	const fp_tensor_info *tensor; /* NULL: the model has no such tensor */
	fp_matrix *matrix;
	bool is_operator, is_norm; /* is_norm: the weight of a norm */
} fp_layer_part;
/* The parts are numbered from 0. */
int fp_layer_part_count(const fp_model *model);
fp_layer_part fp_layer_part_at(fp_layer *layer, int number);

/* Y ← X Wᵀ + b, plus Y with `add`; b may be absent. */
fp_status fp_linear(fp_backend *be, fp_matrix X, fp_matrix weight, fp_matrix bias, bool add, fp_matrix Y);
/* Y ← the operator of X, plus Y with `add`. Every operator of the forward pass goes through this function. */
fp_status fp_layer_apply(const fp_layer *layer, fp_role role, fp_matrix X, bool add, fp_matrix Y);
/* Y[i] ← the operator roles[i] of X, for operators that read the same input. */
fp_status fp_layer_apply_all(const fp_layer *layer, int count, const fp_role *roles, fp_matrix X, const fp_matrix *Y);
/* Y ← X Wᵀ, plus Y with `add`, for an operator by its number, without its bias. */
fp_status fp_layer_multiply(const fp_layer *layer, int number, fp_matrix X, bool add, fp_matrix Y);
/* The same for several held matrices and any number of rows. */
fp_status fp_multiply_held(fp_backend *be, int count, const fp_held *const *W, fp_matrix X, bool add,
						   const fp_matrix *Y);
void fp_layer_free_held(fp_layer *layer);
/* Y ← a norm of X; `which` is one of FP_NORM_… */
fp_status fp_layer_normalise(const fp_layer *layer, int which, fp_matrix X, fp_matrix Y);
/* Y ← the norm of queries or keys, X, with the weights `norm`. In place is allowed. */
fp_status fp_layer_normalise_heads(const fp_layer *layer, fp_matrix norm, int64_t heads, fp_matrix X, fp_matrix Y);
/* hidden ← hidden + s·norm(raw), for models with such a norm or factor s; `work`, of raw's shape, may be raw. */
fp_status fp_layer_add_branch(const fp_layer *layer, int which, fp_matrix raw, fp_matrix work, fp_matrix hidden);

#endif
