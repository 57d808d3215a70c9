/* SPDX-License-Identifier: Apache-2.0 */
/*
 * architecture.h: the table of architectures. A row reads config.json into fp_model_config and names
 * the tensors. To add an architecture, add a file with its row and a line in architecture.c.
 */
#ifndef FP_MODEL_ARCHITECTURE_H
#define FP_MODEL_ARCHITECTURE_H

#include "model/config_reader.h"
#include "model/model.h"

enum { FP_MAX_PREFIXES = 4 };

/* Tensor names omit ".weight" and ".bias". NULL: the architecture has no such tensor. Which tensors a
 * model must have follows from its config. */
typedef struct fp_architecture {
	const char *name;       /* as in config.json's "architectures" */
	const char *model_type; /* for a config.json without "architectures" */
	/* Fills `config`, which is zeroed. The caller checks rules that all architectures share. */
	fp_status (*read_config)(const fp_config_reader *reader, fp_model_config *config);

	/* Candidates for the prefix of all names but the head's, ended by NULL; the first one under which
	 * the token embedding exists is used. */
	const char *prefixes[FP_MAX_PREFIXES];
	const char *embedding, *positions, *project_in, *project_out, *final_norm;
	const char *head, *old_head; /* old_head: its name in older checkpoints, or NULL */
	/* In a layer: prefix + layers + "." + index + "." + name */
	const char *layers;
	const char *operators[FP_ROLE_COUNT]; /* of q, k, v or gate, up in one tensor: the same name for each */
	bool transposed;                      /* operators are stored as inputs × outputs (GPT-2) */
	const char *norms[FP_NORM_COUNT];     /* before attention, before the feed-forward part, behind each */
	const char *embedding_norm;           /* outside the layers, as `embedding` */
	const char *query_norm, *key_norm;
	const char *query_latent_norm, *latent_norm; /* of u and c (fp_latent_config) */
	/* Of layers with experts: the router, the experts (each: experts + "." + index + "." + name), and the expert that
	 * reads every token (shared + "." + name) with its gate; what is added to scores (correction +
	 * ".e_score_correction_bias"), a vector, or a matrix with this many rows. */
	const char *router, *experts, *expert_operators[FP_EXPERT_ROLES], *shared, *shared_gate, *correction;
	int correction_rows;
	bool bare_experts; /* the names of stacks have no ".weight", and each may be stored as inputs × outputs */
} fp_architecture;

/* The row for a config.json, or an error that lists the supported architectures. */
fp_status fp_architecture_find(const fp_architecture **out, const fp_config_reader *reader);

/* Upper limit of a dimension: a product of two fits int64, and a matrix side fits BLAS's int. */
#define FP_MAX_DIMENSION ((int64_t)1 << 28)

/* Reads rope_theta and rope_scaling, or rope_parameters (transformers 5). head_dim and positions are set already. */
fp_status fp_config_rope(const fp_config_reader *reader, double default_theta, fp_model_config *config);
/* *out ← the factor of the scores that DeepSeek's models have if their positions are scaled: 1 if they are not. */
fp_status fp_config_rope_score_scale(const fp_config_reader *reader, double *out);
/* The same where a part of each head may turn if `partial_rotary_factor` is absent. */
fp_status fp_config_partial_rope(const fp_config_reader *reader, double default_theta, double default_part,
								 fp_model_config *config);
/* *out ← the positions of a section that has theta, type and parameters of one kind of layer (Gemma 3). */
fp_status fp_config_rope_section(const fp_config_reader *section, double theta, double part,
								 const fp_model_config *config, fp_rope *out);
/* Reads layer_types, a list of full_attention and sliding_attention, into config->full. */
fp_status fp_config_layer_types(const fp_config_reader *reader, fp_model_config *config);
/* What families with latents have if their config does not say it (fp_latent_config). */
typedef struct fp_latent_defaults {
	int64_t rank, query_rank;
	int64_t plain; /* entries of a head of q that do not turn */
	int64_t value; /* 0: hidden_size / heads */
} fp_latent_defaults;
/* Reads the sizes of latents and whether attention's operators have biases, after fp_config_llama_like(), which has read a
 * head's entries that turn in place of its size. */
fp_status fp_config_latents(const fp_config_reader *reader, const fp_latent_defaults *defaults,
							fp_model_config *config);
