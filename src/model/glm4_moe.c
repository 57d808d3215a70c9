/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glm4_moe.c: GLM-4.5 to 4.7: LLaMA's layer, in which a half of each head turns, with a mixture of experts behind the first
 * layers. In the larger models q and k are normalised.
 */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool norm;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 131072, .kv_heads = 8, .epsilon = 1e-5, .part = 0.5};
	static const fp_deepseek_defaults experts = {.count = 128, .active = 8, .first = 1, .normalised = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_flag_or(reader, "use_qk_norm", false, &norm));
	FP_TRY(fp_config_deepseek_experts(reader, &experts, config));
	config->head_norm = norm ? FP_HEADS_NORM_EACH : FP_HEADS_PLAIN;
cleanup:
	return status;
}

const fp_architecture fp_architecture_glm4_moe = {
	.name = "Glm4MoeForCausalLM",
	.model_type = "glm4_moe",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.correction = "mlp.gate",
	FP_DEEPSEEK_EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
