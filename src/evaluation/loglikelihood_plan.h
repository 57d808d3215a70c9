/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loglikelihood_plan.h: which rows to compute. Equal inputs become one sequence. Sequences with a common
 * prefix become a group, which computes the prefix once. Groups of similar length become a batch.
 *
 *   group of three sequences       rows in memory ("packed")          rows for attention ("unpacked", padded)
 *     a b c d e                    a b c d e | f g | h                a b c d e
 *     a b c f g                                                       a b c f g
 *     a b c h                                                         a b c h ·
 */
#ifndef FP_EVALUATION_LOGLIKELIHOOD_PLAN_H
#define FP_EVALUATION_LOGLIKELIHOOD_PLAN_H

#include "evaluation/loglikelihood.h"

typedef struct fp_plan_entry { /* a request's input; entries are sorted by their ids */
	const int32_t *ids;
	int64_t length;
	int64_t request;
} fp_plan_entry;

typedef struct fp_plan_sequence {
	const int32_t *ids;
	int64_t length;
	int64_t first_entry, entry_count; /* the requests with this input */
	int64_t shared;                   /* tokens of the group's common prefix */
	int64_t start, tail;              /* the packed rows of tokens 0 and `shared` in the batch */
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
	int64_t most_rows, most_unpacked; /* the largest over all batches */
} fp_plan;

/* length: maximum input length; a batch has about batch_tokens unpacked rows. */
fp_status fp_plan_make(fp_plan *out, fp_context *ctx, const fp_likelihood_request *requests, int64_t count,
					   int64_t length, int64_t batch_tokens);
void fp_plan_free(fp_plan *plan);

/* The packed row of a token in its batch. */
static inline int64_t fp_plan_row(const fp_plan_sequence *sequence, int64_t token)
{
	return token < sequence->shared ? sequence->start + token : sequence->tail + token - sequence->shared;
}

#endif
