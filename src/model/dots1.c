/* SPDX-License-Identifier: Apache-2.0 */
/* dots1.c: dots.llm1: LLaMA's layer with norms on each head of q and k, and a mixture of experts behind the first layers. */
#include "model/llama_like.h"

/* Layers from max_window_layers on have a window, unless layer_types lists them. */
static fp_status read_window(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	int64_t from = 0, fallback = fp_config_is_null(reader, "sliding_window") ? 0 : 4096;
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, fallback, &config->window));
	if (fp_config_has(reader, "layer_types"))
		FP_TRY(fp_config_layer_types(reader, config));
	else
		FP_TRY(fp_config_integer_or(reader, "max_window_layers", 0, FP_MAX_LAYERS, 62, &from));
	for (int64_t i = 0; i < from && i < config->layers; i++)
		fp_config_set_full(config, i);
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 2048, .kv_heads = 32};
	static const fp_deepseek_defaults experts = {0}; /* the config must have the numbers */
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(read_window(reader, config));
	FP_TRY(fp_config_deepseek_experts(reader, &experts, config));
	config->output_bias = config->qkv_bias;
	config->head_norm = FP_HEADS_NORM_EACH;
cleanup:
	return status;
}

const fp_architecture fp_architecture_dots1 = {
	.name = "Dots1ForCausalLM",
	.model_type = "dots1",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.correction = "mlp.gate",
	FP_DEEPSEEK_EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
