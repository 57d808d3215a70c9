/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h: a decoder-only transformer with one layer in memory at a time.
 *
 * An architecture (architecture.h) is a function that turns config.json into fp_model_config, and a
 * table of tensor names. All architectures share the rest of the code.
 */
#ifndef FP_MODEL_MODEL_H
#define FP_MODEL_MODEL_H

#include "backend/backend.h"
#include "checkpoint/overlay.h"

/* Rotary positions: entry pair i of a head turns by position · frequencies[i] (rotary.c). */
enum { FP_MAX_ROPE_PAIRS = 512 };
typedef struct fp_rope {
	int64_t pairs; /* the first 2·pairs entries of a head turn */
	float frequencies[FP_MAX_ROPE_PAIRS];
	int64_t original; /* longrope: longer sequences turn by long_frequencies; 0: none do */
	float long_frequencies[FP_MAX_ROPE_PAIRS];
	float magnitude; /* of cosines and sines */
} fp_rope;

typedef enum fp_head_norm {
	FP_HEADS_PLAIN,
	FP_HEADS_NORM_EACH, /* one weight for each head's entries (Qwen3) */
	FP_HEADS_NORM_WHOLE /* over all heads together (OLMo 2) */
} fp_head_norm;

/* How q, k and v are stored. */
typedef enum fp_qkv_layout {
	FP_QKV_SPLIT,   /* a tensor each */
	FP_QKV_STACKED, /* one tensor: all rows of q, of k, of v (Phi-3, GPT-2) */
	FP_QKV_BY_HEAD  /* one tensor: for each head of k, its heads of q, then k, then v (GPT-NeoX, BLOOM, Falcon) */
} fp_qkv_layout;

/* Multi-head latent attention (DeepSeek V2): queries, keys and values are made of narrow vectors, the latents. With x the
 * input of the attention part and, for each head, ‖ for entries one behind the other:
 *
 *     u       = norm(x Wq_aᵀ)
 *     q       = u Wq_bᵀ, or x Wqᵀ                    head_dim entries for each head, of which the last `turned` turn
 *     c ‖ r   = x Wkv_aᵀ                             rank ‖ turned
 *     k' ‖ v  = norm(c) Wkv_bᵀ                       head_dim − turned ‖ value entries for each head
 *     k       = k' ‖ r                               r is the same for all heads, and turns
 */
typedef struct fp_latent_config {
	int64_t rank;       /* of c; 0: the model has no latents, and all the others are 0 */
	int64_t query_rank; /* of u; 0: queries are made of x */
	int64_t turned, value;
} fp_latent_config;

#define FP_MAX_LAYERS ((int64_t)1 << 16)

/* A feed-forward part of which a router chooses a few gated blocks, the experts, for each token:
 *
 *     p = softmax(y Wrouterᵀ), or σ(y Wrouterᵀ)
 *     what is added = Σ w_e expert_e(y) + shared(y), or + σ(y·g) shared(y)    over the `active` experts of largest p + b
 *
 * with w_e = s p_e, or s p_e / max(Σ p_e, least). With groups, experts are chosen from those groups only whose two largest
 * p + b have the largest sums, or whose largest p + b are the largest. */
enum { FP_MAX_EXPERTS = 4096, FP_MAX_EXPERT_GROUPS = 256 };
typedef struct fp_experts_config {
	int64_t count, active;            /* count 0: no layer has experts */
	int64_t inner;                    /* width of an expert */
	int64_t shared;                   /* width of the expert that reads every token; 0: there is none */
	bool shared_gated;                /* it has g */
	bool stacked;                     /* all experts are in one tensor, each with gate and up one after the other */
	bool sigmoid;                     /* p is σ of the logits, else softmax */
	bool corrected;                   /* there is b */
	bool normalised;                  /* weights are divided by their sum */
	float least;                      /* of the sum */
	float scale;                      /* s; 0: 1 */
	int64_t groups, active_groups;    /* of count/groups experts each; 0: experts are chosen from all */
	bool groups_by_largest;           /* groups are compared by their largest p + b alone */
	uint8_t dense[FP_MAX_LAYERS / 8]; /* bit by layer: one block of fp_model_config.inner in place of experts */
} fp_experts_config;

