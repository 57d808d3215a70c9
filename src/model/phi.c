/* SPDX-License-Identifier: Apache-2.0 */
/* phi.c: Phi-1, Phi-1.5 and Phi-2: parallel blocks with one LayerNorm, biases everywhere, and half of each head turns. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool norms;
	static const fp_llama_defaults defaults = {
		.activation = FP_GELU_TANH, .positions = 2048, .epsilon = 1e-5, .part = 0.5, .layer_norm = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "qk_layernorm", false, &norms));
	if (norms)
		FP_TRY(fp_config_fail(reader, "qk_layernorm",
							  "is true; LayerNorm on queries and keys is not supported, only "
							  "false is"));
	config->gated = false;
	config->parallel = config->shared_norm = true;
	config->qkv_bias = config->output_bias = config->mlp_bias = config->head_bias = true;
cleanup:
	return status;
}

const fp_architecture fp_architecture_phi = {
	.name = "PhiForCausalLM",
	.model_type = "phi",
	.read_config = read_config,
	.prefixes = {"model.", ""},
	.embedding = "embed_tokens",
	.final_norm = "final_layernorm",
	.head = "lm_head",
	.layers = "layers",
	.norms = {"input_layernorm"},
	.operators = {[FP_QUERY] = "self_attn.q_proj",
				  [FP_KEY] = "self_attn.k_proj",
				  [FP_VALUE] = "self_attn.v_proj",
				  [FP_OUTPUT] = "self_attn.dense",
				  [FP_UP] = "mlp.fc1",
				  [FP_DOWN] = "mlp.fc2"},
};
