/* SPDX-License-Identifier: Apache-2.0 */
/* expert_tensors.c: finds the tensors of a mixture of experts. */
#include "base/memory.h"
#include "model/model_parts.h"

#include <stdio.h>

enum { NAME_SIZE = 128 };

/* *stored ← the tensor that has an operator of an expert (−1: of the one that reads every token) with so many rows and
 * columns. *turned ← whether it has inputs × outputs. */
static fp_status find_stored(const fp_model *model, int64_t index, const char *block, int64_t expert, int role,
							 int64_t rows, int64_t cols, bool *turned, const fp_tensor_info **stored)
{
	const fp_experts_config *experts = &model->config.experts;
	bool stack = experts->stacked && expert >= 0, bare = stack && model->architecture->bare_experts;
	char name[NAME_SIZE];
	rows *= experts->stacked && FP_GATE + role != FP_DOWN ? 2 : 1;
	snprintf(name, sizeof name, "%s.%s%s", block, model->architecture->expert_operators[role], bare ? "" : ".weight");
	*turned = false;
	return fp_model_require_stack(model, index, name, stack ? experts->count : 0, rows, cols, bare ? turned : NULL,
								  stored);
}

/* An operator of an expert (−1: of the one that reads every token), which has a tensor of its own or one with others. */
static fp_status find_operator(fp_model *model, int64_t index, const char *block, int64_t expert, int role)
{
	fp_status status;
	const fp_experts_config *experts = &model->config.experts;
	fp_layer_tensors *layer = &model->layers[index];
	bool down = FP_GATE + role == FP_DOWN, alone = expert < 0;
	int64_t inner = alone ? experts->shared : experts->inner, rows = down ? model->config.hidden : inner;
	int number = alone ? FP_GATE + role : fp_expert_operator(expert, (fp_role)(FP_GATE + role));
	const fp_tensor_info *stored, **out = &layer->weight[number];
	fp_part_place place = {
		.matrix = expert, .rows = rows, .first = FP_GATE + role == FP_UP ? rows : 0, .run = rows, .step = rows};
	char text[NAME_SIZE];
	FP_TRY(find_stored(model, index, block, expert, role, rows, down ? inner : model->config.hidden, &place.transposed,
					   &stored));
	*out = stored;
	if (!experts->stacked || (alone && down))
		return FP_OK;
	if (alone)
		return fp_model_take_part(model, stored, fp_role_name(number), &place, &layer->weight_part[number], out);
	snprintf(text, sizeof text, "%lld.%s", (long long)expert, fp_role_name(number));
	FP_TRY(fp_model_take_part(model, stored, text, &place, &layer->expert_part[number - FP_ROLE_COUNT], out));
cleanup:
	return status;
}

/* What is added to scores, as a vector or as a matrix of one row. */
static fp_status find_correction(fp_model *model, int64_t index)
{
	const fp_architecture *a = model->architecture;
	fp_status status = fp_model_require(model, index, a->correction, "e_score_correction_bias", a->correction_rows,
										model->config.experts.count, &model->layers[index].correction);
	return status;
}

fp_status fp_model_find_experts(fp_model *model, int64_t index)
{
	fp_status status;
	const fp_model_config *c = &model->config;
	const fp_architecture *a = model->architecture;
	const fp_experts_config *experts = &c->experts;
	fp_layer_tensors *layer = &model->layers[index];
	char block[NAME_SIZE / 2];
	FP_TRY(fp_model_require(model, index, a->router, "weight", experts->count, c->hidden, &layer->router));
	if (experts->corrected)
		FP_TRY(find_correction(model, index));
	if (experts->stacked)
		FP_TRY(FP_NEW(model->be->ctx, &layer->expert_part, FP_EXPERT_ROLES * experts->count));
	for (int64_t e = 0; e < experts->count; e++) {
		snprintf(block, sizeof block, "%s.%lld", a->experts, (long long)e);
		for (int i = 0; i < FP_EXPERT_ROLES; i++)
			FP_TRY(find_operator(model, index, experts->stacked ? a->experts : block, e, i));
	}
	if (experts->shared_gated)
		FP_TRY(fp_model_require(model, index, a->shared_gate, "weight", 1, c->hidden, &layer->shared_gate));
	for (int i = 0; i < FP_EXPERT_ROLES && experts->shared > 0; i++)
		FP_TRY(find_operator(model, index, a->shared, -1, i));
cleanup:
	return status;
}
