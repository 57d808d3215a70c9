/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qwen3.c: dense Qwen3: LLaMA's layer with an RMSNorm on each head of q and k and a head_dim key; and the text part of
 * Qwen3-VL, which is the same.
 */
#include "model/llama_like.h"

static fp_status read_with(const fp_config_reader *reader, const fp_llama_defaults *defaults, fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_llama_like(reader, defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_qwen_window(reader, config));
	config->output_bias = config->qkv_bias;
	config->head_norm = FP_HEADS_NORM_EACH;
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 32768, .kv_heads = 32, .head_dim = 128};
	return read_with(reader, &defaults, config);
}

static fp_status read_text(const fp_config_reader *reader, fp_model_config *config)
{
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 128000, .kv_heads = 32, .head_dim = 128, .theta = 500000};
	return read_with(reader, &defaults, config);
}

static fp_status read_images(const fp_config_reader *reader, fp_model_config *config)
{
	return fp_config_images(reader, read_text, config);
}

const fp_architecture fp_architecture_qwen3 = {
	.name = "Qwen3ForCausalLM",
	.model_type = "qwen3",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_qwen3_vl = {
	.name = "Qwen3VLForConditionalGeneration",
	.model_type = "qwen3_vl",
	.read_config = read_images,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_LAYER_NAMES,
	.prefixes = {"model.language_model."},
	.head = "lm_head",
};
