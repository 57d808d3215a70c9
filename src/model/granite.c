/* SPDX-License-Identifier: Apache-2.0 */
/* granite.c: Granite 3: LLaMA's layer with multipliers on the embedding, the scores, what is added, and the logits. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 2048};
	double embedding, logits, residual, attention;
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &config->mlp_bias));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_positive_or(reader, "embedding_multiplier", 1, &embedding));
	FP_TRY(fp_config_positive_or(reader, "logits_scaling", 1, &logits));
	FP_TRY(fp_config_positive_or(reader, "residual_multiplier", 1, &residual));
	FP_TRY(fp_config_positive_or(reader, "attention_multiplier", 1, &attention));
	config->output_bias = config->qkv_bias;
	config->embedding_scale = (float)embedding;
	config->logit_scale = (float)(1 / logits);
	config->residual_scale = (float)residual;
	config->attention_scale = (float)attention;
cleanup:
	return status;
}

const fp_architecture fp_architecture_granite = {
	.name = "GraniteForCausalLM",
	.model_type = "granite",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
