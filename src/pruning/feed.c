/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/feed.h"

fp_feed fp_feed_of(const fp_settings *settings)
{
	return fp_method_of(settings)->feed(settings);
}

bool fp_feed_needs_both(fp_feed feed)
{
	return feed != FP_FEED_NONE;
}

bool fp_feed_is_corrected(fp_feed feed)
{
	return feed == FP_FEED_INTRA || feed == FP_FEED_CROSS;
}

bool fp_feed_chains_layers(fp_feed feed)
{
	return feed == FP_FEED_SEQUENTIAL || feed == FP_FEED_CROSS;
}

bool fp_group_is_corrected(const fp_settings *settings, int group)
{
	/* with FP_FEED_INTRA both streams are equal until the layer's first group is pruned */
	fp_feed feed = fp_feed_of(settings);
	return feed == FP_FEED_CROSS || (feed == FP_FEED_INTRA && group > 0);
}

bool fp_group_repairs(const fp_model *model, const fp_settings *settings, int group)
{
	const fp_model_config *config = fp_model_get_config(model);
	if (config->branch_norm)
		return false;
	if (group == fp_role_group(FP_DOWN))
		return settings->residual > 0 && fp_group_is_corrected(settings, group);
	return group == fp_role_group(FP_OUTPUT) && !config->parallel && settings->residual_output > 0 &&
		   fp_feed_of(settings) == FP_FEED_CROSS;
}

fp_statistics_plan fp_group_statistics_plan(const fp_model *model, const fp_settings *settings, int64_t layer,
											int group, int64_t expert, int64_t batch)
{
	fp_statistics_plan plan = {.batch = batch,
							   .two_streams = fp_group_is_corrected(settings, group),
							   .centred = settings->bias_update, /* if every operator has a bias */
							   .residual_outputs =
								   fp_group_repairs(model, settings, group) ? fp_model_get_config(model)->hidden : 0};
	int count = 0, first = expert < 0 ? 0 : fp_expert_operator(expert, FP_GATE);
	for (int i = first; i < first + (expert < 0 ? FP_ROLE_COUNT : FP_EXPERT_ROLES); i++) {
		const fp_tensor_info *tensor = fp_model_operator(model, layer, i);
		if (!tensor || fp_role_group(i) != group)
			continue;
		plan.centred = plan.centred && fp_model_operator_bias(model, layer, i);
		plan.inputs = tensor->shape[1];
		plan.only = (fp_matrix){.rows = tensor->shape[0], .cols = tensor->shape[1]};
		count++;
	}
	if (count != 1)
		plan.only = (fp_matrix){0};
	return plan;
}
