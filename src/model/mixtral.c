/* SPDX-License-Identifier: Apache-2.0 */
/* mixtral.c: Mistral's layer with a mixture of experts in place of the feed-forward part. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 131072, .kv_heads = 8, .epsilon = 1e-5, .theta = 1e6};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 0, &config->window));
	FP_TRY(fp_config_experts(reader, "num_local_experts", 8, "num_experts_per_tok", 2, config));
	config->experts.inner = config->inner;
	config->inner = 0; /* every layer has experts */
	config->experts.normalised = true;
cleanup:
	return status;
}

const fp_architecture fp_architecture_mixtral = {
	.name = "MixtralForCausalLM",
	.model_type = "mixtral",
	.read_config = read_config,
	.router = "block_sparse_moe.gate",
	.experts = "block_sparse_moe.experts",
	.expert_operators = {"w1", "w3", "w2"},
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
