/* SPDX-License-Identifier: Apache-2.0 */
/* smollm3.c: SmolLM3: LLaMA's layer; in every fourth one heads do not turn. */
#include "model/llama_like.h"

/* no_rope_layers, a list of 1 (turns) and 0 by layer, or every no_rope_layer_interval-th. */
static fp_status read_unrotated(const fp_config_reader *reader, fp_model_config *config)
{
	int64_t interval;
	const json_t *list = json_object_get(reader->object, "no_rope_layers");
	bool listed = fp_config_has(reader, "no_rope_layers");
	fp_status status = fp_config_integer_or(reader, "no_rope_layer_interval", 1, FP_MAX_LAYERS, 4, &interval);
	if (status != FP_OK)
		return status;
	if (listed && (!json_is_array(list) || (int64_t)json_array_size(list) != config->layers))
		return fp_config_fail(reader, "no_rope_layers", "must be a list of %lld numbers, one for each layer",
							  (long long)config->layers);
	for (int64_t i = 0; i < config->layers; i++)
		if (listed ? json_integer_value(json_array_get(list, (size_t)i)) == 0 : (i + 1) % interval == 0)
			fp_config_set_unrotated(config, i);
	return FP_OK;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool slides;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 32768, .kv_heads = 4, .theta = 2000000, .tied = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &config->mlp_bias));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_flag_or(reader, "use_sliding_window", false, &slides));
	if (slides)
		FP_TRY(fp_config_fail(reader, "use_sliding_window", "must be false, as in the published models, but is true"));
	if (fp_config_has(reader, "layer_types")) { /* which decides alone, as in transformers */
		FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 0, &config->window));
		FP_TRY(fp_config_layer_types(reader, config));
	}
	FP_TRY(read_unrotated(reader, config));
	config->output_bias = config->qkv_bias;
cleanup:
	return status;
}

const fp_architecture fp_architecture_smollm3 = {
	.name = "SmolLM3ForCausalLM",
	.model_type = "smollm3",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
