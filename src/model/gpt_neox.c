/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_neox.c: GPT-NeoX and Pythia: parallel blocks with a LayerNorm each; q, k and v head by head in one tensor. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	fp_llama_defaults defaults = {.activation = FP_GELU, .positions = 2048, .epsilon = 1e-5, .layer_norm = true};
	/* the names of these keys before transformers 5 */
	FP_TRY(fp_config_positive_or(reader, "rotary_emb_base", 10000, &defaults.theta));
	FP_TRY(fp_config_positive_or(reader, "rotary_pct", 0.25, &defaults.part));
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "use_parallel_residual", true, &config->parallel));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", true, &config->qkv_bias));
	config->output_bias = config->qkv_bias;
	config->mlp_bias = true;
	config->gated = false;
	config->kv_heads = config->heads;
	config->qkv_layout = FP_QKV_BY_HEAD;
cleanup:
	return status;
}

const fp_architecture fp_architecture_gpt_neox = {
	.name = "GPTNeoXForCausalLM",
	.model_type = "gpt_neox",
	.read_config = read_config,
	.prefixes = {"gpt_neox.", ""},
	.embedding = "embed_in",
	.final_norm = "final_layer_norm",
	.head = "embed_out",
	.old_head = "lm_head",
	.layers = "layers",
	FP_LLAMA_NORM_NAMES,
	.operators = {[FP_QUERY] = "attention.query_key_value",
				  [FP_KEY] = "attention.query_key_value",
				  [FP_VALUE] = "attention.query_key_value",
				  [FP_OUTPUT] = "attention.dense",
				  [FP_UP] = "mlp.dense_h_to_4h",
				  [FP_DOWN] = "mlp.dense_4h_to_h"},
};
