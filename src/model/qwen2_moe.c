/* SPDX-License-Identifier: Apache-2.0 */
/* qwen2_moe.c: Qwen2's layer with a mixture of experts, one of which reads every token through a gate of its own. */
#include "model/llama_like.h"

/* Every second of the first max_window_layers has a window, unless layer_types lists them. */
static fp_status read_window(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool use;
	int64_t below;
	FP_TRY(fp_config_flag_or(reader, "use_sliding_window", false, &use));
	if (!use)
		goto cleanup;
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 4096, &config->window));
	if (fp_config_has(reader, "layer_types")) {
		FP_TRY(fp_config_layer_types(reader, config));
		goto cleanup;
	}
	FP_TRY(fp_config_integer_or(reader, "max_window_layers", 0, FP_MAX_LAYERS, 28, &below));
	for (int64_t i = 0; i < config->layers; i++)
		if (i % 2 == 1 || i >= below)
			fp_config_set_full(config, i);
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	fp_experts_config *experts = &config->experts;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 32768, .kv_heads = 16};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(read_window(reader, config));
	FP_TRY(fp_config_flag_or(reader, "qkv_bias", true, &config->qkv_bias));
	FP_TRY(fp_config_experts(reader, "num_experts", 60, "num_experts_per_tok", 4, config));
	FP_TRY(fp_config_sparse_layers(reader, config));
	FP_TRY(fp_config_integer_or(reader, "moe_intermediate_size", 1, FP_MAX_DIMENSION, 1408, &experts->inner));
	FP_TRY(
		fp_config_integer_or(reader, "shared_expert_intermediate_size", 1, FP_MAX_DIMENSION, 5632, &experts->shared));
	FP_TRY(fp_config_flag_or(reader, "norm_topk_prob", false, &experts->normalised));
	experts->shared_gated = true;
cleanup:
	return status;
}

const fp_architecture fp_architecture_qwen2_moe = {
	.name = "Qwen2MoeForCausalLM",
	.model_type = "qwen2_moe",
	.read_config = read_config,
	.router = "mlp.gate",
	.experts = "mlp.experts",
	.expert_operators = {"gate_proj", "up_proj", "down_proj"},
	.shared = "mlp.shared_expert",
	.shared_gate = "mlp.shared_expert_gate",
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
