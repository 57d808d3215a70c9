/* SPDX-License-Identifier: Apache-2.0 */
/* seed_oss.c: Seed-OSS: LLaMA's layer with a key for each kind of bias. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 524288, .kv_heads = 8, .head_dim = 128};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", true, &config->qkv_bias));
	FP_TRY(fp_config_flag_or(reader, "attention_out_bias", false, &config->output_bias));
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &config->mlp_bias));
cleanup:
	return status;
}

const fp_architecture fp_architecture_seed_oss = {
	.name = "SeedOssForCausalLM",
	.model_type = "seed_oss",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
