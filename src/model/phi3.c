/* SPDX-License-Identifier: Apache-2.0 */
/* phi3.c: Phi-3, Phi-3.5 and Phi-4: LLaMA's layer with q, k, v and gate, up in one tensor each, and longrope positions. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 4096, .epsilon = 1e-5, .part = 1};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 0, &config->window));
	if (config->rope[0].original > 0 && !fp_config_has(reader, "original_max_position_embeddings"))
		FP_TRY(fp_config_fail(reader, "original_max_position_embeddings",
							  "is missing; longrope positions need it, such as 4096"));
	config->qkv_layout = FP_QKV_STACKED;
	config->gate_up_stacked = true;
cleanup:
	return status;
}

const fp_architecture fp_architecture_phi3 = {
	.name = "Phi3ForCausalLM",
	.model_type = "phi3",
	.read_config = read_config,
	.prefixes = {"model.", ""},
	.embedding = "embed_tokens",
	.final_norm = "norm",
	.head = "lm_head",
	.layers = "layers",
	FP_LLAMA_NORM_NAMES,
	.operators = {[FP_QUERY] = "self_attn.qkv_proj",
				  [FP_KEY] = "self_attn.qkv_proj",
				  [FP_VALUE] = "self_attn.qkv_proj",
				  [FP_OUTPUT] = "self_attn.o_proj",
				  [FP_GATE] = "mlp.gate_up_proj",
				  [FP_UP] = "mlp.gate_up_proj",
				  [FP_DOWN] = "mlp.down_proj"},
};
