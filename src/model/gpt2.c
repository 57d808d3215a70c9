/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2.c: GPT-2: OPT's layer with GELU; q, k and v in one tensor, and all operators stored as inputs × outputs. */
#include "model/architecture.h"

/* Values that change the computation and that no published model has. */
static fp_status refuse_variants(const fp_config_reader *reader)
{
	fp_status status;
	bool scaled, by_layer, crossed;
	FP_TRY(fp_config_flag_or(reader, "scale_attn_weights", true, &scaled));
	FP_TRY(fp_config_flag_or(reader, "scale_attn_by_inverse_layer_idx", false, &by_layer));
	FP_TRY(fp_config_flag_or(reader, "add_cross_attention", false, &crossed));
	if (!scaled)
		status = fp_config_fail(reader, "scale_attn_weights", "must be true, but is false");
	else if (by_layer)
		status = fp_config_fail(reader, "scale_attn_by_inverse_layer_idx", "must be false, but is true");
	else if (crossed)
		status = fp_config_fail(reader, "add_cross_attention", "must be false: there are no encoders here");
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	double epsilon;
	FP_TRY(fp_config_integer(reader, "n_layer", 1, FP_MAX_LAYERS, &config->layers));
	FP_TRY(fp_config_integer(reader, "n_embd", 1, FP_MAX_DIMENSION / 4, &config->hidden));
	FP_TRY(fp_config_integer(reader, "n_head", 1, FP_MAX_DIMENSION, &config->heads));
	FP_TRY(fp_config_integer_or(reader, "n_inner", 1, FP_MAX_DIMENSION, 4 * config->hidden, &config->inner));
	FP_TRY(fp_config_integer(reader, "vocab_size", 1, FP_MAX_DIMENSION, &config->vocabulary));
	FP_TRY(fp_config_integer(reader, "n_positions", 1, FP_MAX_DIMENSION, &config->positions));
	FP_TRY(fp_config_activation_or(reader, "activation_function", FP_GELU_TANH, &config->activation));
	FP_TRY(fp_config_positive_or(reader, "layer_norm_epsilon", 1e-5, &epsilon));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", true, &config->tied));
	FP_TRY(refuse_variants(reader));
	FP_TRY(fp_config_divide_heads(reader, "n_head", config));
	config->embedding = config->hidden;
	config->kv_heads = config->heads;
	config->norm = FP_LAYER_NORM;
	config->norm_epsilon = (float)epsilon;
	config->norm_affine = config->norm_bias = config->pre_norm = config->final_norm = true;
	config->qkv_bias = config->output_bias = config->mlp_bias = true;
	config->qkv_layout = FP_QKV_STACKED;
cleanup:
	return status;
}

const fp_architecture fp_architecture_gpt2 = {
	.name = "GPT2LMHeadModel",
	.model_type = "gpt2",
	.read_config = read_config,
	.prefixes = {"transformer.", ""},
	.embedding = "wte",
	.positions = "wpe",
	.final_norm = "ln_f",
	.head = "lm_head",
	.layers = "h",
	.norms = {"ln_1", "ln_2"},
	.transposed = true,
	.operators = {[FP_QUERY] = "attn.c_attn",
				  [FP_KEY] = "attn.c_attn",
				  [FP_VALUE] = "attn.c_attn",
				  [FP_OUTPUT] = "attn.c_proj",
				  [FP_UP] = "mlp.c_fc",
				  [FP_DOWN] = "mlp.c_proj"},
};
