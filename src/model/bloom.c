/* SPDX-License-Identifier: Apache-2.0 */
/* bloom.c: BLOOM: GPT-2's layer with ALiBi, a norm on the embedding, and q, k and v head by head in one tensor. */
#include "model/architecture.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	double epsilon;
	bool post;
	const char *layers = fp_config_has(reader, "n_layer") ? "n_layer" : "num_hidden_layers";
	const char *heads = fp_config_has(reader, "n_head") ? "n_head" : "num_attention_heads";
	const char *hidden = fp_config_has(reader, "n_embed") ? "n_embed" : "hidden_size";
	FP_TRY(fp_config_integer(reader, layers, 1, FP_MAX_LAYERS, &config->layers));
	FP_TRY(fp_config_integer(reader, hidden, 1, FP_MAX_DIMENSION / 4, &config->hidden));
	FP_TRY(fp_config_integer(reader, heads, 1, FP_MAX_DIMENSION, &config->heads));
	FP_TRY(fp_config_integer(reader, "vocab_size", 1, FP_MAX_DIMENSION, &config->vocabulary));
	FP_TRY(fp_config_integer_or(reader, "seq_length", 1, FP_MAX_DIMENSION, 2048, &config->positions));
	FP_TRY(fp_config_positive_or(reader, "layer_norm_epsilon", 1e-5, &epsilon));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", true, &config->tied));
	FP_TRY(fp_config_flag_or(reader, "apply_residual_connection_post_layernorm", false, &post));
	if (post)
		FP_TRY(fp_config_fail(reader, "apply_residual_connection_post_layernorm", "must be false, but is true"));
	FP_TRY(fp_config_divide_heads(reader, heads, config));
	config->embedding = config->hidden;
	config->inner = 4 * config->hidden;
	config->kv_heads = config->heads;
	config->activation = FP_GELU_TANH;
	config->norm = FP_LAYER_NORM;
	config->norm_epsilon = (float)epsilon;
	config->norm_affine = config->norm_bias = config->pre_norm = config->final_norm = config->embedding_norm = true;
	config->qkv_bias = config->output_bias = config->mlp_bias = true;
	config->qkv_layout = FP_QKV_BY_HEAD;
	config->alibi = true;
cleanup:
	return status;
}

const fp_architecture fp_architecture_bloom = {
	.name = "BloomForCausalLM",
	.model_type = "bloom",
	.read_config = read_config,
	.prefixes = {"transformer.", ""},
	.embedding = "word_embeddings",
	.embedding_norm = "word_embeddings_layernorm",
	.final_norm = "ln_f",
	.head = "lm_head",
	.layers = "h",
	.norms = {"input_layernorm", "post_attention_layernorm"},
	.operators = {[FP_QUERY] = "self_attention.query_key_value",
				  [FP_KEY] = "self_attention.query_key_value",
				  [FP_VALUE] = "self_attention.query_key_value",
				  [FP_OUTPUT] = "self_attention.dense",
				  [FP_UP] = "mlp.dense_h_to_4h",
				  [FP_DOWN] = "mlp.dense_4h_to_h"},
};
