/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_select.h: finds the entries of smallest magnitude exactly, without sorting.
 *
 * The bits of |x| as an integer are ordered like |x|, so histograms give the k-th smallest digit by digit, in three
 * passes over the data for 11, 10 and 10 bits (radix selection). NaN counts as the largest.
 */
#ifndef FP_BACKEND_CPU_SELECT_H
#define FP_BACKEND_CPU_SELECT_H

#include "base/context.h"
#include <string.h>

typedef struct fp_cpu_scores {
	const float *data;
	int64_t rows, cols, stride;
} fp_cpu_scores;

/* The integer that orders |x|. */
static inline uint32_t fp_cpu_key(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits & 0x7fffffffu;
}

/* Writes 0 at the `zeros` entries of smallest magnitude and 1 elsewhere; among equals the first in memory order is
 * pruned first. */
fp_status fp_cpu_prune_smallest(fp_context *ctx, int threads, fp_cpu_scores scores, int64_t zeros, uint8_t *mask,
								int64_t mask_stride);
/* The same for one row, on the calling thread and without memory of its own. */
void fp_cpu_prune_row(const float *scores, int64_t count, int64_t zeros, uint8_t *mask);
/* Keeps the `kept` largest of every `group` entries, the first among equals; of a last group of g < group entries
 * ⌈kept·g/group⌉. */
void fp_cpu_prune_groups(const float *scores, int64_t count, int64_t kept, int64_t group, uint8_t *mask);

#endif
