/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c: LLaMA 1, 2 and 3: RMSNorm, rotary positions, gated feed-forward part, key/value heads shared by groups of
 * heads. */
#include "model/architecture.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_integer(reader, "num_hidden_layers", 1, FP_MAX_LAYERS, &config->layers));
	FP_TRY(fp_config_integer(reader, "hidden_size", 1, FP_MAX_DIMENSION, &config->hidden));
	FP_TRY(fp_config_integer(reader, "num_attention_heads", 1, FP_MAX_DIMENSION, &config->heads));
	FP_TRY(fp_config_integer(reader, "intermediate_size", 1, FP_MAX_DIMENSION, &config->inner));
	FP_TRY(fp_config_integer(reader, "vocab_size", 1, FP_MAX_DIMENSION, &config->vocabulary));
	FP_TRY(fp_config_integer_or(reader, "max_position_embeddings", 1, FP_MAX_DIMENSION, 2048, &config->positions));
	FP_TRY(fp_config_integer_or(reader, "num_key_value_heads", 1, FP_MAX_DIMENSION, config->heads, &config->kv_heads));
	FP_TRY(fp_config_integer_or(reader, "head_dim", 1, FP_MAX_DIMENSION, 0, &config->head_dim));
	FP_TRY(fp_config_activation_or(reader, "hidden_act", FP_SILU, &config->activation));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", false, &config->tied));
	FP_TRY(fp_config_flag_or(reader, "mlp_bias", false, &config->mlp_bias));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	double epsilon;
	FP_TRY(fp_config_positive_or(reader, "rms_norm_eps", 1e-6, &epsilon));
	FP_TRY(fp_config_rope(reader, 10000.0, config));

	if (config->head_dim == 0) {
		if (config->hidden % config->heads != 0) {
			status = fp_config_fail(reader, "num_attention_heads",
									"must divide hidden_size where there is no head_dim, but %lld does not divide %lld",
									(long long)config->heads, (long long)config->hidden);
			goto cleanup;
		}
		config->head_dim = config->hidden / config->heads;
	}
	config->output_bias = config->qkv_bias;
	config->norm = FP_RMS_NORM;
	config->norm_epsilon = (float)epsilon;
	config->norm_affine = true;
	config->pre_norm = true;
	config->final_norm = true;
	config->gated = true;
	config->rotary = true;
	config->embedding = config->hidden;
cleanup:
	return status;
}

const fp_architecture fp_architecture_llama = {
	.name = "LlamaForCausalLM",
	.model_type = "llama",
	.read_config = read_config,
	.prefixes = {"model.", ""},
	.embedding = "embed_tokens",
	.final_norm = "norm",
	.head = "lm_head",
	.layers = "layers",
	.operators = {[FP_QUERY] = "self_attn.q_proj",
				  [FP_KEY] = "self_attn.k_proj",
				  [FP_VALUE] = "self_attn.v_proj",
				  [FP_OUTPUT] = "self_attn.o_proj",
				  [FP_GATE] = "mlp.gate_proj",
				  [FP_UP] = "mlp.up_proj",
				  [FP_DOWN] = "mlp.down_proj"},
	.norms = {"input_layernorm", "post_attention_layernorm"},
};
