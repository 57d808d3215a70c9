/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.h: chooses the next token from logits. */
#ifndef FP_GENERATION_SAMPLING_H
#define FP_GENERATION_SAMPLING_H

#include "base/context.h"
#include "base/mersenne.h"

typedef struct fp_sampling {
	double temperature; /* divides the logits; 0: the most likely token */
	int64_t top_k;      /* only so many of the most likely tokens; 0: all */
	double top_p;       /* only the fewest tokens that have this much of the probability together; 1: all */
} fp_sampling;

typedef struct fp_candidate {
	double weight; /* exp((logit − largest)/temperature): the probability, not normalised */
	int32_t id;
} fp_candidate;

/* Random numbers of one text: `stream` numbers the texts of a seed, so that each is the same whatever is drawn beside it. */
void fp_sampler_seed(fp_mersenne *random, uint64_t seed, int64_t stream);

/* The next token; equally likely ones count in the order of their ids. `space` holds as many candidates as the
 * vocabulary has tokens. −1: a logit is not a number, or the largest one is infinite. Unless it is NULL, *loss ← −log of
 * the probability with which the token was drawn. */
int32_t fp_sample(fp_mersenne *random, const fp_sampling *how, const float *logits, int64_t vocabulary,
				  fp_candidate *space, double *loss);
/* The same for `rows` texts at once, in threads: ids[i] by random[i] and how[i] from row i of the logits. losses: by
 * row, or NULL. */
fp_status fp_sample_rows(fp_context *ctx, int threads, fp_mersenne *const *random, const fp_sampling *how,
						 const float *logits, int64_t rows, int64_t vocabulary, int32_t *ids, double *losses);

#endif
