/* SPDX-License-Identifier: Apache-2.0 */
/* layer_weights.c: loads, copies and frees the weights of one decoder layer. */
#include "base/memory.h"
#include "model/layer.h"
#include "model/model_parts.h"

void fp_layer_list_parts(fp_layer *layer, fp_layer_part parts[FP_LAYER_PARTS])
{
	const fp_layer_tensors *tensors = &layer->model->layers[layer->index];
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		*parts++ = (fp_layer_part){tensors->weight[role], &layer->weight[role], true, false};
		*parts++ = (fp_layer_part){tensors->bias[role], &layer->bias[role], false, false};
	}
	for (int i = 0; i < FP_NORM_COUNT; i++) {
		*parts++ = (fp_layer_part){tensors->norm_weight[i], &layer->norm_weight[i], false, true};
		*parts++ = (fp_layer_part){tensors->norm_bias[i], &layer->norm_bias[i], false, false};
	}
	*parts++ = (fp_layer_part){tensors->query_norm, &layer->query_norm, false, true};
	*parts++ = (fp_layer_part){tensors->key_norm, &layer->key_norm, false, true};
}

/* The overlay's layers are in the model's basis already. */
static bool is_overlaid(const fp_model *model, int64_t index)
{
	const fp_tensor_info *tensor = model->layers[index].weight[FP_OUTPUT];
	return model->overlay && fp_overlay_data(model->overlay, tensor->whole ? tensor->whole : tensor);
}

fp_status fp_layer_load(fp_layer **out, const fp_model *model, int64_t index)
{
	fp_status status;
	fp_layer *layer = NULL;
	fp_layer_part parts[FP_LAYER_PARTS];
	*out = NULL;
	FP_REQUIRE(model->be, index >= 0 && index < model->config.layers);
	FP_TRY(FP_NEW(model->be->ctx, &layer, 1));
	layer->model = model;
	layer->index = index;
	fp_layer_list_parts(layer, parts);
	for (int i = 0; i < FP_LAYER_PARTS; i++)
		if (parts[i].tensor)
			FP_TRY(fp_model_start_upload(model, parts[i].tensor,
										 parts[i].is_operator ? fp_model_held_type(model, parts[i].tensor) : FP_F32,
										 parts[i].matrix));
	/* A check waits for the device, so all uploads are started first. */
	for (int i = 0; i < FP_LAYER_PARTS; i++)
		if (parts[i].tensor)
			FP_TRY(fp_model_check_finite(model, parts[i].tensor, *parts[i].matrix));
	for (int i = 0; i < FP_LAYER_PARTS; i++)
		if (parts[i].tensor && parts[i].is_norm)
			FP_TRY(fp_model_finish_norm(model, *parts[i].matrix));
	if (model->basis && !is_overlaid(model, index))
		FP_TRY(fp_layer_change_basis(layer, model->basis));
	*out = layer;
	layer = NULL;
cleanup:
	fp_layer_free(layer);
	return status;
}

fp_status fp_layer_copy(fp_layer **out, const fp_layer *layer)
{
	fp_status status;
	fp_backend *be = fp_model_backend(layer->model);
	fp_layer source = *layer, *copy = NULL;
	fp_layer_part from[FP_LAYER_PARTS], to[FP_LAYER_PARTS];
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &copy, 1));
	copy->model = layer->model;
	copy->index = layer->index;
	fp_layer_list_parts(&source, from);
	fp_layer_list_parts(copy, to);
	for (int i = 0; i < FP_LAYER_PARTS; i++) {
		fp_matrix matrix = *from[i].matrix;
		if (fp_matrix_is_absent(matrix))
			continue;
		FP_TRY(fp_matrix_new(be, to[i].matrix, matrix.rows, matrix.cols, matrix.dtype));
		FP_TRY(be->memory->copy(be, *to[i].matrix, matrix));
	}
	*out = copy;
	copy = NULL;
cleanup:
	fp_layer_free(copy);
	return status;
}

void fp_layer_free(fp_layer *layer)
{
	if (!layer)
		return;
	fp_layer_part parts[FP_LAYER_PARTS];
	fp_layer_list_parts(layer, parts);
	for (int i = 0; i < FP_LAYER_PARTS; i++)
		fp_matrix_free(fp_model_backend(layer->model), parts[i].matrix);
	fp_free(layer);
}

int64_t fp_layer_bytes(const fp_model *model, int64_t index)
{
	int64_t bytes = 0;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		const fp_tensor_info *tensor = fp_model_operator(model, index, (fp_role)role);
		bytes += tensor ? tensor->elements * fp_dtype_size(fp_model_held_type(model, tensor)) : 0;
	}
	return bytes;
}
