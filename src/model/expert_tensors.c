/* SPDX-License-Identifier: Apache-2.0 */
/* expert_tensors.c: finds the tensors of a mixture of experts. */
#include "base/memory.h"
#include "model/model_parts.h"

#include <stdio.h>

enum { NAME_SIZE = 128 };

/* Where gate, up or down lies in its tensor: gate and up may be in one. */
static fp_part_place place_of(const fp_model *model, int64_t expert, int role, int64_t rows)
{
	bool second = model->config.experts.stacked && FP_GATE + role == FP_UP;
	return (fp_part_place){.matrix = expert, .rows = rows, .first = second ? rows : 0, .run = rows, .step = rows};
}

/* An operator of an expert (−1: of the one that reads every token), which has a tensor of its own or one with others. */
static fp_status find_operator(fp_model *model, int64_t index, const char *block, int64_t expert, int role)
{
	fp_status status;
	const fp_experts_config *experts = &model->config.experts;
	fp_layer_tensors *layer = &model->layers[index];
	bool down = FP_GATE + role == FP_DOWN, stacked = experts->stacked, alone = expert < 0;
	int64_t inner = alone ? experts->shared : experts->inner, rows = down ? model->config.hidden : inner;
	int number = alone ? FP_GATE + role : fp_expert_operator(expert, (fp_role)(FP_GATE + role));
	const fp_tensor_info *stored, **out = &layer->weight[number];
	char text[NAME_SIZE];
	snprintf(text, sizeof text, "%s.%s", block, model->architecture->expert_operators[role]);
	FP_TRY(fp_model_require_stack(model, index, text, stacked && !alone ? experts->count : 0,
								  stacked && !down ? 2 * rows : rows, down ? inner : model->config.hidden, &stored));
	*out = stored;
	if (!stacked || (alone && down))
		return FP_OK;
	fp_part_place place = place_of(model, alone ? 0 : expert, role, rows);
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
