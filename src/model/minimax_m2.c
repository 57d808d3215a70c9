/* SPDX-License-Identifier: Apache-2.0 */
/*
 * minimax_m2.c: MiniMax-M2: LLaMA's layer, in which a part of each head turns, with norms on all of q and k, and a mixture of
 * experts with sigmoid scores in place of the feed-forward part.
 */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	int64_t rotated, head_dim;
	fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 196608, .kv_heads = 8, .head_dim = 128, .theta = 5e6, .part = 1};
	/* the published files have the number of entries that turn, transformers 5 writes their part */
	FP_TRY(fp_config_integer_or(reader, "head_dim", 1, FP_MAX_DIMENSION, defaults.head_dim, &head_dim));
	FP_TRY(fp_config_integer_or(reader, "rotary_dim", 1, head_dim, head_dim, &rotated));
	defaults.part = (double)rotated / (double)head_dim;
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_experts(reader, "num_local_experts", 256, "num_experts_per_tok", 8, config));
	config->experts.inner = config->inner;
	config->inner = 0; /* every layer has experts */
	config->experts.sigmoid = config->experts.corrected = config->experts.normalised = true;
	config->experts.least = FP_LEAST_SCORES;
	config->head_norm = FP_HEADS_NORM_WHOLE;
cleanup:
	return status;
}

const fp_architecture fp_architecture_minimax_m2 = {
	.name = "MiniMaxM2ForCausalLM",
	.model_type = "minimax_m2",
	.read_config = read_config,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	.router = "block_sparse_moe.gate",
	.correction = "block_sparse_moe",
	.experts = "block_sparse_moe.experts",
	.expert_operators = {"w1", "w3", "w2"},
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
