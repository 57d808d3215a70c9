/* SPDX-License-Identifier: Apache-2.0 */
/* opt.c: OPT. All sizes are pre-norm models, except 350M, which is post-norm and has a narrower embedding. */
#include "model/architecture.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_integer(reader, "num_hidden_layers", 1, FP_MAX_LAYERS, &config->layers));
	FP_TRY(fp_config_integer(reader, "hidden_size", 1, FP_MAX_DIMENSION, &config->hidden));
	FP_TRY(fp_config_integer(reader, "num_attention_heads", 1, FP_MAX_DIMENSION, &config->heads));
	FP_TRY(fp_config_integer(reader, "ffn_dim", 1, FP_MAX_DIMENSION, &config->inner));
	FP_TRY(fp_config_integer(reader, "vocab_size", 1, FP_MAX_DIMENSION, &config->vocabulary));
	FP_TRY(fp_config_integer(reader, "max_position_embeddings", 1, FP_MAX_DIMENSION, &config->positions));
	FP_TRY(
		fp_config_integer_or(reader, "word_embed_proj_dim", 1, FP_MAX_DIMENSION, config->hidden, &config->embedding));
	FP_TRY(fp_config_activation_or(reader, "activation_function", FP_RELU, &config->activation));
	FP_TRY(fp_config_flag_or(reader, "do_layer_norm_before", true, &config->pre_norm));
	FP_TRY(fp_config_flag_or(reader, "layer_norm_elementwise_affine", true, &config->norm_affine));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", true, &config->tied));
	bool bias;
	FP_TRY(fp_config_flag_or(reader, "enable_bias", true, &bias));
	bool removed; /* the final norm; early conversions lack it */
	FP_TRY(fp_config_flag_or(reader, "_remove_final_layer_norm", false, &removed));

	if (config->hidden % config->heads != 0) {
		status = fp_config_fail(reader, "num_attention_heads", "must divide hidden_size, but %lld does not divide %lld",
								(long long)config->heads, (long long)config->hidden);
		goto cleanup;
	}
	config->kv_heads = config->heads;
	config->head_dim = config->hidden / config->heads;
	config->norm = FP_LAYER_NORM;
	config->norm_bias = true;
	config->sum_norm = !config->pre_norm;
	config->norm_epsilon = 1e-5F; /* not in the config: torch's default */
	config->final_norm = config->pre_norm && !removed;
	config->qkv_bias = config->output_bias = config->mlp_bias = bias;
	config->position_offset = 2; /* the original training left the first two rows unused */
cleanup:
	return status;
}

const fp_architecture fp_architecture_opt = {
	.name = "OPTForCausalLM",
	.model_type = "opt",
	.read_config = read_config,
	/* Published .bin files were saved from different classes of the same model. */
	.prefixes = {"model.decoder.", "decoder.", ""},
	.embedding = "embed_tokens",
	.positions = "embed_positions",
	.project_in = "project_in",
	.project_out = "project_out",
	.final_norm = "final_layer_norm",
	.head = "lm_head",
	.layers = "layers",
	.operators = {[FP_QUERY] = "self_attn.q_proj",
				  [FP_KEY] = "self_attn.k_proj",
				  [FP_VALUE] = "self_attn.v_proj",
				  [FP_OUTPUT] = "self_attn.out_proj",
				  [FP_UP] = "fc1",
				  [FP_DOWN] = "fc2"},
	.norms = {"self_attn_layer_norm", "final_layer_norm"},
};
