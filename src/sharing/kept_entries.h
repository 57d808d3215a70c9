/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept_entries.h: which entries of some matrices are kept by pruning, and copies of these alone, one after the other, row
 * by row: half of a matrix at 50%. Ranks send each other such copies, and layers wait in them for their turn on a device.
 * All matrices here are in the host's memory, and contiguous.
 */
#ifndef FP_SHARING_KEPT_ENTRIES_H
#define FP_SHARING_KEPT_ENTRIES_H

#include "base/context.h"

typedef struct fp_kept_matrix {
	int64_t rows, cols;
	uint64_t *bits;  /* of each row, in whole words: 1 for an entry that is kept */
	int64_t *before; /* of each row, and of the end: the kept entries in the rows before it */
} fp_kept_matrix;

/* A list that grows; freed with fp_kept_entries_free(); all zero: empty. */
typedef struct fp_kept_entries {
	fp_kept_matrix *list;
	int64_t count, capacity;
} fp_kept_entries;

/* Appends a matrix, of which the entries are kept whose bits are not all zero; entries NULL: all are kept. */
fp_status fp_kept_entries_add(fp_kept_entries *kept, fp_context *ctx, int64_t rows, int64_t cols, const float *entries);
void fp_kept_entries_free(fp_kept_entries *kept);

/* The number of kept entries in some rows. */
static inline int64_t fp_kept_count(const fp_kept_matrix *kept, int64_t first, int64_t rows)
{
	return kept->before[first + rows] - kept->before[first];
}

/* Bytes of the lists themselves. */
int64_t fp_kept_bytes(const fp_kept_matrix *kept);

/* Copies between `count` rows of a matrix, from row `first` on, and `packed`, their kept entries, of `size` bytes each (2 or
 * 4): to the latter if `packs`, else to the rows, whose other entries become zero. */
void fp_kept_copy(const fp_kept_matrix *kept, int64_t first, int64_t count, void *rows, void *packed, int64_t size,
				  bool packs, int threads);

#endif
