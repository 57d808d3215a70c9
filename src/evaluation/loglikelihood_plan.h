/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loglikelihood_plan.h: which rows to compute. Inputs that are equal become one sequence; sequences that begin alike
 * become a group, whose common beginning is computed once; groups of about the same length become a batch.
 *
 *   group of three sequences       rows in memory ("packed")          rows for attention ("unpacked", padded)
 *     a b c d e                    a b c d e | f g | h                a b c d e
 *     a b c f g                                                       a b c f g
 *     a b c h                                                         a b c h ·
 */
#ifndef FP_EVALUATION_LOGLIKELIHOOD_PLAN_H
#define FP_EVALUATION_LOGLIKELIHOOD_PLAN_H

#include "evaluation/loglikelihood.h"

typedef struct fp_plan_entry { /* a request's input, in the order of its ids */
	const int32_t *ids;
	int64_t length;
	int64_t request;
} fp_plan_entry;

typedef struct fp_plan_sequence {
	const int32_t *ids;
	int64_t length;
	int64_t first_entry, entry_count; /* the requests with this input */
	int64_t shared;                   /* tokens that lie in the group's common rows */
	int64_t start, tail;              /* the packed row of token 0, and of token `shared`; counted in the batch */
} fp_plan_sequence;

typedef struct fp_plan_group {
	int64_t first_sequence, count;
	int64_t longest, rows; /* rows: packed */
} fp_plan_group;

typedef struct fp_plan_batch {
	int64_t first_group, group_count;
	int64_t sequences, length; /* unpacked: sequences × length */
	int64_t rows;              /* packed */
} fp_plan_batch;

typedef struct fp_plan { /* freed with fp_plan_free() */
	fp_plan_entry *entries;
	fp_plan_sequence *sequences;
	fp_plan_group *groups;
	fp_plan_batch *batches;
	int64_t entry_count, sequence_count, group_count, batch_count;
	int64_t most_rows, most_unpacked; /* of a batch */
} fp_plan;

/* `length`: the most tokens the model may see; batches hold about batch_tokens unpacked rows. */
fp_status fp_plan_make(fp_plan *out, fp_context *ctx, const fp_likelihood_request *requests, int64_t count,
					   int64_t length, int64_t batch_tokens);
void fp_plan_free(fp_plan *plan);

/* The packed row, counted in its batch, of a sequence's token. */
static inline int64_t fp_plan_row(const fp_plan_sequence *sequence, int64_t token)
{
	return token < sequence->shared ? sequence->start + token : sequence->tail + token - sequence->shared;
}

#endif
