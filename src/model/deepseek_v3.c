/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek_v3.c: DeepSeek V3 and R1, and models that call themselves so (Moonlight, Kimi K2): LLaMA's layer with latent
 * attention and a mixture of experts behind the first layers.
 */
#include "model/llama_like.h"

#include <string.h>

/* What a program of DeepSeek's reads and transformers does not. */
static fp_status check_scores(const fp_config_reader *reader)
{
	fp_status status;
	const char *scores;
	int64_t every;
	FP_TRY(fp_config_text_or(reader, "scoring_func", "sigmoid", &scores));
	if (strcmp(scores, "sigmoid") != 0)
		FP_TRY(fp_config_fail(reader, "scoring_func", "must be sigmoid, but is '%.60s'", scores));
	FP_TRY(fp_config_integer_or(reader, "moe_layer_freq", 1, 1, 1, &every));
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool neighbours;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 4096, .head_dim = 64, .head_dim_key = "qk_rope_head_dim"};
	static const fp_latent_defaults latents = {.rank = 512, .query_rank = 1536, .plain = 128, .value = 128};
	static const fp_deepseek_defaults experts = {.count = 256,
												 .active = 8,
												 .first = 3,
												 .inner = 2048,
												 .groups = 8,
												 .active_groups = 4,
												 .scale = 2.5,
												 .normalised = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_latents(reader, &latents, config));
	FP_TRY(fp_config_flag_or(reader, "rope_interleave", true, &neighbours));
	FP_TRY(check_scores(reader));
	FP_TRY(fp_config_deepseek_experts(reader, &experts, config));
	config->rope_pairing = neighbours ? FP_PAIR_NEIGHBOURS : FP_PAIR_HALVES;
cleanup:
	return status;
}

const fp_architecture fp_architecture_deepseek_v3 = {
	.name = "DeepseekV3ForCausalLM",
	.model_type = "deepseek_v3",
	.read_config = read_config,
	.correction = "mlp.gate",
	FP_DEEPSEEK_EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
	FP_LATENT_TENSOR_NAMES,
};
