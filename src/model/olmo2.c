/* SPDX-License-Identifier: Apache-2.0 */
/* olmo2.c: OLMo 2: LLaMA's layer with norms after the blocks instead of before them, and on all of q and k. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 2048, .epsilon = 1e-5};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	config->output_bias = config->qkv_bias;
	config->pre_norm = false;
	config->branch_norm = true;
	config->head_norm = FP_HEADS_NORM_WHOLE;
cleanup:
	return status;
}

const fp_architecture fp_architecture_olmo2 = {
	.name = "Olmo2ForCausalLM",
	.model_type = "olmo2",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.norms =
		{[FP_NORM_BEHIND_ATTENTION] = "post_attention_layernorm", [FP_NORM_BEHIND_FEED] = "post_feedforward_layernorm"},
	FP_LLAMA_TENSOR_NAMES,
};
