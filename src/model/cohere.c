/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cohere.c: Cohere's Command R: parallel blocks with one LayerNorm without bias; neighbouring entries of a head turn. In
 * its second version most layers have a sliding window, and in the others heads do not turn.
 */
#include "model/llama_like.h"

static fp_status read_with(const fp_config_reader *reader, double theta, fp_model_config *config)
{
	fp_status status;
	bool norms;
	double scale;
	const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 8192, .epsilon = 1e-5, .theta = theta, .tied = true, .layer_norm = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_positive_or(reader, "logit_scale", 0.0625, &scale));
	FP_TRY(fp_config_flag_or(reader, "use_qk_norm", false, &norms));
	if (norms)
		FP_TRY(fp_config_fail(reader, "use_qk_norm",
							  "is true; norms with weights of their own for each head are not "
							  "supported, only false is"));
	config->output_bias = config->qkv_bias;
	config->norm_bias = false;
	config->parallel = config->shared_norm = true;
	config->rope_pairing = FP_PAIR_NEIGHBOURS;
	config->logit_scale = (float)scale;
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	return read_with(reader, 500000, config);
}

static fp_status read_second(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	FP_TRY(read_with(reader, 10000, config));
	FP_TRY(fp_config_window_period(reader, "sliding_window_pattern", 4, config));
	for (int64_t i = 0; i < config->layers; i++)
		if (fp_config_window(config, i) == 0)
			fp_config_set_unrotated(config, i);
cleanup:
	return status;
}

const fp_architecture fp_architecture_cohere = {
	.name = "CohereForCausalLM",
	.model_type = "cohere",
	.read_config = read_config,
	.norms = {"input_layernorm"},
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_cohere2 = {
	.name = "Cohere2ForCausalLM",
	.model_type = "cohere2",
	.read_config = read_second,
	.norms = {"input_layernorm"},
	FP_LLAMA_TENSOR_NAMES,
};
