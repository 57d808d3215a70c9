/* SPDX-License-Identifier: Apache-2.0 */
/* loglikelihood.h: log p(continuation | context) for many requests, with one layer in memory at a time. */
#ifndef FP_EVALUATION_LOGLIKELIHOOD_H
#define FP_EVALUATION_LOGLIKELIHOOD_H

#include "model/model.h"

typedef struct fp_likelihood_request {
	const int32_t *ids;            /* context, then continuation; borrowed */
	int64_t context, continuation; /* tokens of each, 1 or more */
	/* results */
	double loglikelihood; /* Σ log p(token | all before it), over the continuation */
	bool greedy;          /* every token of the continuation is the likeliest (the first among equals) */
	bool truncated;       /* the context was cut on the left */
} fp_likelihood_request;

/*
 * Fills in the results. A request is cut from the left to length + 1 tokens, of which the model reads
 * all but the last; the continuation must fit. Equal inputs are computed once, and a common prefix of
 * several inputs is computed once. memory: bytes for hidden states and workspace (0: the default of
 * chunk_memory.h). Progress stage: "evaluating".
 */
fp_status fp_loglikelihoods(fp_model *model, fp_likelihood_request *requests, int64_t count, int64_t length,
							int64_t memory);

#endif
