/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latent_attention.h: queries, keys and values that are made of latents (fp_latent_config). For the files of this folder
 * only.
 *
 * To attention they are like those of any other layer: in each head the entries that turn come first, r is there for every
 * head, and values are as wide as keys, with zeros behind them. That costs copies and products with zeros, and needs no
 * attention of its own.
 */
#ifndef FP_MODEL_LATENT_ATTENTION_H
#define FP_MODEL_LATENT_ATTENTION_H

#include "model/layer.h"

/* Of the norms of latents, whatever the config says about the others. */
#define FP_LATENT_EPSILON 1e-6F

/* The memory of one pass, for T tokens. All absent for a model without latents. */
typedef struct fp_latent_space {
	fp_matrix query;  /* T × query_rank: u; absent if queries are made of x */
	fp_matrix joint;  /* T × (rank + turned): c ‖ r */
	fp_matrix latent; /* T × rank: norm(c) */
	fp_matrix wide;   /* T × fp_latent_width(): q, then k' ‖ v, then the context without zeros */
} fp_latent_space;

fp_status fp_latent_space_new(fp_latent_space *out, const fp_model *model, int64_t tokens, fp_dtype type);
void fp_latent_space_free(fp_backend *be, fp_latent_space *space); /* may be all zero */
int64_t fp_latent_space_bytes(const fp_model *model, int64_t tokens, fp_dtype type);
/* The entries of all heads in q, and in k' ‖ v; the larger of both. */
int64_t fp_latent_query_width(const fp_model_config *config);
int64_t fp_latent_key_value_width(const fp_model_config *config);
int64_t fp_latent_width(const fp_model_config *config);

/* space->query, joint and latent ← those of x; and q, if it is made of x */
fp_status fp_latents_make(const fp_layer *layer, fp_latent_space *space, fp_matrix x);
/* Q, K and V ← those of the latents */
fp_status fp_latents_expand(const fp_layer *layer, fp_latent_space *space, fp_matrix Q, fp_matrix K, fp_matrix V);

/* out ← a norm of a latent, with these weights */
fp_status fp_latent_normalise(fp_backend *be, fp_matrix weight, fp_matrix X, fp_matrix out);
/* Q ↔ q. back: q ← Q */
fp_status fp_latent_queries(fp_backend *be, const fp_model_config *config, bool back, fp_matrix q, fp_matrix Q);
/* K and V ← k' ‖ v and r */
fp_status fp_latent_keys(fp_backend *be, const fp_model_config *config, fp_matrix wide, fp_matrix r, fp_matrix K,
						 fp_matrix V);
/* The gradients of k' ‖ v and r ← those of K and V */
fp_status fp_latent_keys_backward(fp_backend *be, const fp_model_config *config, fp_matrix dK, fp_matrix dV,
								  fp_matrix dwide, fp_matrix dr);
/* narrow ← attention's output without the zeros behind each head; back: the other way, with zeros */
fp_status fp_latent_context(fp_backend *be, const fp_model_config *config, bool back, fp_matrix context,
							fp_matrix narrow);

#endif
