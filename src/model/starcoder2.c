/* SPDX-License-Identifier: Apache-2.0 */
/* starcoder2.c: StarCoder2: rotary positions and shared key/value heads with LayerNorm and a plain feed-forward part. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_GELU_TANH,
											   .positions = 4096,
											   .kv_heads = 2,
											   .epsilon = 1e-5,
											   .epsilon_key = "norm_epsilon",
											   .tied = true,
											   .layer_norm = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 0, &config->window));
	FP_TRY(fp_config_flag_or(reader, "use_bias", true, &config->qkv_bias));
	config->output_bias = config->mlp_bias = config->qkv_bias;
	config->gated = false;
cleanup:
	return status;
}

const fp_architecture fp_architecture_starcoder2 = {
	.name = "Starcoder2ForCausalLM",
	.model_type = "starcoder2",
	.read_config = read_config,
	.prefixes = {"model.", ""},
	.embedding = "embed_tokens",
	.final_norm = "norm",
	.head = "lm_head",
	.layers = "layers",
	FP_LLAMA_NORM_NAMES,
	.operators = {[FP_QUERY] = "self_attn.q_proj",
				  [FP_KEY] = "self_attn.k_proj",
				  [FP_VALUE] = "self_attn.v_proj",
				  [FP_OUTPUT] = "self_attn.o_proj",
				  [FP_UP] = "mlp.c_fc",
				  [FP_DOWN] = "mlp.c_proj"},
};
