/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma.c: Gemma 1, 2 and 3 (text): LLaMA's layer with scaled embeddings and norms that multiply by 1 + weight. Gemma 2
 * and 3 also normalise what each block adds, and most layers have a sliding window; Gemma 2 caps scores and logits, and
 * Gemma 3 normalises queries and keys and has other rotary positions where the window slides. Of its models that see
 * images too, the text part is a Gemma 3 as the others; the rest is left as it is.
 */
#include "model/llama_like.h"

#include <math.h>

static fp_status read_common(const fp_config_reader *reader, const fp_llama_defaults *defaults, fp_model_config *config)
{
	fp_status status;
	bool both_ways;
	FP_TRY(fp_config_llama_like(reader, defaults, config));
	FP_TRY(fp_config_flag_or(reader, "attention_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_flag_or(reader, "use_bidirectional_attention", false, &both_ways));
	if (both_ways)
		FP_TRY(
			fp_config_fail(reader, "use_bidirectional_attention", "must be false: only causal models are supported"));
	config->output_bias = config->qkv_bias;
	config->norm_plus_one = true;
	config->embedding_scale = (float)sqrt((double)config->hidden);
cleanup:
	return status;
}

static fp_status read_gemma(const fp_config_reader *reader, fp_model_config *config)
{
	static const fp_llama_defaults defaults = {
		.activation = FP_GELU_TANH, .positions = 8192, .kv_heads = 16, .head_dim = 256, .tied = true};
	fp_status status = read_common(reader, &defaults, config);
	if (config->activation == FP_GELU) /* what "gelu" means in the first configs */
		config->activation = FP_GELU_TANH;
	return status;
}

/* *out ← a cap; null: none */
static fp_status read_cap(const fp_config_reader *reader, const char *key, double fallback, float *out)
{
	double cap;
	fp_status status = fp_config_positive_or(reader, key, fp_config_is_null(reader, key) ? 0 : fallback, &cap);
	*out = (float)cap;
	return status;
}

/* What Gemma 2 and 3 share. */
static fp_status read_later(const fp_config_reader *reader, double logit_cap, fp_model_config *config)
{
	fp_status status;
	double scalar;
	FP_TRY(fp_config_positive_or(reader, "query_pre_attn_scalar", 256, &scalar));
	FP_TRY(read_cap(reader, "final_logit_softcapping", logit_cap, &config->logit_cap));
	config->attention_scale = (float)(1 / sqrt(scalar));
	config->branch_norm = true;
cleanup:
	return status;
}

static fp_status read_gemma2(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_GELU_TANH,
											   .activation_key = "hidden_activation",
											   .positions = 8192,
											   .kv_heads = 4,
											   .head_dim = 256,
											   .tied = true};
	FP_TRY(read_common(reader, &defaults, config));
	FP_TRY(read_later(reader, 30, config));
	FP_TRY(read_cap(reader, "attn_logit_softcapping", 50,
					&config->score_cap)); /* Gemma 3 has the key too, without effect */
	FP_TRY(fp_config_window_period(reader, NULL, 2, config));
cleanup:
	return status;
}

static fp_status read_gemma3(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	double local;
	static const fp_llama_defaults defaults = {.activation = FP_GELU_TANH,
											   .activation_key = "hidden_activation",
											   .positions = 131072,
											   .heads = 8,
											   .vocabulary = 262208,
											   .kv_heads = 4,
											   .head_dim = 256,
											   .theta = 1000000,
											   .tied = true};
	FP_TRY(read_common(reader, &defaults, config));
	FP_TRY(read_later(reader, 0, config));
	FP_TRY(fp_config_window_period(reader, "sliding_window_pattern", 6, config));
	FP_TRY(fp_config_positive_or(reader, "rope_local_base_freq", 10000, &local)); /* transformers 4 */
	FP_TRY(fp_config_rope_by_layer(reader, defaults.theta, local, config));
	config->head_norm = FP_HEADS_NORM_EACH;
cleanup:
	return status;
}

static fp_status read_gemma3_text(const fp_config_reader *reader, fp_model_config *config)
{
	return fp_config_images(reader, read_gemma3, config);
}

#define GEMMA2_NORMS                                                                                                   \
	.norms = {"input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"}

const fp_architecture fp_architecture_gemma = {
	.name = "GemmaForCausalLM",
	.model_type = "gemma",
	.read_config = read_gemma,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_gemma2 = {
	.name = "Gemma2ForCausalLM",
	.model_type = "gemma2",
	.read_config = read_gemma2,
	GEMMA2_NORMS,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_gemma3 = {
	.name = "Gemma3ForCausalLM",
	.model_type = "gemma3_text",
	.read_config = read_gemma3,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	GEMMA2_NORMS,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_gemma3_images = {
	.name = "Gemma3ForConditionalGeneration",
	.model_type = "gemma3",
	.read_config = read_gemma3_text,
	.query_norm = "self_attn.q_norm",
	.key_norm = "self_attn.k_norm",
	GEMMA2_NORMS,
	FP_LLAMA_LAYER_NAMES,
	/* transformers 5's names, and those of the published files */
	.prefixes = {"model.language_model.", "language_model.model."},
	.head = "lm_head",
	.old_head = "language_model.lm_head",
};
