/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_slices.h: matrices of which each rank has some rows.
 *
 * Sums over windows, and steps that treat every entry by itself, as Adam's do, can be divided by rows: each rank sums its
 * own rows of what all have, takes the step on them, and gets the other rows from the others. Then each entry travels
 * about twice, whatever the number of ranks is; entries that are known to be zero do not travel at all (kept_entries.h).
 * Each entry is summed in the order of the tree of part_sum.h.
 */
#ifndef FP_SHARING_ROW_SLICES_H
#define FP_SHARING_ROW_SLICES_H

#include "sharing/kept_entries.h"
#include "sharing/part_sum.h"

/* The rows of a matrix that belong to a rank: whole strips (fp_backend.strip_rows), where there are enough. There may be
 * none. */
fp_matrix fp_row_slice(const fp_share *share, const fp_backend *be, int rank, fp_matrix m);

/* BLAS treats products with a smaller matrix differently, and backends compute them in float where they round larger ones. */
enum { FP_LEAST_ORDER = 256 };
/* True if ranks may multiply a slice of so many rows each by a matrix of order n: the bits are those of one product, and the
 * messages take less time than it saves. */
bool fp_rows_may_be_multiplied(const fp_share *share, const fp_backend *be, int64_t rows, int64_t n);

/* In place of fp_part_sum_finish(), for sums without numbers: this rank's rows of register 0 ← the sum over all parts. The
 * other rows are undefined. kept: if not NULL, only these entries of each matrix are summed; with several ranks the
 * others become zero. */
fp_status fp_part_sum_scatter(fp_part_sum *sum, const fp_kept_entries *kept);
/* The same for all entries, and then all rows on every rank. All ranks add at the same time, where fp_part_sum_finish()
 * leaves most additions to rank 0. */
fp_status fp_part_sum_finish_rows(fp_part_sum *sum);
/* All rows of matrices (F32) ← those of the ranks that have them. kept: if not NULL, all other entries become zero. */
fp_status fp_row_slices_collect(const fp_addends *list, const fp_kept_entries *kept, const fp_share *share,
								fp_backend *be);

#endif
