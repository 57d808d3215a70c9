/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek_v2.c: DeepSeek V2 and its Coder: as V3, but experts have softmax scores, without a correction, and groups of them
 * are compared by the largest.
 */
#include "model/llama_like.h"

#include <string.h>

static fp_status read_routing(const fp_config_reader *reader, fp_experts_config *experts)
{
	fp_status status;
	const char *method, *scores;
	int64_t every;
	bool bias;
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &bias));
	if (bias)
		FP_TRY(fp_config_fail(reader, "mlp_bias", "must be false: experts cannot have biases"));
	FP_TRY(fp_config_text_or(reader, "scoring_func", "softmax", &scores));
	if (strcmp(scores, "softmax") != 0)
		FP_TRY(fp_config_fail(reader, "scoring_func", "must be softmax, but is '%.60s'", scores));
	if (experts->normalised) /* which DeepSeek's program does without the factor, and transformers not at all */
		FP_TRY(fp_config_fail(reader, "norm_topk_prob", "must be false"));
	FP_TRY(fp_config_text_or(reader, "topk_method", "greedy", &method));
	if (strcmp(method, "greedy") == 0)
		experts->groups = 0;
	else if (strcmp(method, "group_limited_greedy") != 0)
		FP_TRY(fp_config_fail(reader, "topk_method", "must be greedy or group_limited_greedy, but is '%.60s'", method));
	FP_TRY(fp_config_integer_or(reader, "moe_layer_freq", 1, 1, 1, &every));
	experts->groups_by_largest = true;
	experts->sigmoid = experts->corrected = false;
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 2048, .head_dim = 64, .head_dim_key = "qk_rope_head_dim"};
	static const fp_latent_defaults latents = {.rank = 512, .query_rank = 1536, .plain = 128, .value = 128};
	static const fp_deepseek_defaults experts = {.count = 64, .inner = 1407, .shared = 2};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_latents(reader, &latents, config));
	FP_TRY(fp_config_deepseek_experts(reader, &experts, config));
	FP_TRY(read_routing(reader, &config->experts));
	config->rope_pairing = FP_PAIR_NEIGHBOURS;
cleanup:
	return status;
}

const fp_architecture fp_architecture_deepseek_v2 = {
	.name = "DeepseekV2ForCausalLM",
	.model_type = "deepseek_v2",
	.read_config = read_config,
	FP_DEEPSEEK_EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
	FP_LATENT_TENSOR_NAMES,
};
