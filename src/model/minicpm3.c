/* SPDX-License-Identifier: Apache-2.0 */
/* minicpm3.c: MiniCPM3: LLaMA's layer with latent attention, and multipliers on the embedding, what is added, and the logits. */
#include "model/llama_like.h"

#include <math.h>

/* null means a factor of 1. */
static fp_status read_scales(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	double embedding, depth, base, root = sqrt((double)config->layers), hidden = (double)config->hidden;
	FP_TRY(fp_config_positive_or(reader, "scale_emb", 12, &embedding));
	FP_TRY(fp_config_positive_or(reader, "scale_depth", fp_config_is_null(reader, "scale_depth") ? root : 1.4, &depth));
	FP_TRY(fp_config_positive_or(reader, "dim_model_base", fp_config_is_null(reader, "dim_model_base") ? hidden : 256,
								 &base));
	config->embedding_scale = (float)embedding;
	config->residual_scale = (float)(depth / root);
	config->logit_scale = (float)(base / hidden);
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU,
											   .positions = 32768,
											   .heads = 40,
											   .vocabulary = 73448,
											   .head_dim = 32,
											   .head_dim_key = "qk_rope_head_dim",
											   .epsilon = 1e-5,
											   .tied = true};
	static const fp_latent_defaults latents = {.rank = 256, .query_rank = 768, .plain = 64};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_latents(reader, &latents, config));
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &config->mlp_bias));
	FP_TRY(read_scales(reader, config));
cleanup:
	return status;
}

const fp_architecture fp_architecture_minicpm3 = {
	.name = "MiniCPM3ForCausalLM",
	.model_type = "minicpm3",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
	FP_LATENT_TENSOR_NAMES,
};
