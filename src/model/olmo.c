/* SPDX-License-Identifier: Apache-2.0 */
/* olmo.c: OLMo 1: LLaMA's layer with LayerNorm that has no weights. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 2048, .epsilon = 1e-5, .layer_norm = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_no_clip(reader));
	config->output_bias = config->qkv_bias;
	config->norm_affine = config->norm_bias = false;
cleanup:
	return status;
}

const fp_architecture fp_architecture_olmo = {
	.name = "OlmoForCausalLM",
	.model_type = "olmo",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
