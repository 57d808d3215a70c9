/* SPDX-License-Identifier: Apache-2.0 */
/* ernie4_5.c: dense ERNIE 4.5: LLaMA's layer, in which neighbouring entries of a head turn. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU,
											   .positions = 131072,
											   .kv_heads = 2,
											   .head_dim = 128,
											   .epsilon = 1e-5,
											   .theta = 500000,
											   .tied = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "use_bias", false, &config->qkv_bias));
	config->output_bias = config->mlp_bias = config->qkv_bias;
	config->rope_pairing = FP_PAIR_NEIGHBOURS;
cleanup:
	return status;
}

const fp_architecture fp_architecture_ernie4_5 = {
	.name = "Ernie4_5ForCausalLM",
	.model_type = "ernie4_5",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
