/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h: a decoder-only transformer, one layer in memory at a time.
 *
 * An architecture is a row of a table (architecture.h): a function that reads its config.json into the switches below
 * and a table of tensor names. Everything else is shared.
 */
#ifndef FP_MODEL_MODEL_H
#define FP_MODEL_MODEL_H

#include "backend/backend.h"
#include "checkpoint/overlay.h"

typedef enum fp_rope_scaling { FP_ROPE_PLAIN, FP_ROPE_LINEAR, FP_ROPE_LLAMA3 } fp_rope_scaling;

typedef struct fp_model_config {
	int64_t layers, hidden, heads, kv_heads, head_dim, inner; /* inner: width of the feed-forward part */
	int64_t vocabulary, positions;
	int64_t embedding; /* width of the token embedding; differs from hidden only with project_in/out (OPT-350M) */
	fp_norm_kind norm;
	float norm_epsilon;
	bool norm_affine;
	bool pre_norm;   /* norm before each block (all but OPT-350M) */
	bool final_norm; /* after the last layer */
	fp_activation activation;
	bool gated; /* gate and up, else fc1 alone */
	bool qkv_bias, output_bias, mlp_bias;
	bool head_norm; /* RMSNorm on each head of q and k (Qwen3) */
	bool tied;      /* the head is the token embedding */
	bool rotary;    /* else learned positions with an offset */
	int64_t position_offset;
	double rope_theta;
	fp_rope_scaling rope_scaling;
	double rope_factor, rope_low, rope_high;
	int64_t rope_original;
	int64_t window;      /* sliding attention window; 0: none */
	int64_t window_from; /* the first layer that has it; those before see everything */
} fp_model_config;

/* The operators of a layer, in the order in which they are pruned. Gated models have all seven, others no FP_GATE. */
typedef enum fp_role { FP_QUERY, FP_KEY, FP_VALUE, FP_OUTPUT, FP_GATE, FP_UP, FP_DOWN, FP_ROLE_COUNT } fp_role;

/* Operators that read the same input: {q,k,v} {o} {gate,up | fc1} {down | fc2}. */
enum { FP_GROUP_COUNT = 4 };

typedef struct fp_model fp_model;

fp_status fp_model_open(fp_model **out, fp_backend *be, const fp_checkpoint *checkpoint);
void fp_model_close(fp_model *model); /* NULL is allowed */
const fp_model_config *fp_model_get_config(const fp_model *model);
const char *fp_model_architecture(const fp_model *model); /* "LlamaForCausalLM". Borrowed */
fp_backend *fp_model_backend(const fp_model *model);
const fp_checkpoint *fp_model_checkpoint(const fp_model *model);
/* From now on layers are loaded with the overlay's tensors where it has them; NULL: as the checkpoint holds them. The
 * overlay is borrowed. It must not replace anything outside the decoder layers, which is loaded once and kept. */
void fp_model_set_overlay(fp_model *model, const fp_overlay *overlay);

/* The names of a layer's operator: its weight tensor in the checkpoint. NULL: this model has no such operator. */
const fp_tensor_info *fp_model_operator(const fp_model *model, int64_t layer, fp_role role);
/* Its bias; NULL: it has none. */
const fp_tensor_info *fp_model_operator_bias(const fp_model *model, int64_t layer, fp_role role);
/* The type in which an operator's weights are held on the device: the checkpoint's where products round to 16 bits
 * anyway, so that half the memory does; else F32. */
fp_dtype fp_model_held_type(const fp_model *model, const fp_tensor_info *tensor);
/* Group of a role, and whether the model has the role. */
int fp_role_group(fp_role role);
const char *fp_role_name(fp_role role); /* "q", "k", "v", "o", "gate", "up", "down" */

/* The window length where none is asked for: the model's positions, but no more than 8192 (long-context models were
 * never reported at their full length). */
int64_t fp_model_default_length(const fp_model *model);
/* Fails when windows of this length are beyond the model's positions; the message gives the limit. */
fp_status fp_model_check_length(const fp_model *model, int64_t length);

/* Of attention in a layer, one that sees everything where there is such; for planning. */
fp_attention_shape fp_model_attention_shape(const fp_model *model, int64_t sequences, int64_t length);

/* Tokens to hidden states: out[rows × hidden], rows = sequences × length, positions 0…length−1 in each sequence. */
fp_status fp_model_embed(fp_model *model, const int32_t *ids, int64_t sequences, int64_t length, fp_matrix out);

/* Hidden states after the last layer to cross-entropies: losses[i] (host) ← −log p(targets[i]); target −1 gives 0.
 * argmax (host) may be NULL. Works through the rows in blocks; the head is loaded on first use and kept until
 * fp_model_close(). */
fp_status fp_model_loss(fp_model *model, fp_matrix hidden, const int32_t *targets, float *losses, int32_t *argmax);
/* gradient[rows × hidden] ← that of the losses' sum by the hidden states after the last layer. Needs a backend with
 * gradients. */
fp_status fp_model_loss_gradient(fp_model *model, fp_matrix hidden, const int32_t *targets, fp_matrix gradient);
/* Bytes that the head and its work space take once they are loaded, for planning; and giving them back. */
int64_t fp_model_head_bytes(const fp_model *model);
void fp_model_drop_head(fp_model *model);
/* The logits themselves, for a few rows: out[rows × vocabulary] on the device. */
fp_status fp_model_logits(fp_model *model, fp_matrix hidden, fp_matrix out);

#endif