/* The description of a decoder block that the forward pass, the backward pass, the statistics and the output read. What
 * is 0 or false by default is off. */
typedef struct fp_model_config {
	int64_t layers, hidden, heads, kv_heads, head_dim, inner; /* inner: width of the feed-forward block */
	int64_t vocabulary, positions;
	int64_t embedding; /* width of the token embedding; differs from hidden only with project_in/out (OPT-350M) */
	fp_norm_kind norm;
	float norm_epsilon;
	bool norm_affine;
	bool norm_bias;      /* an affine norm has a bias too */
	bool norm_plus_one;  /* norms multiply by 1 + weight (Gemma) */
	bool pre_norm;       /* norm before each block */
	bool branch_norm;    /* norm on each block's output, before it is added (Gemma 2, OLMo 2) */
	bool sum_norm;       /* norm after each sum (OPT-350M); excludes the two above */
	bool parallel;       /* both blocks read the layer's input: hidden + attention + feed-forward */
	bool shared_norm;    /* parallel blocks have one norm */
	bool embedding_norm; /* on the embedding (BLOOM) */
	bool final_norm;     /* after the last layer */
	fp_activation activation;
	bool gated; /* the feed-forward block has gate and up, else only fc1 */
	bool qkv_bias, output_bias, mlp_bias;
	bool head_bias;         /* of the language model's head */
	fp_head_norm head_norm; /* RMSNorm on q and k */
	fp_qkv_layout qkv_layout;
	bool gate_up_stacked; /* one tensor: all rows of gate, then of up */
	bool tied;            /* the head is the token embedding */
	bool overrides_tie;   /* config.json says so, but the file has a head that differs */
	bool sees_images;     /* parts that are not pruned write into the residual stream too */
	bool rotary, alibi;   /* else learned positions, which start at row position_offset */
	bool alibi_rounded;   /* in BF16 and times the scale of the scores (Falcon) */
	int64_t position_offset;
	fp_pairing rope_pairing;
	uint8_t unrotated[FP_MAX_LAYERS / 8]; /* bit by layer: heads do not turn, in spite of `rotary` */
	fp_rope rope[2];                      /* [1]: of layers with a sliding window, if local_rope */
	bool local_rope;
	int64_t window;                                     /* sliding attention window; 0: none */
	uint8_t full[FP_MAX_LAYERS / 8];                    /* bit by layer: attention is full in spite of the window */
	float attention_scale;                              /* on the scores; 0: 1/√head_dim */
	float score_cap, logit_cap;                         /* c·tanh(x/c) on scores and logits; 0: none */
	float embedding_scale, residual_scale, logit_scale; /* multipliers; 0: 1 */
	fp_latent_config latent;
	fp_experts_config experts;
	const char *norm_names[2]; /* in place of the architecture's, if not NULL; borrowed */
} fp_model_config;

/* The attention window of a layer; 0: none. */
static inline int64_t fp_config_window(const fp_model_config *config, int64_t layer)
{
	return config->full[layer / 8] >> (layer % 8) & 1 ? 0 : config->window;
}
/* Whether the heads of a layer turn by their positions. */
static inline bool fp_config_rotates(const fp_model_config *config, int64_t layer)
{
	return config->rotary && !(config->unrotated[layer / 8] >> (layer % 8) & 1);
}
/* Whether a layer has experts. */
static inline bool fp_config_has_experts(const fp_model_config *config, int64_t layer)
{
	return config->experts.count > 0 && !(config->experts.dense[layer / 8] >> (layer % 8) & 1);
}
/* The factor of what a block adds to the residual stream. */
static inline float fp_config_residual_scale(const fp_model_config *config)
{
	return config->residual_scale > 0 ? config->residual_scale : 1.0F;
}
/* Whether a block's output is changed before it is added. */
static inline bool fp_config_has_branches(const fp_model_config *config)
{
	return config->branch_norm || fp_config_residual_scale(config) != 1.0F;
}

