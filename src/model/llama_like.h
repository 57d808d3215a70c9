/* SPDX-License-Identifier: Apache-2.0 */
/* llama_like.h: what the families built on LLaMA's layer share: RMSNorm, rotary positions, a gated feed-forward part,
 * key/value heads shared by groups of heads, and LLaMA's tensor names. */
#ifndef FP_MODEL_LLAMA_LIKE_H
#define FP_MODEL_LLAMA_LIKE_H

#include "model/architecture.h"

/* What transformers takes for a key that is absent; 0: the number of heads, hidden_size / heads. */
typedef struct fp_llama_defaults {
	int64_t positions, kv_heads, head_dim;
} fp_llama_defaults;

/* Everything but biases and sliding windows, which the families read differently. */
fp_status fp_config_llama_like(const fp_config_reader *reader, const fp_llama_defaults *defaults,
							   fp_model_config *config);

/* Qwen's keys of the sliding window: use_sliding_window, sliding_window, and layer_types or max_window_layers. */
fp_status fp_config_qwen_window(const fp_config_reader *reader, fp_model_config *config);

/* The names, for a row of the table. */
#define FP_LLAMA_TENSOR_NAMES                                                                                          \
	.prefixes = {"model.", ""}, .embedding = "embed_tokens", .final_norm = "norm", .head = "lm_head",                  \
	.layers = "layers", .norms = {"input_layernorm", "post_attention_layernorm"},                                      \
	.operators = {                                                                                                     \
		[FP_QUERY] = "self_attn.q_proj",  [FP_KEY] = "self_attn.k_proj", [FP_VALUE] = "self_attn.v_proj",              \
		[FP_OUTPUT] = "self_attn.o_proj", [FP_GATE] = "mlp.gate_proj",   [FP_UP] = "mlp.up_proj",                      \
		[FP_DOWN] = "mlp.down_proj",                                                                                   \
	}

#endif
