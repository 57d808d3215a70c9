/* SPDX-License-Identifier: Apache-2.0 */
/* latent_config.c: what the config.json of a model with latents says of them. */
#include "model/architecture.h"

#include <math.h>

static fp_status read_sizes(const fp_config_reader *reader, const fp_latent_defaults *defaults, int64_t *plain,
							fp_latent_config *latent)
{
	fp_status status;
	int64_t query_rank = fp_config_is_null(reader, "q_lora_rank") ? 0 : defaults->query_rank;
	FP_TRY(fp_config_integer_or(reader, "kv_lora_rank", 1, FP_MAX_DIMENSION, defaults->rank, &latent->rank));
	FP_TRY(fp_config_integer_or(reader, "q_lora_rank", 1, FP_MAX_DIMENSION, query_rank, &latent->query_rank));
	FP_TRY(fp_config_integer_or(reader, "qk_nope_head_dim", 1, FP_MAX_DIMENSION, defaults->plain, plain));
	FP_TRY(fp_config_integer_or(reader, "v_head_dim", 1, FP_MAX_DIMENSION, defaults->value, &latent->value));
cleanup:
	return status;
}

fp_status fp_config_latents(const fp_config_reader *reader, const fp_latent_defaults *defaults, fp_model_config *config)
{
	fp_status status;
	fp_latent_config *latent = &config->latent;
	int64_t plain;
	double scale;
	FP_TRY(read_sizes(reader, defaults, &plain, latent));
	if (latent->value == 0)
		latent->value = config->hidden / config->heads;
	latent->turned = config->head_dim;
	config->head_dim += plain;
	config->kv_heads = config->heads;
	if (latent->value > config->head_dim)
		FP_TRY(fp_config_fail(reader, "v_head_dim",
							  "must be at most qk_nope_head_dim + qk_rope_head_dim, %lld, but is %lld",
							  (long long)config->head_dim, (long long)latent->value));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	config->output_bias = config->qkv_bias;
	FP_TRY(fp_config_rope_score_scale(reader, &scale));
	config->attention_scale = (float)(scale / sqrt((double)config->head_dim));
cleanup:
	return status;
}
