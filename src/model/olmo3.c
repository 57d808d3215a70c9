/* SPDX-License-Identifier: Apache-2.0 */
/* olmo3.c: OLMo 3: OLMo 2's layer, most with a sliding window, and scaled rotary positions where there is none. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	double theta;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 2048, .epsilon = 1e-5, .theta = 500000};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_window_period(reader, NULL, 4, config));
	FP_TRY(fp_config_positive_or(reader, "rope_theta", defaults.theta, &theta));
	FP_TRY(fp_config_rope_by_layer(reader, theta, theta, config));
	config->output_bias = config->qkv_bias;
	config->pre_norm = false;
	config->branch_norm = true;
	config->head_norm = FP_HEADS_NORM_WHOLE;
cleanup:
	return status;
}

const fp_architecture fp_architecture_olmo3 = {
	.name = "Olmo3ForCausalLM",
	.model_type = "olmo3",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.norms =
		{[FP_NORM_BEHIND_ATTENTION] = "post_attention_layernorm", [FP_NORM_BEHIND_FEED] = "post_feedforward_layernorm"},
	FP_LLAMA_TENSOR_NAMES,
};
