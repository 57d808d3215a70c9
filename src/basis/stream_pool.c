/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/stream_pool.h"

#include "base/memory.h"
#include "basis/input_cost.h"
#include "basis/layer_inputs.h"

fp_dtype fp_pool_factor_type(const fp_backend *be)
{
	return fp_backend_rounds(be, FP_USE_ACTIVATION) ? FP_BF16 : FP_F32;
}

void fp_pooled_layer_free(fp_backend *be, fp_pooled_layer *pooled)
{
	fp_layer_free(pooled->layer);
	for (int k = 0; k < FP_READ_COUNT; k++)
		fp_matrix_free(be, &pooled->U[k]);
	for (int k = 0; k < 2; k++)
		fp_matrix_free(be, &pooled->h[k]);
	fp_matrix_free(be, &pooled->expert_h);
	fp_free(pooled->weight);
	*pooled = (fp_pooled_layer){0};
}

/* Layer number i of the pool: evenly spaced. */
static int64_t pool_index(int64_t i, int64_t pooled, int64_t layers)
{
	return (2 * i + 1) * layers / (2 * pooled);
}

/* The factor of readers, from their H. */
static fp_status take_factor(fp_backend *be, fp_pooled_layer *pooled, int which, fp_matrix H)
{
	fp_status status;
	FP_TRY(fp_input_cost_factor(be, pooled->layer, H));
	FP_TRY(fp_matrix_new(be, &pooled->U[which], H.rows, H.cols, fp_pool_factor_type(be)));
	FP_TRY(be->memory->copy(be, pooled->U[which], H));
cleanup:
	return status;
}

/* Takes what the learner needs from the Gram matrices. */
static fp_status take_costs(fp_backend *be, fp_pooled_layer *pooled, fp_layer_inputs *inputs)
{
	fp_status status = FP_OK;
	if (!fp_matrix_is_absent(inputs->experts)) {
		FP_TRY(take_factor(be, pooled, FP_READ_EXPERTS, inputs->experts));
		FP_TRY(fp_matrix_new(be, &pooled->expert_h, 1, inputs->inner.cols, FP_F32));
		FP_TRY(be->memory->copy(be, pooled->expert_h, inputs->inner));
	}
	for (int k = 0; k < 2; k++) {
		fp_matrix K = inputs->H[k == 0 ? FP_GROUP_OUTPUT : FP_GROUP_DOWN];
		if (fp_matrix_is_absent(K)) /* only experts */
			continue;
		FP_TRY(take_factor(be, pooled, k, inputs->H[k == 0 ? FP_GROUP_ATTENTION : FP_GROUP_FEED]));
		FP_TRY(fp_input_cost_inverse(be, pooled->layer, K));
		FP_TRY(fp_matrix_new(be, &pooled->h[k], 1, K.rows, FP_F32));
		FP_TRY(be->linear->diagonal(be, K, pooled->h[k]));
		FP_TRY(fp_input_cost_reciprocal(be, pooled->h[k]));
	}
cleanup:
	return status;
}

fp_status fp_fill_pool(const fp_basis_task *task, fp_pooled_layer *pool, int64_t count, const double *sensitivities)
{
	fp_model *model = task->model;
	int64_t layers = fp_model_get_config(model)->layers, next = 0;
	int operators = fp_model_operators(model);
	fp_text_stream stream = {0};
	fp_layer_inputs inputs = {0};
	fp_layer *layer = NULL;
	fp_status status;
	FP_TRY(fp_text_stream_open(&stream, model, task->windows, &task->share));
	for (int64_t i = 0; i < layers && next < count; i++) {
		bool kept = pool_index(next, count, layers) == i;
		fp_report_progress(task->ctx, "basis: inputs", i, layers);
		FP_TRY(fp_layer_load(&layer, model, i));
		FP_TRY(fp_layer_inputs_measure(&inputs, &stream, layer, kept ? FP_STREAM_INPUTS : 0));
		if (kept) {
			fp_pooled_layer *pooled = &pool[next++];
			pooled->layer = layer;
			layer = NULL;
			FP_TRY(FP_NEW(task->ctx, &pooled->weight, operators));
			for (int k = 0; k < operators; k++)
				pooled->weight[k] = sensitivities[i * operators + k];
			FP_TRY(take_costs(task->be, pooled, &inputs));
		}
		fp_layer_inputs_free(task->be, &inputs);
		fp_layer_free(layer);
		layer = NULL;
	}
cleanup:
	fp_layer_inputs_free(task->be, &inputs);
	fp_layer_free(layer);
	fp_text_stream_free(&stream);
	return status;
}
