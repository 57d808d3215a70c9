/* SPDX-License-Identifier: Apache-2.0 */
/* qwen3_moe.c: Qwen3's layer with a mixture of experts in place of the feed-forward part. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool window;
	fp_experts_config *experts = &config->experts;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 32768, .kv_heads = 4};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_flag_or(reader, "use_sliding_window", false, &window));
	if (window && !fp_config_is_null(reader, "sliding_window"))
		FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 4096, &config->window));
	/* transformers 5 writes the second name */
	const char *count = fp_config_has(reader, "num_experts") ? "num_experts" : "num_local_experts";
	FP_TRY(fp_config_experts(reader, count, 128, "num_experts_per_tok", 8, config));
	FP_TRY(fp_config_sparse_layers(reader, config));
	FP_TRY(fp_config_integer_or(reader, "moe_intermediate_size", 1, FP_MAX_DIMENSION, 768, &experts->inner));
	FP_TRY(fp_config_flag_or(reader, "norm_topk_prob", false, &experts->normalised));
	config->output_bias = config->qkv_bias;
	config->head_norm = FP_HEADS_NORM_EACH;
cleanup:
	return status;
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
