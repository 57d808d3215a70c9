/* SPDX-License-Identifier: Apache-2.0 */
/* llama_like.h: shared by families built on LLaMA's layer: RMSNorm, rotary positions, a gated
 * feed-forward block, grouped-query attention and LLaMA's tensor names. */
#ifndef FP_MODEL_LLAMA_LIKE_H
#define FP_MODEL_LLAMA_LIKE_H

#include "model/architecture.h"

/* What differs between families: transformers' defaults for absent keys, and two switches. */
typedef struct fp_llama_defaults {
	int64_t positions;
	int64_t heads, vocabulary; /* 0: the config must have them */
	int64_t kv_heads;          /* 0: as many as heads */
	int64_t head_dim;          /* 0: hidden_size / heads */
	double epsilon;            /* of norms; 0: 1e-6 */
	double theta;              /* of rotary positions; 0: 10000 */
	double part;               /* of a head that turns; 0: all of it, and the config cannot say otherwise */
	fp_activation activation;
	const char *activation_key; /* NULL: "hidden_act" */
	const char *head_dim_key;   /* NULL: "head_dim" */
	const char *epsilon_key;    /* NULL: "rms_norm_eps", or "layer_norm_eps" */
	bool tied;
	bool layer_norm; /* LayerNorm with biases, else RMSNorm */
} fp_llama_defaults;

/* Reads everything but biases and sliding windows. */
fp_status fp_config_llama_like(const fp_config_reader *reader, const fp_llama_defaults *defaults,
							   fp_model_config *config);

/* Reads sliding_window, and which layers have none: every period-th, unless layer_types lists them. The period may have a
 * key (NULL: it has none). */
fp_status fp_config_window_period(const fp_config_reader *reader, const char *period_key, int64_t period,
								  fp_model_config *config);

/* Reads rope_parameters by kind of layer. Otherwise what fp_config_llama_like() has read is for full attention, and layers
 * with a window have plain positions with the frequency local_theta. */
fp_status fp_config_rope_by_layer(const fp_config_reader *reader, double theta, double local_theta,
								  fp_model_config *config);

/* Reads Qwen's use_sliding_window, sliding_window, and layer_types or max_window_layers. */
fp_status fp_config_qwen_window(const fp_config_reader *reader, fp_model_config *config);

/* Fails if queries, keys and values are clipped (OLMo). */
fp_status fp_config_no_clip(const fp_config_reader *reader);

/* Of a model that sees images, only the text part is pruned. Reads it by `read_text` from the section text_config or, in
 * older files, from the whole config. */
fp_status fp_config_images(const fp_config_reader *reader,
						   fp_status (*read_text)(const fp_config_reader *reader, fp_model_config *config),
						   fp_model_config *config);

/* For a row of the architecture table. */
#define FP_LLAMA_NORM_NAMES .norms = {"input_layernorm", "post_attention_layernorm"}
/* Of a mixture of experts; a correction is named by the family. */
#define FP_DEEPSEEK_EXPERT_NAMES                                                                                       \
	.router = "mlp.gate", .experts = "mlp.experts", .expert_operators = {"gate_proj", "up_proj", "down_proj"},         \
	.shared = "mlp.shared_experts"
#define FP_LATENT_TENSOR_NAMES                                                                                         \
	.operators[FP_QUERY_A] = "self_attn.q_a_proj", .operators[FP_KEY_VALUE_A] = "self_attn.kv_a_proj_with_mqa",        \
	.operators[FP_QUERY_B] = "self_attn.q_b_proj", .operators[FP_KEY_VALUE_B] = "self_attn.kv_b_proj",                 \
	.query_latent_norm = "self_attn.q_a_layernorm", .latent_norm = "self_attn.kv_a_layernorm"
#define FP_LLAMA_TENSOR_NAMES .prefixes = {"model.", ""}, .head = "lm_head", FP_LLAMA_LAYER_NAMES
#define FP_LLAMA_LAYER_NAMES                                                                                           \
	.embedding = "embed_tokens", .final_norm = "norm", .layers = "layers",                                             \
	.operators = {                                                                                                     \
		[FP_QUERY] = "self_attn.q_proj",  [FP_KEY] = "self_attn.k_proj", [FP_VALUE] = "self_attn.v_proj",              \
		[FP_OUTPUT] = "self_attn.o_proj", [FP_GATE] = "mlp.gate_proj",   [FP_UP] = "mlp.up_proj",                      \
		[FP_DOWN] = "mlp.down_proj",                                                                                   \
	}

#endif
