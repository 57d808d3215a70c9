/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glm.c: GLM-4 and GLM-Edge: LLaMA's layer with gate and up in one tensor, in which neighbouring entries of one half of
 * each head turn. The version of 2025 also normalises what each block adds.
 */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 131072, .kv_heads = 2, .head_dim = 128, .epsilon = 1.5625e-7, .part = 0.5};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", true, &config->qkv_bias));
	config->rope_pairing = FP_PAIR_NEIGHBOURS;
	config->gate_up_stacked = true;
cleanup:
	return status;
}

static fp_status read_fourth(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status = read_config(reader, config);
	config->branch_norm = true;
	return status;
}

#define GLM_TENSOR_NAMES                                                                                               \
	.prefixes = {"model.", ""}, .embedding = "embed_tokens", .final_norm = "norm", .head = "lm_head",                  \
	.layers = "layers",                                                                                                \
	.operators = {                                                                                                     \
		[FP_QUERY] = "self_attn.q_proj",  [FP_KEY] = "self_attn.k_proj",  [FP_VALUE] = "self_attn.v_proj",             \
		[FP_OUTPUT] = "self_attn.o_proj", [FP_GATE] = "mlp.gate_up_proj", [FP_UP] = "mlp.gate_up_proj",                \
		[FP_DOWN] = "mlp.down_proj",                                                                                   \
	}

const fp_architecture fp_architecture_glm = {
	.name = "GlmForCausalLM",
	.model_type = "glm",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	GLM_TENSOR_NAMES,
};

const fp_architecture fp_architecture_glm4 = {
	.name = "Glm4ForCausalLM",
	.model_type = "glm4",
	.read_config = read_fourth,
	.norms = {"input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"},
	GLM_TENSOR_NAMES,
};
