/* SPDX-License-Identifier: Apache-2.0 */
/* glm4_moe_lite.c: GLM-4.7-Flash: DeepSeek V3's layer with other sizes, and a list of the layers that have experts. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool neighbours;
	static const fp_llama_defaults defaults = {.activation = FP_SILU,
											   .positions = 202752,
											   .head_dim = 64,
											   .head_dim_key = "qk_rope_head_dim",
											   .epsilon = 1e-5};
	static const fp_latent_defaults latents = {.rank = 512, .query_rank = 768, .plain = 192, .value = 256};
	static const fp_deepseek_defaults experts = {
		.count = 64, .active = 4, .first = 1, .inner = 1536, .scale = 1.8, .normalised = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_latents(reader, &latents, config));
	FP_TRY(fp_config_flag_or(reader, "rope_interleave", true, &neighbours));
	FP_TRY(fp_config_deepseek_experts(reader, &experts, config));
	config->rope_pairing = neighbours ? FP_PAIR_NEIGHBOURS : FP_PAIR_HALVES;
cleanup:
	return status;
}

const fp_architecture fp_architecture_glm4_moe_lite = {
	.name = "Glm4MoeLiteForCausalLM",
	.model_type = "glm4_moe_lite",
	.read_config = read_config,
	.correction = "mlp.gate",
	FP_DEEPSEEK_EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
	FP_LATENT_TENSOR_NAMES,
};
