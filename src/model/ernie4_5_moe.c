/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ernie4_5_moe.c: ERNIE 4.5 with a mixture of experts in some layers: the dense one's layer, in which neighbouring entries
 * of a head turn.
 */
#include "model/llama_like.h"

/* Which layers have experts: every moe_layer_interval-th from moe_layer_start_index to moe_layer_end_index. */
static fp_status read_layers(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	int64_t first, last, step;
	FP_TRY(fp_config_integer_or(reader, "moe_layer_start_index", 0, FP_MAX_LAYERS, 1, &first));
	FP_TRY(fp_config_integer_or(reader, "moe_layer_end_index", -1, FP_MAX_LAYERS, -1, &last));
	FP_TRY(fp_config_integer_or(reader, "moe_layer_interval", 1, FP_MAX_LAYERS, 1, &step));
	for (int64_t i = 0; i < config->layers; i++)
		if (i < first || (last >= 0 && i > last) || (i + 1) % step != 0)
			fp_config_set_dense(config, i);
	fp_config_drop_inner(config);
cleanup:
	return status;
}

static fp_status read_experts(const fp_config_reader *reader, fp_experts_config *experts)
{
	fp_status status;
	int64_t shared;
	double least;
	FP_TRY(fp_config_integer_or(reader, "moe_intermediate_size", 1, FP_MAX_DIMENSION, 1536, &experts->inner));
	FP_TRY(fp_config_integer_or(reader, "moe_num_shared_experts", 0, FP_MAX_EXPERTS, 2, &shared));
	FP_TRY(fp_config_positive_or(reader, "moe_norm_min", 1e-12, &least));
	experts->shared = shared * experts->inner;
	experts->least = (float)least;
	experts->corrected = experts->normalised = true;
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool bias;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 131072, .kv_heads = 4, .epsilon = 1e-5, .theta = 500000, .tied = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "use_bias", false, &bias));
	if (bias)
		FP_TRY(fp_config_fail(reader, "use_bias",
							  "is true; experts that read every token cannot have biases: it must be false"));
	FP_TRY(fp_config_experts(reader, "moe_num_experts", 64, "moe_k", 6, config));
	FP_TRY(read_experts(reader, &config->experts));
	FP_TRY(read_layers(reader, config));
	config->rope_pairing = FP_PAIR_NEIGHBOURS;
cleanup:
	return status;
}

const fp_architecture fp_architecture_ernie4_5_moe = {
	.name = "Ernie4_5_MoeForCausalLM",
	.model_type = "ernie4_5_moe",
	.read_config = read_config,
	.router = "mlp.gate",
	.correction = "mlp.moe_statics",
	.correction_rows = 1,
	.experts = "mlp.experts",
	.expert_operators = {"gate_proj", "up_proj", "down_proj"},
	.shared = "mlp.shared_experts",
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