/* Entries of a head in attention's output, of which the output operator reads the first. */
static inline int64_t fp_config_value_dim(const fp_model_config *config)
{
	return config->latent.rank > 0 ? config->latent.value : config->head_dim;
}

/* The operators of a layer in pruning order. Only gated models have FP_GATE. Those that make latents, and those that read
 * them, are in place of FP_KEY, FP_VALUE and perhaps FP_QUERY (fp_latent_config). In a layer with experts, FP_GATE, FP_UP
 * and FP_DOWN are those of the expert that reads every token. */
typedef enum fp_role {
	FP_QUERY,
	FP_KEY,
	FP_VALUE,
	FP_QUERY_A,     /* q_a */
	FP_KEY_VALUE_A, /* kv_a */
	FP_QUERY_B,     /* q_b */
	FP_KEY_VALUE_B, /* kv_b */
	FP_OUTPUT,
	FP_GATE,
	FP_UP,
	FP_DOWN,
	FP_ROLE_COUNT
} fp_role;

/* The number of an operator in its layer: an fp_role, then gate, up and down of each expert. */
enum { FP_EXPERT_ROLES = 3 };
static inline int fp_expert_operator(int64_t expert, fp_role role)
{
	return FP_ROLE_COUNT + (int)(FP_EXPERT_ROLES * expert) + ((int)role - (int)FP_GATE);
}
/* −1: it belongs to no expert. */
static inline int64_t fp_operator_expert(int number)
{
	return number < FP_ROLE_COUNT ? -1 : (number - FP_ROLE_COUNT) / FP_EXPERT_ROLES;
}
static inline fp_role fp_operator_role(int number)
{
	return (fp_role)(number < FP_ROLE_COUNT ? number : FP_GATE + (number - FP_ROLE_COUNT) % FP_EXPERT_ROLES);
}

/* The norms of a layer: before attention, before the feed-forward part, and behind each. */
enum { FP_NORM_ATTENTION, FP_NORM_FEED, FP_NORM_BEHIND_ATTENTION, FP_NORM_BEHIND_FEED, FP_NORM_COUNT };

/* Groups of operators that read the same input, in the order of the forward pass. Only models with latents have operators
 * in the second and third. The operators of each expert read rows of their own, at the same time as those of the group with
 * their role. */
enum {
	FP_GROUP_ATTENTION, /* q, k, v | q_a or q, kv_a */
	FP_GROUP_QUERY,     /* q_b */
	FP_GROUP_KEY_VALUE, /* kv_b */
	FP_GROUP_OUTPUT,    /* o */
	FP_GROUP_FEED,      /* gate, up | fc1 */
	FP_GROUP_DOWN,      /* down | fc2 */
	FP_GROUP_COUNT
};

typedef struct fp_model fp_model;

fp_status fp_model_open(fp_model **out, fp_backend *be, const fp_checkpoint *checkpoint);
void fp_model_close(fp_model *model); /* NULL is allowed */
const fp_model_config *fp_model_get_config(const fp_model *model);
const char *fp_model_architecture(const fp_model *model); /* "LlamaForCausalLM". Borrowed */
fp_backend *fp_model_backend(const fp_model *model);
const fp_checkpoint *fp_model_checkpoint(const fp_model *model);
/* Layers loaded after this call use the overlay's tensors where it has them; NULL: the checkpoint's
 * only. Borrowed. It must not replace tensors outside the decoder layers: those are loaded once. */
void fp_model_set_overlay(fp_model *model, const fp_overlay *overlay);

/* Operators of a layer, with those that it lacks: their numbers are below this. */
int fp_model_operators(const fp_model *model);
/* The weight tensor of a layer's operator, outputs × inputs: of the checkpoint, or a part of one (tensor_part.h). NULL: the
 * model has no such operator. */
const fp_tensor_info *fp_model_operator(const fp_model *model, int64_t layer, int number);
/* Its bias, or NULL. */
const fp_tensor_info *fp_model_operator_bias(const fp_model *model, int64_t layer, int number);
/* The type of an operator's weights on the device: the checkpoint's if products round to 16 bits
 * anyway, which halves the memory; else F32. */
