/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept_entries.h: which entries of some matrices are kept by pruning. Ranks send only these to each other, one after the
 * other, row by row: half of a matrix at 50%. All matrices are in the host's memory (fp_matrix_on_host()).
 */
#ifndef FP_SHARING_KEPT_ENTRIES_H
#define FP_SHARING_KEPT_ENTRIES_H

#include "backend/backend.h"

typedef struct fp_kept_matrix {
	int64_t rows, cols;
	int32_t *column; /* of each kept entry, row by row */
	int64_t *before; /* of each row, and of the end: the kept entries in the rows before it */
} fp_kept_matrix;

/* A list that grows; freed with fp_kept_entries_free(); all zero: empty. */
typedef struct fp_kept_entries {
	fp_kept_matrix *list;
	int64_t count, capacity;
} fp_kept_entries;

/* Appends a matrix (F32), of which the entries that are not zero are kept, or all. An absent matrix is left out. */
fp_status fp_kept_entries_add(fp_kept_entries *kept, fp_backend *be, fp_matrix m, bool all);
void fp_kept_entries_free(fp_kept_entries *kept);

/* The number of kept entries in some rows. */
static inline int64_t fp_kept_count(const fp_kept_matrix *kept, int64_t first, int64_t rows)
{
	return kept->before[first + rows] - kept->before[first];
}

/* Copies between `m`, the rows from `first` on, and `packed`, their kept entries: to the latter if `packs`, else to m,
 * whose other entries become zero. */
fp_status fp_kept_copy(const fp_kept_matrix *kept, fp_backend *be, int64_t first, fp_matrix m, float *packed,
					   bool packs);

#endif
