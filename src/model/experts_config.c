/* SPDX-License-Identifier: Apache-2.0 */
/* experts_config.c: what the config.json of a mixture of experts has in common between families. */
#include "model/architecture.h"

#include <string.h>

fp_status fp_config_experts(const fp_config_reader *reader, const char *count_key, int64_t count,
							const char *active_key, int64_t active, fp_model_config *config)
{
	fp_status status;
	fp_experts_config *experts = &config->experts;
	FP_TRY(count > 0 ? fp_config_integer_or(reader, count_key, 1, FP_MAX_EXPERTS, count, &experts->count)
					 : fp_config_integer(reader, count_key, 1, FP_MAX_EXPERTS, &experts->count));
	FP_TRY(active > 0 ? fp_config_integer_or(reader, active_key, 1, FP_MAX_EXPERTS, active, &experts->active)
					  : fp_config_integer(reader, active_key, 1, FP_MAX_EXPERTS, &experts->active));
	if (experts->active > experts->count)
		FP_TRY(fp_config_fail(reader, active_key, "must be at most the number of experts, %lld, but is %lld",
							  (long long)experts->count, (long long)experts->active));
cleanup:
	return status;
}

static int64_t or_else(int64_t given, int64_t fallback)
{
	return given > 0 ? given : fallback;
}

/* Reads n_group and topk_group. All experts in one group are as good as none. */
static fp_status read_groups(const fp_config_reader *reader, const fp_deepseek_defaults *defaults,
							 fp_experts_config *experts)
{
	fp_status status;
	int64_t size, groups = or_else(defaults->groups, 1), active = or_else(defaults->active_groups, 1);
	FP_TRY(fp_config_integer_or(reader, "n_group", 1, FP_MAX_EXPERT_GROUPS, groups, &experts->groups));
	FP_TRY(fp_config_integer_or(reader, "topk_group", 1, FP_MAX_EXPERT_GROUPS, active, &experts->active_groups));
	size = experts->count / experts->groups;
	if (experts->groups == 1)
		experts->groups = 0;
	else if (experts->count % experts->groups != 0 || size < 2)
		FP_TRY(fp_config_fail(reader, "n_group",
							  "must divide the number of experts into groups of at least 2, but is %lld for %lld "
							  "experts; 1 is always possible",
							  (long long)experts->groups, (long long)experts->count));
	else if (experts->active_groups > experts->groups || experts->active_groups * size < experts->active)
		FP_TRY(fp_config_fail(reader, "topk_group",
							  "must be at most n_group, %lld, and enough groups of %lld experts for the %lld of a "
							  "token, but is %lld",
							  (long long)experts->groups, (long long)size, (long long)experts->active,
							  (long long)experts->active_groups));
cleanup:
	return status;
}

void fp_config_set_dense(fp_model_config *config, int64_t layer)
{
	config->experts.dense[layer / 8] |= (uint8_t)(1U << (layer % 8));
}

void fp_config_drop_inner(fp_model_config *config)
{
	for (int64_t i = 0; i < config->layers; i++)
		if (!fp_config_has_experts(config, i))
			return;
	config->inner = 0;
}

/* Reads mlp_layer_types: which layers are dense, and which are sparse and have experts. */
static fp_status read_layer_types(const fp_config_reader *reader, fp_model_config *config)
{
	const json_t *types = json_object_get(reader->object, "mlp_layer_types");
	if (!json_is_array(types) || (int64_t)json_array_size(types) != config->layers)
		return fp_config_fail(reader, "mlp_layer_types", "must be a list of %lld words, one for each layer",
							  (long long)config->layers);
	for (int64_t i = 0; i < config->layers; i++) {
		const char *type = json_string_value(json_array_get(types, (size_t)i));
		bool dense = type && strcmp(type, "dense") == 0;
		if (!dense && (!type || strcmp(type, "sparse") != 0))
			return fp_config_fail(reader, "mlp_layer_types", "must be dense or sparse for layer %lld", (long long)i);
		if (dense)
			fp_config_set_dense(config, i);
	}
	return FP_OK;
}

/* Reads which layers have no experts: first_k_dense_replace, the number of the first ones, unless they are listed. */
static fp_status read_dense_layers(const fp_config_reader *reader, int64_t fallback, fp_model_config *config)
{
	fp_status status;
	int64_t first = 0;
	FP_TRY(fp_config_has(reader, "mlp_layer_types")
			   ? read_layer_types(reader, config)
			   : fp_config_integer_or(reader, "first_k_dense_replace", 0, FP_MAX_LAYERS, fallback, &first));
	for (int64_t i = 0; i < first && i < config->layers; i++)
		fp_config_set_dense(config, i);
	fp_config_drop_inner(config);
cleanup:
	return status;
}

fp_status fp_config_deepseek_experts(const fp_config_reader *reader, const fp_deepseek_defaults *defaults,
									 fp_model_config *config)
{
	fp_status status;
	fp_experts_config *experts = &config->experts;
	int64_t shared;
	double scale;
	FP_TRY(fp_config_experts(reader, "n_routed_experts", defaults->count, "num_experts_per_tok", defaults->active,
							 config));
	FP_TRY(read_groups(reader, defaults, experts));
	FP_TRY(fp_config_integer_or(reader, "moe_intermediate_size", 1, FP_MAX_DIMENSION, or_else(defaults->inner, 1408),
								&experts->inner));
	FP_TRY(fp_config_integer_or(reader, "n_shared_experts", 1, FP_MAX_EXPERTS, or_else(defaults->shared, 1), &shared));
	FP_TRY(fp_config_flag_or(reader, "norm_topk_prob", defaults->normalised, &experts->normalised));
	FP_TRY(fp_config_positive_or(reader, "routed_scaling_factor", defaults->scale > 0 ? defaults->scale : 1, &scale));
	FP_TRY(read_dense_layers(reader, defaults->first, config));
	experts->shared = shared * experts->inner;
	experts->scale = (float)scale;
	experts->sigmoid = experts->corrected = true;
	experts->least = FP_LEAST_SCORES;
cleanup:
	return status;
}

fp_status fp_config_sparse_layers(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	int64_t step;
	const json_t *list = json_object_get(reader->object, "mlp_only_layers");
	FP_TRY(fp_config_integer_or(reader, "decoder_sparse_step", 1, FP_MAX_LAYERS, 1, &step));
	for (int64_t i = 0; i < config->layers; i++)
		if ((i + 1) % step != 0)
			fp_config_set_dense(config, i);
	if (list && !json_is_null(list) && !json_is_array(list))
		FP_TRY(fp_config_fail(reader, "mlp_only_layers", "must be a list of layers"));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *value = json_array_get(list, i);
		int64_t layer = json_is_integer(value) ? json_integer_value(value) : -1;
		if (layer < 0)
			return fp_config_fail(reader, "mlp_only_layers", "must be a list of layers, from 0");
		if (layer < config->layers) /* others match no layer */
			fp_config_set_dense(config, layer);
	}
	fp_config_drop_inner(config);
cleanup:
	return status;
}
