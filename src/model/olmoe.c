/* SPDX-License-Identifier: Apache-2.0 */
/* olmoe.c: OLMoE: LLaMA's layer with norms on all of q and k, and a mixture of experts in place of the feed-forward part. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 4096, .epsilon = 1e-5};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_no_clip(reader));
	FP_TRY(fp_config_experts(reader, "num_experts", 64, "num_experts_per_tok", 8, config));
	FP_TRY(fp_config_flag_or(reader, "norm_topk_prob", false, &config->experts.normalised));
	config->experts.inner = config->inner;
	config->inner = 0; /* every layer has experts */
	config->output_bias = config->qkv_bias;
	config->head_norm = FP_HEADS_NORM_WHOLE;
cleanup:
	return status;
}

const fp_architecture fp_architecture_olmoe = {
	.name = "OlmoeForCausalLM",
	.model_type = "olmoe",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.router = "mlp.gate",
	.experts = "mlp.experts",
	.expert_operators = {"gate_proj", "up_proj", "down_proj"},
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
