/* SPDX-License-Identifier: Apache-2.0 */
/* expert_tensors.c: finds the tensors of a mixture of experts. */
#include "model/model_parts.h"

#include <stdio.h>

enum { NAME_SIZE = 128 };

static fp_status find_operator(fp_model *model, int64_t index, const char *block, int role, int64_t inner, int number)
{
	int64_t hidden = model->config.hidden;
	bool down = FP_GATE + role == FP_DOWN;
	char name[NAME_SIZE];
	snprintf(name, sizeof name, "%s.%s", block, model->architecture->expert_operators[role]);
	return fp_model_require(model, index, name, "weight", down ? hidden : inner, down ? inner : hidden,
							&model->layers[index].weight[number]);
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
	for (int64_t e = 0; e < experts->count; e++) {
		snprintf(block, sizeof block, "%s.%lld", a->experts, (long long)e);
		for (int i = 0; i < FP_EXPERT_ROLES; i++)
			FP_TRY(
				find_operator(model, index, block, i, experts->inner, fp_expert_operator(e, (fp_role)(FP_GATE + i))));
	}
	if (experts->shared_gated)
		FP_TRY(fp_model_require(model, index, a->shared_gate, "weight", 1, c->hidden, &layer->shared_gate));
	for (int i = 0; i < FP_EXPERT_ROLES && experts->shared > 0; i++)
		FP_TRY(find_operator(model, index, a->shared, i, experts->shared, FP_GATE + i));
cleanup:
	return status;
}
