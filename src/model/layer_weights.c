/* SPDX-License-Identifier: Apache-2.0 */
/* layer_weights.c: loads, copies and frees the weights of one decoder layer. */
#include "base/memory.h"
#include "model/layer.h"
#include "model/model_parts.h"

enum { OTHER_PARTS = 2 * FP_NORM_COUNT + 7 };

int fp_layer_part_count(const fp_model *model)
{
	return 2 * fp_model_operators(model) + OTHER_PARTS;
}

/* What is neither the weight nor the bias of an operator. */
static fp_layer_part other_part(fp_layer *layer, const fp_layer_tensors *tensors, int number)
{
	if (number < FP_NORM_COUNT)
		return (fp_layer_part){tensors->norm_weight[number], &layer->norm_weight[number], false, true};
	number -= FP_NORM_COUNT;
	if (number < FP_NORM_COUNT)
		return (fp_layer_part){tensors->norm_bias[number], &layer->norm_bias[number], false, false};
	const fp_layer_part parts[] = {{tensors->query_norm, &layer->query_norm, false, true},
								   {tensors->key_norm, &layer->key_norm, false, true},
								   {tensors->query_latent_norm, &layer->query_latent_norm, false, true},
								   {tensors->latent_norm, &layer->latent_norm, false, true},
								   {tensors->router, &layer->router, false, false},
								   {tensors->correction, &layer->correction, false, false},
								   {tensors->shared_gate, &layer->shared_gate, false, false}};
	return parts[number - FP_NORM_COUNT];
}

fp_layer_part fp_layer_part_at(fp_layer *layer, int number)
{
	const fp_layer_tensors *tensors = &layer->model->layers[layer->index];
	int operators = fp_model_operators(layer->model);
	if (number < operators)
		return (fp_layer_part){tensors->weight[number], &layer->weight[number], true, false};
	number -= operators;
	if (number < operators)
		return (fp_layer_part){tensors->bias[number], &layer->bias[number], false, false};
	return other_part(layer, tensors, number - operators);
}

/* The overlay's layers are in the model's basis already. */
static bool is_overlaid(const fp_model *model, int64_t index)
{
	const fp_tensor_info *tensor = model->layers[index].weight[FP_OUTPUT];
	return model->overlay && fp_overlay_data(model->overlay, tensor->whole ? tensor->whole : tensor);
}

/* A layer without matrices. */
static fp_status layer_new(fp_layer **out, const fp_model *model, int64_t index)
{
	fp_status status;
	fp_layer *layer = NULL;
	FP_TRY(FP_NEW(model->be->ctx, &layer, 1));
	layer->model = model;
	layer->index = index;
	FP_TRY(FP_NEW(model->be->ctx, &layer->weight, fp_model_operators(model)));
	FP_TRY(FP_NEW(model->be->ctx, &layer->bias, fp_model_operators(model)));
	*out = layer;
	layer = NULL;
cleanup:
	if (layer)
		fp_free(layer->weight);
	fp_free(layer);
	return status;
}

fp_status fp_layer_load(fp_layer **out, const fp_model *model, int64_t index)
{
	fp_status status;
	fp_layer *layer = NULL;
	int count = fp_layer_part_count(model);
	*out = NULL;
	FP_REQUIRE(model->be, index >= 0 && index < model->config.layers);
	FP_TRY(layer_new(&layer, model, index));
	for (int i = 0; i < count; i++) {
		fp_layer_part part = fp_layer_part_at(layer, i);
		if (part.tensor)
			FP_TRY(fp_model_start_upload(
				model, part.tensor, part.is_operator ? fp_model_held_type(model, part.tensor) : FP_F32, part.matrix));
	}
	/* A check waits for the device, so all uploads are started first. */
	for (int i = 0; i < count; i++) {
		fp_layer_part part = fp_layer_part_at(layer, i);
		if (part.tensor)
			FP_TRY(fp_model_check_finite(model, part.tensor, *part.matrix));
	}
	for (int i = 0; i < count; i++) {
		fp_layer_part part = fp_layer_part_at(layer, i);
		if (part.tensor && part.is_norm)
			FP_TRY(fp_model_finish_norm(model, *part.matrix));
	}
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
	*out = NULL;
	FP_TRY(layer_new(&copy, layer->model, layer->index));
	for (int i = 0; i < fp_layer_part_count(layer->model); i++) {
		fp_matrix matrix = *fp_layer_part_at(&source, i).matrix, *to = fp_layer_part_at(copy, i).matrix;
		if (fp_matrix_is_absent(matrix))
			continue;
		FP_TRY(fp_matrix_new(be, to, matrix.rows, matrix.cols, matrix.dtype));
		FP_TRY(be->memory->copy(be, *to, matrix));
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
	for (int i = 0; i < fp_layer_part_count(layer->model); i++)
		fp_matrix_free(fp_model_backend(layer->model), fp_layer_part_at(layer, i).matrix);
	fp_layer_free_held(layer);
	fp_free(layer->weight);
	fp_free(layer->bias);
	fp_free(layer);
}

int64_t fp_layer_bytes(const fp_model *model, int64_t index)
{
	int64_t bytes = 0;
	for (int i = 0; i < fp_model_operators(model); i++) {
		const fp_tensor_info *tensor = fp_model_operator(model, index, i);
		bytes += tensor ? tensor->elements * fp_dtype_size(fp_model_held_type(model, tensor)) : 0;
	}
	return bytes;
}

int64_t fp_heaviest_layer(const fp_model *model, int64_t first, int64_t end)
{
	int64_t heaviest = first, bytes = fp_layer_bytes(model, first);
	for (int64_t i = first + 1; i < end && model->config.experts.count > 0; i++)
		if (fp_layer_bytes(model, i) > bytes) {
			heaviest = i;
			bytes = fp_layer_bytes(model, i);
		}
	return heaviest;
}
