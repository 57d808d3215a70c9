/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qwen3_moe.c: Qwen3's layer with a mixture of experts in place of the feed-forward part, and the text part of such models
 * that see images, whose files have all experts of a layer in one tensor.
 */
#include "model/llama_like.h"

/* What both have, with defaults for the number of experts, that of a token, and their width. */
static fp_status read_with(const fp_config_reader *reader, const fp_llama_defaults *defaults, int64_t experts,
						   int64_t active, int64_t inner, fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_llama_like(reader, defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	/* transformers 5 writes the second name */
	const char *count = fp_config_has(reader, "num_experts") ? "num_experts" : "num_local_experts";
	FP_TRY(fp_config_experts(reader, count, experts, "num_experts_per_tok", active, config));
	FP_TRY(fp_config_sparse_layers(reader, config));
	FP_TRY(fp_config_integer_or(reader, "moe_intermediate_size", 1, FP_MAX_DIMENSION, inner, &config->experts.inner));
	config->output_bias = config->qkv_bias;
	config->head_norm = FP_HEADS_NORM_EACH;
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool window;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 32768, .kv_heads = 4};
	FP_TRY(read_with(reader, &defaults, 128, 8, 768, config));
	FP_TRY(fp_config_flag_or(reader, "use_sliding_window", false, &window));
	if (window && !fp_config_is_null(reader, "sliding_window"))
		FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 4096, &config->window));
	FP_TRY(fp_config_flag_or(reader, "norm_topk_prob", false, &config->experts.normalised));
cleanup:
	return status;
}

static fp_status read_text(const fp_config_reader *reader, fp_model_config *config)
{
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 128000, .kv_heads = 16, .theta = 500000};
	fp_status status = read_with(reader, &defaults, 60, 4, 1408, config);
	config->experts.normalised = config->experts.stacked = true;
	config->tied = false; /* only what the config says outside of this section counts */
	return status;
}

static fp_status read_images(const fp_config_reader *reader, fp_model_config *config)
{
	return fp_config_images(reader, read_text, config);
}

const fp_architecture fp_architecture_qwen3_moe = {
	.name = "Qwen3MoeForCausalLM",
	.model_type = "qwen3_moe",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.router = "mlp.gate",
	.experts = "mlp.experts",
	.expert_operators = {"gate_proj", "up_proj", "down_proj"},
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_qwen3_vl_moe = {
	.name = "Qwen3VLMoeForConditionalGeneration",
	.model_type = "qwen3_vl_moe",
	.read_config = read_images,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.router = "mlp.gate",
	.experts = "mlp.experts",
	.expert_operators = {"gate_up_proj", "gate_up_proj", "down_proj"},
	.bare_experts = true,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_LAYER_NAMES,
	.prefixes = {"model.language_model."},
	.head = "lm_head",
};
