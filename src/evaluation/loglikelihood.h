/* SPDX-License-Identifier: Apache-2.0 */
/* loglikelihood.h: log p(continuation | context) for many pairs of token lists, one layer in memory at a time. */
#ifndef FP_EVALUATION_LOGLIKELIHOOD_H
#define FP_EVALUATION_LOGLIKELIHOOD_H

#include "model/model.h"

typedef struct fp_likelihood_request {
	const int32_t *ids;            /* context, then continuation; borrowed */
	int64_t context, continuation; /* tokens of each, 1 or more */
	/* answers */
	double loglikelihood; /* Σ log p(token | all before it), over the continuation */
	bool greedy;          /* every token of the continuation is the most likely one (the first of equals) */
	bool truncated;       /* the context lost tokens on its left */
} fp_likelihood_request;

/*
 * Fills in the answers. A pair is cut from the left to length + 1 tokens, of which the model sees all but the last; the
 * continuation must fit. Equal inputs are computed once, and inputs that begin alike share the rows of their common
 * beginning. memory: bytes for hidden states and work space (0: the usual, room.h). Progress stage: "evaluating".
 */
fp_status fp_loglikelihoods(fp_model *model, fp_likelihood_request *requests, int64_t count, int64_t length,
							int64_t memory);

#endif
