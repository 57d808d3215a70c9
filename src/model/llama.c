/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c: LLaMA 1, 2 and 3, and models of the same form (SmolLM, TinyLlama, Vicuna). */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 2048};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &config->mlp_bias));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	config->output_bias = config->qkv_bias;
cleanup:
	return status;
}

const fp_architecture fp_architecture_llama = {
	.name = "LlamaForCausalLM",
	.model_type = "llama",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
