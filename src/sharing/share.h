/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.h: how ranks share the windows of a text, and how matrices travel between them.
 *
 * A text is divided into FP_PARTS parts of consecutive windows, however many ranks there are, and each rank has some
 * consecutive parts. No batch crosses the border of a part. Sums are made part by part (part_sum.h), so that the result
 * has the same bytes for any number of ranks. A share that is not divided has one part with all windows.
 */
#ifndef FP_SHARING_SHARE_H
#define FP_SHARING_SHARE_H

#include "backend/backend.h"
#include "comm/comm.h"

enum { FP_PARTS = 16 };

typedef struct fp_share { /* all zero: not divided */
	fp_comm *comm;        /* borrowed; NULL: one process */
	int64_t windows;      /* of all ranks */
	int parts;            /* FP_PARTS, or 1 */
	int begin, end;       /* this rank's parts */
} fp_share;

/* The share of this rank. comm: NULL for one process. */
fp_share fp_share_divided(fp_comm *comm, int64_t windows);
/* All windows, for this process alone. */
fp_share fp_share_whole(int64_t windows);
/* `share` itself, or the whole if it is all zero. */
fp_share fp_share_or_whole(const fp_share *share, int64_t windows);

bool fp_share_is_divided(const fp_share *share);
/* The number of ranks that share, and this one's; rank 0 leads. */
int fp_share_ranks(const fp_share *share);
int fp_share_rank(const fp_share *share);
/* The first window of a part; of part `parts`, the number of windows. */
int64_t fp_share_window(const fp_share *share, int part);
int fp_share_part(const fp_share *share, int64_t window);
int fp_share_owner(const fp_share *share, int part);
/* This rank's windows: the first, and how many. Both may be 0. */
int64_t fp_share_first(const fp_share *share);
int64_t fp_share_count(const fp_share *share);
/* For estimates: the most windows of any part, and of any rank. */
int64_t fp_share_largest_part(const fp_share *share);
int64_t fp_share_most(const fp_share *share);

/* To rank `other`, from it, or from it to all. */
typedef enum fp_journey { FP_SENDS, FP_RECEIVES, FP_BROADCASTS } fp_journey;
fp_status fp_share_bytes(const fp_share *share, fp_journey journey, int other, void *bytes, int64_t size);
/* To and from all other ranks at the same time; parcels by rank. */
fp_status fp_share_exchange(const fp_share *share, const fp_parcel *out, const fp_parcel *in);
/* A matrix of any type, from host memory or by way of it. An absent one, absent on both sides, is left out. */
fp_status fp_share_matrix(const fp_share *share, fp_backend *be, fp_journey journey, int other, fp_matrix m);
/* values: `bytes` bytes for each part, of which each rank has set its own; all of them ← those of all parts. */
fp_status fp_share_gather(const fp_share *share, void *values, int64_t bytes);

/* owner[i] ← the rank that does task i, so that ranks finish at about the same time: the largest cost goes first, always
 * to the rank with the least to do. busy: costs that ranks already have, added to. */
void fp_share_tasks(int *owner, const double *cost, int64_t count, double *busy, int ranks);

#endif
