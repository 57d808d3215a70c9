/* SPDX-License-Identifier: Apache-2.0 */
/*
 * granite.c: Granite 3 and 4: LLaMA's layer with multipliers on the embedding, the scores, what is added, and the logits. In some
 * a mixture of experts is in place of the feed-forward part.
 */
#include "model/llama_like.h"

#include <string.h>

/* All but the feed-forward part. */
static fp_status read_common(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 2048};
	double embedding, logits, residual, attention;
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
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

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	FP_TRY(read_common(reader, config));
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &config->mlp_bias));
cleanup:
	return status;
}

static fp_status read_experts(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	FP_TRY(read_common(reader, config));
	FP_TRY(fp_config_experts(reader, "num_local_experts", 8, "num_experts_per_tok", 2, config));
	config->experts.inner = config->inner;
	config->inner = 0; /* every layer has experts */
	config->experts.normalised = config->experts.stacked = true;
cleanup:
	return status;
}

static fp_status read_shared_expert(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	FP_TRY(read_experts(reader, config));
	FP_TRY(fp_config_integer_or(reader, "shared_intermediate_size", 0, FP_MAX_DIMENSION, 0, &config->experts.shared));
cleanup:
	return status;
}

/* All layers must have attention. */
static fp_status check_attention(const fp_config_reader *reader, const fp_model_config *config)
{
	const char *key = fp_config_has(reader, "layers_block_type") ? "layers_block_type" : "layer_types";
	const json_t *types = json_object_get(reader->object, key);
	for (int64_t i = 0; i < config->layers; i++) {
		const char *type = json_string_value(json_array_get(types, (size_t)i));
		if (!type || (strcmp(type, "attention") != 0 && strcmp(type, "full_attention") != 0))
			return fp_config_fail(reader, key,
								  "is '%.40s' for layer %lld; only layers with attention are supported, not Mamba's: "
								  "it must be a list of attention or full_attention",
								  type ? type : "absent", (long long)i);
	}
	return FP_OK;
}

/* Granite 4: the expert that reads every token may be the only one: it is the feed-forward part then. */
static fp_status read_fourth(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	int64_t count, shared;
	const char *positions;
	FP_TRY(fp_config_integer_or(reader, "num_local_experts", 0, FP_MAX_EXPERTS, 8, &count));
	FP_TRY(fp_config_integer_or(reader, "shared_intermediate_size", 1, FP_MAX_DIMENSION, 1024, &shared));
	FP_TRY(count > 0 ? read_experts(reader, config) : read_common(reader, config));
	FP_TRY(check_attention(reader, config));
	FP_TRY(fp_config_text_or(reader, "position_embedding_type", "", &positions));
	for (int64_t i = 0; strcmp(positions, "rope") != 0 && i < config->layers; i++)
		fp_config_set_unrotated(config, i);
	config->experts.shared = count > 0 ? shared : 0;
	config->inner = count > 0 ? 0 : shared;
	config->gate_up_stacked = true;
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

#define EXPERT_NAMES                                                                                                   \
	.router = "block_sparse_moe.router.layer", .experts = "block_sparse_moe",                                          \
	.expert_operators = {"input_linear", "input_linear", "output_linear"}

const fp_architecture fp_architecture_granitemoe = {
	.name = "GraniteMoeForCausalLM",
	.model_type = "granitemoe",
	.read_config = read_experts,
	EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_granitemoeshared = {
	.name = "GraniteMoeSharedForCausalLM",
	.model_type = "granitemoeshared",
	.read_config = read_shared_expert,
	.shared = "shared_mlp",
	EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_granitemoehybrid = {
	.name = "GraniteMoeHybridForCausalLM",
	.model_type = "granitemoehybrid",
	.read_config = read_fourth,
	.prefixes = {"model.", ""},
	.embedding = "embed_tokens",
	.final_norm = "norm",
	.head = "lm_head",
	.layers = "layers",
	.operators = {[FP_QUERY] = "self_attn.q_proj",
				  [FP_KEY] = "self_attn.k_proj",
				  [FP_VALUE] = "self_attn.v_proj",
				  [FP_OUTPUT] = "self_attn.o_proj",
				  [FP_GATE] = "shared_mlp.input_linear",
				  [FP_UP] = "shared_mlp.input_linear",
				  [FP_DOWN] = "shared_mlp.output_linear"},
	.shared = "shared_mlp",
	EXPERT_NAMES,
	FP_LLAMA_NORM_NAMES,
};
