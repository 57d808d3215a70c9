/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exaone4.c: EXAONE 4: LLaMA's layer with norms after the blocks instead of before them, and on each head of q and k. Where
 * some layers have a sliding window, heads do not turn in the others.
 */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 2048, .kv_heads = 32, .epsilon = 1e-5};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_window_period(reader, "sliding_window_pattern", 4, config));
	for (int64_t i = 0; config->window > 0 && i < config->layers; i++)
		if (fp_config_window(config, i) == 0)
			fp_config_set_unrotated(config, i);
	config->pre_norm = false;
	config->branch_norm = true;
	config->head_norm = FP_HEADS_NORM_EACH;
cleanup:
	return status;
}

const fp_architecture fp_architecture_exaone4 = {
	.name = "Exaone4ForCausalLM",
	.model_type = "exaone4",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.norms =
		{[FP_NORM_BEHIND_ATTENTION] = "post_attention_layernorm", [FP_NORM_BEHIND_FEED] = "post_feedforward_layernorm"},
	FP_LLAMA_TENSOR_NAMES,
};
