/* SPDX-License-Identifier: Apache-2.0 */
/* experts_config.c: what the config.json of a mixture of experts has in common between families. */
#include "model/architecture.h"

enum { MOST_EXPERTS = 4096 };

fp_status fp_config_experts(const fp_config_reader *reader, const char *count_key, int64_t count, int64_t active,
							fp_model_config *config)
{
	fp_status status;
	fp_experts_config *experts = &config->experts;
	FP_TRY(fp_config_integer_or(reader, count_key, 1, MOST_EXPERTS, count, &experts->count));
	FP_TRY(fp_config_integer_or(reader, "num_experts_per_tok", 1, MOST_EXPERTS, active, &experts->active));
cleanup:
	return status;
}

static void set_dense(fp_model_config *config, int64_t layer)
{
	config->experts.dense[layer / 8] |= (uint8_t)(1U << (layer % 8));
}

fp_status fp_config_sparse_layers(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	int64_t step;
	const json_t *list = json_object_get(reader->object, "mlp_only_layers");
	FP_TRY(fp_config_integer_or(reader, "decoder_sparse_step", 1, FP_MAX_LAYERS, 1, &step));
	for (int64_t i = 0; i < config->layers; i++)
		if ((i + 1) % step != 0)
			set_dense(config, i);
	if (list && !json_is_null(list) && !json_is_array(list))
		FP_TRY(fp_config_fail(reader, "mlp_only_layers", "must be a list of layers"));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *value = json_array_get(list, i);
		int64_t layer = json_is_integer(value) ? json_integer_value(value) : -1;
		if (layer < 0)
			return fp_config_fail(reader, "mlp_only_layers", "must be a list of layers, from 0");
		if (layer < config->layers) /* others match no layer */
			set_dense(config, layer);
	}
	for (int64_t i = 0; i < config->layers; i++)
		if (!fp_config_has_experts(config, i))
			goto cleanup;
	config->inner = 0; /* every layer has experts */
cleanup:
	return status;
}
