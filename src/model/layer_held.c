/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_held.c: a layer and a head whose weights are held for decoding (backend/decode_ops.h).
 *
 * Products with up to FP_DECODE_BATCH rows read the held weights as they are. Those with more rows are few, those of a
 * prompt: some are taken FP_DECODE_BATCH rows at a time, and for many the weights are expanded for gemm().
 */
#include "base/memory.h"
#include "base/numbers.h"
#include "model/layer.h"
#include "model/model_parts.h"

enum { FEW_ROWS = 8 * FP_DECODE_BATCH };

/* The type in which weights are held: the checkpoint's, unless a basis has changed their numbers. */
static fp_dtype type_of(const fp_model *model, const fp_tensor_info *tensor)
{
	return model->basis || !fp_dtype_is_weight(tensor->dtype) ? FP_F32 : tensor->dtype;
}

int64_t fp_layer_most_held_bytes(const fp_model *model, int64_t index)
{
	int64_t bytes = 0;
	for (int i = 0; i < fp_model_operators(model); i++) {
		const fp_tensor_info *tensor = fp_model_operator(model, index, i);
		bytes += tensor ? tensor->elements * fp_dtype_size(type_of(model, tensor)) : 0;
	}
	return bytes;
}

fp_status fp_layer_hold(fp_layer *layer, fp_held_form form)
{
	fp_status status;
	const fp_model *model = layer->model;
	fp_backend *be = fp_model_backend(model);
	FP_REQUIRE(be, !layer->held);
	FP_TRY(FP_NEW(be->ctx, &layer->held, fp_model_operators(model)));
	for (int i = 0; i < fp_model_operators(model); i++) {
		fp_matrix *weight = &layer->weight[i];
		if (fp_matrix_is_absent(*weight))
			continue;
		int64_t rows = weight->rows, cols = weight->cols;
		FP_TRY(be->decode->hold(be, &layer->held[i], *weight, type_of(model, fp_model_operator(model, layer->index, i)),
								form));
		fp_matrix_free(be, weight);
		weight->rows = rows; /* the shape is asked for still */
		weight->cols = cols;
	}
cleanup:
	return status;
}

void fp_layer_free_held(fp_layer *layer)
{
	for (int i = 0; layer->held && i < fp_model_operators(layer->model); i++)
		fp_held_free(fp_model_backend(layer->model), &layer->held[i]);
	fp_free(layer->held);
}

/* Y ← X Wᵀ with the weights expanded. */
static fp_status multiply_expanded(fp_backend *be, const fp_held *W, fp_matrix X, bool add, fp_matrix Y)
{
	fp_status status;
	fp_matrix dense = {0};
	FP_TRY(fp_matrix_new(be, &dense, W->rows, W->cols, fp_backend_rounds(be, be->use) ? W->dtype : FP_F32));
	FP_TRY(be->decode->expand(be, W, dense));
	FP_TRY(be->linear->gemm(be, 1, X, FP_PLAIN, dense, FP_TRANSPOSED, add ? 1.0F : 0.0F, Y));
cleanup:
	fp_matrix_free(be, &dense);
	return status;
}

fp_status fp_multiply_held(fp_backend *be, int count, const fp_held *const *W, fp_matrix X, bool add,
						   const fp_matrix *Y)
{
	fp_status status = FP_OK;
	FP_REQUIRE(be, count >= 1 && count <= FP_DECODE_PARTS);
	for (int i = 0; X.rows > FEW_ROWS && i < count; i++)
		FP_TRY(multiply_expanded(be, W[i], X, add, Y[i]));
	for (int64_t first = 0; X.rows <= FEW_ROWS && first < X.rows; first += FP_DECODE_BATCH) {
		fp_matrix part[FP_DECODE_PARTS];
		int64_t rows = fp_smaller(FP_DECODE_BATCH, X.rows - first);
		for (int i = 0; i < count; i++)
			part[i] = fp_matrix_rows(Y[i], first, rows);
		FP_TRY(be->decode->multiply(be, fp_matrix_rows(X, first, rows), count, W, add, part));
	}
cleanup:
	return status;
}

fp_status fp_layer_multiply(const fp_layer *layer, int number, fp_matrix X, bool add, fp_matrix Y)
{
	fp_backend *be = fp_model_backend(layer->model);
	if (!layer->held)
		return be->linear->gemm(be, 1, X, FP_PLAIN, layer->weight[number], FP_TRANSPOSED, add ? 1.0F : 0.0F, Y);
	const fp_held *W[1] = {&layer->held[number]};
	return fp_multiply_held(be, 1, W, X, add, &Y);
}

fp_status fp_layer_apply_all(const fp_layer *layer, int count, const fp_role *roles, fp_matrix X, const fp_matrix *Y)
{
	fp_backend *be = fp_model_backend(layer->model);
	fp_status status = FP_OK;
	const fp_held *W[FP_DECODE_PARTS] = {NULL};
	FP_REQUIRE(be, count >= 1 && count <= FP_DECODE_PARTS);
	for (int i = 0; !layer->held && i < count; i++)
		FP_TRY(fp_layer_apply(layer, roles[i], X, false, Y[i]));
	if (!layer->held)
		goto cleanup;
	for (int i = 0; i < count; i++)
		W[i] = &layer->held[roles[i]];
	FP_TRY(fp_multiply_held(be, count, W, X, false, Y));
	for (int i = 0; i < count; i++)
		if (!fp_matrix_is_absent(layer->bias[roles[i]]))
			FP_TRY(be->transformer->add_bias(be, layer->bias[roles[i]], Y[i]));
cleanup:
	return status;
}

fp_status fp_model_hold_head(fp_model *model)
{
	fp_status status;
	FP_TRY(fp_model_load_head(model));
	if (fp_matrix_is_absent(model->held_head.values)) {
		FP_TRY(model->be->decode->hold(model->be, &model->held_head, model->head_weight, type_of(model, model->head),
									   FP_HELD_SMALLEST));
		fp_matrix_free(model->be, &model->head_weight);
	}
cleanup:
	return status;
}

const fp_held *fp_model_held_head(const fp_model *model)
{
	return &model->held_head;
}
