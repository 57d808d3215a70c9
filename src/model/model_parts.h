/* SPDX-License-Identifier: Apache-2.0 */
/* model_parts.h: what an open model is made of. For the files of this folder only. */
#ifndef FP_MODEL_MODEL_PARTS_H
#define FP_MODEL_MODEL_PARTS_H

#include "model/architecture.h"
#include "model/layer.h"

/* Where a layer's tensors are in the checkpoint; NULL: the model has no such tensor. Borrowed from the checkpoint. */
typedef struct fp_layer_tensors {
	const fp_tensor_info *weight[FP_ROLE_COUNT], *bias[FP_ROLE_COUNT];
	const fp_tensor_info *norm_weight[2], *norm_bias[2];
	const fp_tensor_info *query_norm, *key_norm;
} fp_layer_tensors;

struct fp_model {
	fp_backend *be;                  /* borrowed */
	const fp_checkpoint *checkpoint; /* borrowed */
	const fp_overlay *overlay;       /* borrowed; may be NULL */
	const fp_architecture *architecture;
	fp_model_config config;
	const char *prefix; /* borrowed from the architecture */
	fp_layer_tensors *layers;
	const fp_tensor_info *embedding, *positions, *project_in, *project_out, *final_weight, *final_bias, *head;

	/* On the device, each loaded when it is first needed and kept. */
	fp_matrix position_rows; /* positions × hidden */
	fp_matrix input_projection;
	bool head_loaded;
	fp_matrix norm_weight, norm_bias, output_projection, head_weight;
	/* The head's work space, one block of rows. */
	fp_matrix normalised, projected, logits, losses;
};

/* Finds every tensor that the config asks for and checks its type and shape. */
fp_status fp_model_find_tensors(fp_model *model);

/* A matrix or vector (rank 1: 1 × n) from the checkpoint to the device, beside the device's work where it can. The
 * pages of the file are given back. */
fp_status fp_model_bring(const fp_model *model, const fp_tensor_info *tensor, fp_dtype type, fp_matrix *out);
/* A number that is not finite is an error that names the tensor. Waits for the device. */
fp_status fp_model_check(const fp_model *model, const fp_tensor_info *tensor, fp_matrix matrix);
/* Both, as F32. */
fp_status fp_model_upload(const fp_model *model, const fp_tensor_info *tensor, fp_matrix *out);

/* Y ← X Wᵀ + b (+ Y when `add`); b may be absent. */
fp_status fp_linear(fp_backend *be, fp_matrix X, fp_matrix weight, fp_matrix bias, bool add, fp_matrix Y);

#endif
