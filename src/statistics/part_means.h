/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_means.h: joins statistics of parts that are centred by themselves. With p_k tokens and the means a_k, b_k in part k,
 * and a, b the means of all tokens,
 *
 *     Σ(a − ā)(b − b̄)ᵀ over all tokens = Σₖ (that of part k) + Σₖ pₖ(aₖ − a)(bₖ − b)ᵀ
 *
 * The first sum is made like all others (sharing/part_sum.h); the second is a product with as many rows as parts.
 */
#ifndef FP_STATISTICS_PART_MEANS_H
#define FP_STATISTICS_PART_MEANS_H

#include "statistics/statistics.h"

typedef struct fp_part_means { /* freed with fp_part_means_free(); all zero: empty */
	fp_backend *be;
	int parts;
	int64_t width;  /* numbers of a part */
	double *values; /* for each part: its tokens, and the means that the statistics have, one after the other */
} fp_part_means;

/* For the parts of centred statistics like these. */
fp_status fp_part_means_new(fp_part_means *out, const fp_statistics *statistics, int parts);
void fp_part_means_free(fp_part_means *means);
/* Records the means of a part that has ended. */
fp_status fp_part_means_take(fp_part_means *means, const fp_statistics *statistics, int part);
/* Every rank ← the means of all parts. */
fp_status fp_part_means_gather(fp_part_means *means, const fp_share *share);
/* Turns the sums over parts into those of all tokens, and the means into theirs; before fp_statistics_finish(). */
fp_status fp_part_means_join(const fp_part_means *means, fp_statistics *statistics);

#endif
