/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_ops.h: the parts of a decoder layer's forward pass that are not products. Required. backend.h has the
 * conventions. */
#ifndef FP_BACKEND_TRANSFORMER_OPS_H
#define FP_BACKEND_TRANSFORMER_OPS_H

#include "backend/matrix.h"

typedef enum fp_norm_kind { FP_LAYER_NORM, FP_RMS_NORM } fp_norm_kind;
typedef enum fp_activation { FP_RELU, FP_SILU, FP_GELU, FP_GELU_TANH } fp_activation;
/* The two entries that a rotation turns: with r = 2·cosine.cols, (i, i + r/2) or (2i, 2i + 1), i < r/2. */
typedef enum fp_pairing { FP_PAIR_HALVES, FP_PAIR_NEIGHBOURS } fp_pairing;

typedef struct fp_attention_shape {
	int64_t sequences; /* rows of Q and the output = sequences × length */
	int64_t length;
	/* Keys before the first query of a sequence, whose queries are at positions past … past + length − 1; K and V then
	 * have the keys of positions 0 … past + length − 1 */
	int64_t past;
	int64_t key_rows; /* rows of K and V from one sequence to the next, at least past + length; 0: that many */
	int64_t heads;    /* of Q and of the output */
	int64_t kv_heads; /* divides heads */
	int64_t head_dim;
	int64_t window; /* a token sees this many tokens up to itself; 0: all before it */
	float scale;    /* on QKᵀ */
	float soft_cap; /* c: scores become c·tanh(score/c); 0: none */
	/* Added to the scores then, by head and position of the key: heads × at least past + length; absent: nothing (ALiBi) */
	fp_matrix key_bias;
} fp_attention_shape;

/* Positions of a sequence's keys, and rows of K and V from one sequence to the next. */
static inline int64_t fp_attention_keys(const fp_attention_shape *shape)
{
	return shape->past + shape->length;
}
static inline int64_t fp_attention_key_rows(const fp_attention_shape *shape)
{
	return shape->key_rows > 0 ? shape->key_rows : fp_attention_keys(shape);
}

/* Whether the softmax is taken of scale·QKᵀ as it is. For planning, a key_bias may have a shape and no buffer. */
static inline bool fp_attention_is_plain(const fp_attention_shape *shape)
{
	return shape->soft_cap <= 0 && shape->key_bias.cols == 0;
}

typedef struct fp_transformer_operations {
	/* Y ← normalised rows of X, times weight, plus bias; weight, bias 1×cols, may be absent.
	 * In place is allowed, narrow is allowed, BF16 is allowed. FP_RMS_NORM ignores bias. */
	fp_status (*norm)(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, fp_matrix bias, float epsilon,
					  fp_matrix Y);
	fp_status (*add_bias)(fp_backend *be, fp_matrix bias, fp_matrix X); /* X[i,:] += bias; BF16 is allowed */
	/* In place is allowed, narrow is allowed, BF16 is allowed. */
	fp_status (*activate)(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix Y);
	/* Y ← f(G)∘U; Y may be G or U; narrow is allowed, BF16 is allowed */
	fp_status (*activate_gated)(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y);
	/* Rotary positions in place: in each head of X, d = X.cols/heads entries, the pairs of the first r turn by the angle
	 * of row (t mod cosine.rows); the others stay. cosine, sine are length × r/2, r ≤ d. BF16 is allowed. */
	fp_status (*rotate)(fp_backend *be, fp_pairing pairing, fp_matrix cosine, fp_matrix sine, int64_t heads,
						fp_matrix X);
	/* out ← causal softmax attention, with `past` of a few new queries over kept keys and values; never holds more than
	 * one block of scores. BF16 is allowed for every use. */
	fp_status (*attention)(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
						   fp_matrix out);
	fp_status (*soft_cap)(fp_backend *be, float cap, fp_matrix X); /* X ← cap·tanh(X/cap) */
	/* out[i] ← −log softmax(logits[i,:])[targets[i]]; targets on the host, −1 gives 0; out 1×rows. Unless argmax is
	 * NULL, argmax[i] (host) ← the smallest index of the largest logit. */
	fp_status (*cross_entropy)(fp_backend *be, fp_matrix logits, const int32_t *targets, fp_matrix out,
							   int32_t *argmax);
	/* out[i] ← Σ p (log p − log q) ≥ 0 with p = softmax(P[i,:]), q = softmax(Q[i,:]); 0 for equal rows; out 1×rows. */
	fp_status (*divergence)(fp_backend *be, fp_matrix P, fp_matrix Q, fp_matrix out);
	/* Y[i,:] ← s[i]·X[rows[i],:]. rows: Y.rows numbers on the host; NULL: row i itself, and Y may be X. s: 1 × Y.rows;
	 * absent: 1. Narrow is allowed, BF16 is allowed. */
	fp_status (*gather_rows)(fp_backend *be, const int32_t *rows, fp_matrix s, fp_matrix X, fp_matrix Y);
	/* Y[i,:] ← β Y[i,:] + Σ X[rows[i·count + k],:] over k < count, in this order; rows on the host */
	fp_status (*add_rows)(fp_backend *be, const int32_t *rows, int64_t count, fp_matrix X, float beta, fp_matrix Y);
} fp_transformer_operations;

#endif