/* Marks a layer as one with full attention, or as one whose heads do not turn. */
void fp_config_set_full(fp_model_config *config, int64_t layer);
void fp_config_set_unrotated(fp_model_config *config, int64_t layer);
/* Reads the number of experts, and how many of them read a token. Without a default, 0, the config must have them. */
fp_status fp_config_experts(const fp_config_reader *reader, const char *count_key, int64_t count,
							const char *active_key, int64_t active, fp_model_config *config);
/* What families of the form of DeepSeek V3 have if their config does not say it: sigmoid scores with a correction, in
 * groups, with a factor, behind a few layers without experts. 0: count and active must be in the config, the others have a
 * default of their own. */
typedef struct fp_deepseek_defaults {
	int64_t count, active, first; /* first: layers without experts */
	int64_t inner, shared;        /* 0: 1408, 1 */
	int64_t groups, active_groups;
	double scale;
	bool normalised;
} fp_deepseek_defaults;
fp_status fp_config_deepseek_experts(const fp_config_reader *reader, const fp_deepseek_defaults *defaults,
									 fp_model_config *config);
/* transformers adds this to the sum of sigmoid scores, which changes nothing but a sum of 0. */
#define FP_LEAST_SCORES 1e-20F
/* Marks a layer as one without experts. */
void fp_config_set_dense(fp_model_config *config, int64_t layer);
/* config->inner ← 0 if every layer has experts. */
void fp_config_drop_inner(fp_model_config *config);
/* Reads mlp_only_layers and decoder_sparse_step: which layers have no experts (Qwen). */
fp_status fp_config_sparse_layers(const fp_config_reader *reader, fp_model_config *config);
/* config->head_dim ← hidden_size / num_attention_heads, which must divide. */
fp_status fp_config_divide_heads(const fp_config_reader *reader, const char *key, fp_model_config *config);

/* The table: X(NAME) is fp_architecture_NAME, which src/model/ has a file for. */
#define FP_ARCHITECTURES(X)                                                                                            \
	X(opt)                                                                                                             \
	X(llama)                                                                                                           \
	X(qwen2)                                                                                                           \
	X(qwen3)                                                                                                           \
	X(mistral)                                                                                                         \
	X(gemma)                                                                                                           \
	X(gemma2)                                                                                                          \
	X(gemma3)                                                                                                          \
	X(gemma3_images)                                                                                                   \
	X(phi3)                                                                                                            \
	X(olmo2)                                                                                                           \
	X(gpt_neox)                                                                                                        \
	X(gpt2)                                                                                                            \
	X(granite)                                                                                                         \
	X(stablelm)                                                                                                        \
	X(phi)                                                                                                             \
	X(falcon)                                                                                                          \
	X(bloom)                                                                                                           \
	X(cohere)                                                                                                          \
	X(cohere2)                                                                                                         \
	X(smollm3)                                                                                                         \
	X(olmo3)                                                                                                           \
	X(mixtral)                                                                                                         \
	X(qwen2_moe)                                                                                                       \
	X(qwen3_moe)                                                                                                       \
	X(glm)                                                                                                             \
	X(glm4)                                                                                                            \
	X(seed_oss)                                                                                                        \
	X(ernie4_5)                                                                                                        \
	X(exaone4)                                                                                                         \
	X(starcoder2)                                                                                                      \
	X(olmoe)                                                                                                           \
	X(qwen2_vl)                                                                                                        \
	X(qwen2_5_vl)                                                                                                      \
	X(qwen3_vl)                                                                                                        \
	X(mistral3)                                                                                                        \
	X(ministral)                                                                                                       \
	X(ministral3)                                                                                                      \
	X(olmo)                                                                                                            \
	X(glm4_moe)                                                                                                        \
	X(ernie4_5_moe)                                                                                                    \
	X(granitemoe)                                                                                                      \
	X(granitemoeshared)                                                                                                \
	X(granitemoehybrid)                                                                                                \
	X(dots1)                                                                                                           \
	X(minimax_m2)                                                                                                      \
	X(deepseek_v2)                                                                                                     \
	X(deepseek_v3)                                                                                                     \
	X(glm4_moe_lite)                                                                                                   \
	X(minicpm3)                                                                                                        \
	X(qwen3_vl_moe)

#define FP_DECLARE_ARCHITECTURE(name) extern const fp_architecture fp_architecture_##name;
FP_ARCHITECTURES(FP_DECLARE_ARCHITECTURE)

#endif