fp_dtype fp_model_held_type(const fp_model *model, const fp_tensor_info *tensor);
/* Of the role of an operator's number. */
int fp_role_group(int number);
const char *fp_role_name(int number); /* "q", "k", "v", "q_a", "kv_a", "q_b", "kv_b", "o", "gate", "up", "down" */
/* Whether the model has operators in a group. */
bool fp_model_has_group(const fp_model *model, int group);

/* The default window length: the model's positions, but at most 8192, because published results for
 * long-context models do not use their full length. */
int64_t fp_model_default_length(const fp_model *model);
/* Fails if the length exceeds the model's positions; the message states the limit. */
fp_status fp_model_check_length(const fp_model *model, int64_t length);

/* For planning: without a sliding window if some layer has full attention. */
fp_attention_shape fp_model_attention_shape(const fp_model *model, int64_t sequences, int64_t length);

/* out [sequences·length × hidden] ← the hidden states before the first layer; positions are 0…length−1. */
fp_status fp_model_embed(fp_model *model, const int32_t *ids, int64_t sequences, int64_t length, fp_matrix out);
/* The same for positions first[s] and on of sequence s; NULL: 0 and on. */
fp_status fp_model_embed_at(fp_model *model, const int32_t *ids, int64_t sequences, int64_t length,
							const int64_t *first, fp_matrix out);
/* Bytes that it leaves on the device for later calls, for planning. */
int64_t fp_model_embedding_bytes(const fp_model *model);

/* losses[i] (host) ← −log p(targets[i]) from the hidden states after the last layer; target −1 gives 0.
 * argmax (host) may be NULL. The head is loaded on first use and kept until fp_model_drop_head(). */
fp_status fp_model_loss(fp_model *model, fp_matrix hidden, const int32_t *targets, float *losses, int32_t *argmax);
/* *logits ← a view [rows × vocabulary] of the logits of up to fp_model_logit_rows() hidden states after the last layer,
 * valid until the head is used again. Loads and keeps the head, as fp_model_loss() does. */
fp_status fp_model_logits(fp_model *model, fp_matrix hidden, fp_matrix *logits);
int64_t fp_model_logit_rows(const fp_model *model);
/* What two models predict for the same tokens: [0] the dense model, [1] the pruned one. On the host. */
typedef struct fp_divergence_rows {
	float *kl;          /* KL(dense‖pruned) of the distributions of the next token */
	float *losses[2];   /* as of fp_model_loss() */
	int32_t *argmax[2]; /* the most likely next token */
} fp_divergence_rows;
/* From the hidden states of the same tokens behind the last layers; both models may be the same one. Loads and keeps both
 * heads, as fp_model_loss() does. The vocabularies must have the same size. */
fp_status fp_model_divergence(fp_model *dense, fp_matrix dense_hidden, fp_model *pruned, fp_matrix pruned_hidden,
							  const int32_t *targets, const fp_divergence_rows *out);
/* gradient [rows × hidden] ← the gradient of the sum of losses with respect to `hidden`. Needs a
 * backend with gradients. */
fp_status fp_model_loss_gradient(fp_model *model, fp_matrix hidden, const int32_t *targets, fp_matrix gradient);
/* gradient ← the gradient of Σ KL(dense‖pruned) with respect to the pruned model's hidden states after its last layer; the
 * arguments are those of fp_model_divergence(). Needs a backend with gradients. */
fp_status fp_model_divergence_gradient(fp_model *dense, fp_matrix dense_hidden, fp_model *pruned,
									   fp_matrix pruned_hidden, fp_matrix gradient);
/* Loads the head and holds its weights for decoding; only logits can be computed then. */
fp_status fp_model_hold_head(fp_model *model);
/* What is held; all zero without that. Borrowed. */
const fp_held *fp_model_held_head(const fp_model *model);
/* Bytes of the head and its workspace, for planning. */
int64_t fp_model_head_bytes(const fp_model *model);
/* Frees them. fp_model_close() does so too. */
void fp_model_drop_head(fp_model *model);

#endif
