/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon.c: Falcon. 7B has parallel blocks with one norm and one head of k and v; 40B and 180B ("new decoder
 * architecture") two norms and several heads; the RW models have sequential blocks and ALiBi. q, k and v are in one
 * tensor, in three different orders.
 */
#include "model/architecture.h"

static fp_status read_blocks(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool newer, parallel;
	int64_t norms;
	FP_TRY(fp_config_flag_or(reader, "new_decoder_architecture", false, &newer));
	FP_TRY(fp_config_flag_or(reader, "parallel_attn", true, &parallel));
	FP_TRY(fp_config_integer_or(reader, "num_ln_in_parallel_attn", 1, 2, newer ? 2 : 1, &norms));
	if (newer && !parallel)
		FP_TRY(fp_config_fail(reader, "parallel_attn", "must be true in the new decoder architecture, but is false"));
	if (norms == 2 && !newer)
		FP_TRY(
			fp_config_fail(reader, "num_ln_in_parallel_attn", "must be 1 without new_decoder_architecture, but is 2"));
	config->parallel = parallel;
	config->shared_norm = parallel && norms == 1;
	if (parallel && norms == 2) {
		config->norm_names[0] = "ln_attn";
		config->norm_names[1] = "ln_mlp";
	}
cleanup:
	return status;
}

static fp_status read_heads(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool newer, one;
	FP_TRY(fp_config_flag_or(reader, "new_decoder_architecture", false, &newer));
	FP_TRY(fp_config_flag_or(reader, "multi_query", true, &one));
	config->kv_heads = !newer && one ? 1 : config->heads;
	if (newer)
		FP_TRY(fp_config_integer_or(reader, "num_kv_heads", 1, FP_MAX_DIMENSION, config->heads, &config->kv_heads));
	config->qkv_layout = !newer && one ? FP_QKV_STACKED : FP_QKV_BY_HEAD;
	FP_TRY(fp_config_divide_heads(reader, "num_attention_heads", config));
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	double epsilon;
	bool bias;
	FP_TRY(fp_config_integer(reader, "num_hidden_layers", 1, FP_MAX_LAYERS, &config->layers));
	FP_TRY(fp_config_integer(reader, "hidden_size", 1, FP_MAX_DIMENSION / 4, &config->hidden));
	FP_TRY(fp_config_integer(reader, "num_attention_heads", 1, FP_MAX_DIMENSION, &config->heads));
	FP_TRY(fp_config_integer_or(reader, "ffn_hidden_size", 1, FP_MAX_DIMENSION, 4 * config->hidden, &config->inner));
	FP_TRY(fp_config_integer(reader, "vocab_size", 1, FP_MAX_DIMENSION, &config->vocabulary));
	FP_TRY(fp_config_integer_or(reader, "max_position_embeddings", 1, FP_MAX_DIMENSION, 2048, &config->positions));
	FP_TRY(fp_config_activation_or(reader, "activation", FP_GELU, &config->activation));
	FP_TRY(fp_config_positive_or(reader, "layer_norm_epsilon", 1e-5, &epsilon));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", true, &config->tied));
	FP_TRY(fp_config_flag_or(reader, "bias", false, &bias));
	FP_TRY(fp_config_flag_or(reader, "alibi", false, &config->alibi));
	FP_TRY(read_blocks(reader, config));
	FP_TRY(read_heads(reader, config));
	if (!config->alibi)
		FP_TRY(fp_config_rope(reader, 10000, config));
	config->alibi_rounded = config->alibi;
	config->embedding = config->hidden;
	config->norm = FP_LAYER_NORM;
	config->norm_epsilon = (float)epsilon;
	config->norm_affine = config->norm_bias = config->pre_norm = config->final_norm = true;
	config->qkv_bias = config->output_bias = config->mlp_bias = bias;
cleanup:
	return status;
}

const fp_architecture fp_architecture_falcon = {
	.name = "FalconForCausalLM",
	.model_type = "falcon",
	.read_config = read_config,
	.prefixes = {"transformer.", ""},
	.embedding = "word_embeddings",
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
