/* SPDX-License-Identifier: Apache-2.0 */
/*
 * divergence.h: how far the predictions of a pruned model are from the dense model's. For every predicted token of a
 * text, with the softmax p of the dense model's logits and q of the pruned model's:
 *
 *     KL(p‖q) = Σ p (log p − log q)
 *
 * One layer is in memory at a time, and one block of rows of the two models' logits.
 */
#ifndef FP_EVALUATION_DIVERGENCE_H
#define FP_EVALUATION_DIVERGENCE_H

#include "model/model.h"
#include "text/windows.h"

typedef struct fp_divergence_result {
	int64_t windows, tokens;      /* as in fp_perplexity_result */
	double perplexity, mean_loss; /* of the pruned model */
	double dense_perplexity;
	double kl, kl_stderr;     /* mean over tokens, and its standard error: deviation/√tokens */
	double kl_median, kl_p99; /* of the tokens; interpolated between neighbours */
	double top1;              /* share of tokens for which both models rank the same token first */
	double perplexity_ratio;  /* pruned over dense */
} fp_divergence_result;

/* Compares models with one dense model on one text. */
typedef struct fp_divergence fp_divergence;

/* dense, windows: borrowed. memory: as for fp_perplexity(). */
fp_status fp_divergence_new(fp_divergence **out, fp_model *dense, const fp_windows *windows, int64_t memory);
/* The model with the overlay (NULL: none) against the dense one; both may be the same fp_model. Their vocabularies must
 * have the same size. Between calls the dense model's hidden states are kept if they are small. Progress stage:
 * "evaluating". */
fp_status fp_divergence_measure(fp_divergence_result *out, fp_divergence *divergence, fp_model *model,
								const fp_overlay *overlay);
void fp_divergence_free(fp_divergence *divergence); /* NULL is allowed */

#endif
