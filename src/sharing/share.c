/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/share.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"

static const int64_t TRANSFER_BYTES = (int64_t)16 << 20; /* of host memory, at a time */

/* The first part of a rank: rank 0 always has the first one, and with more ranks than parts the last ranks have none. */
static int first_part(int rank, int ranks)
{
	return (int)(((int64_t)rank * FP_PARTS + ranks - 1) / ranks);
}

fp_share fp_share_divided(fp_comm *comm, int64_t windows)
{
	fp_share share = {.comm = comm, .windows = windows, .parts = FP_PARTS};
	int ranks = fp_share_ranks(&share), rank = fp_share_rank(&share);
	share.begin = first_part(rank, ranks);
	share.end = first_part(rank + 1, ranks);
	return share;
}

fp_share fp_share_whole(int64_t windows)
{
	return (fp_share){.windows = windows, .parts = 1, .end = 1};
}

fp_share fp_share_or_whole(const fp_share *share, int64_t windows)
{
	return share->parts > 0 ? *share : fp_share_whole(windows);
}

bool fp_share_is_divided(const fp_share *share)
{
	return share->parts > 1;
}

int fp_share_ranks(const fp_share *share)
{
	return share->comm ? share->comm->size : 1;
}

int fp_share_rank(const fp_share *share)
{
	return share->comm ? share->comm->rank : 0;
}

int64_t fp_share_window(const fp_share *share, int part)
{
	return part * share->windows / share->parts;
}

int fp_share_part(const fp_share *share, int64_t window)
{
	int part = 0;
	while (fp_share_window(share, part + 1) <= window)
		part++;
	return part;
}

int fp_share_owner(const fp_share *share, int part)
{
	int rank = 0, ranks = fp_share_ranks(share);
	while (rank + 1 < ranks && first_part(rank + 1, ranks) <= part)
		rank++;
	return rank;
}

int64_t fp_share_first(const fp_share *share)
{
	return fp_share_window(share, share->begin);
}

int64_t fp_share_count(const fp_share *share)
{
	return fp_share_window(share, share->end) - fp_share_first(share);
}

int64_t fp_share_largest_part(const fp_share *share)
{
	return (share->windows + share->parts - 1) / share->parts;
}

int64_t fp_share_most(const fp_share *share)
{
	int64_t most = 0;
	int ranks = fp_share_ranks(share);
	for (int rank = 0; rank < ranks && ranks > 1; rank++)
		most = fp_larger(most, fp_share_window(share, first_part(rank + 1, ranks)) -
								   fp_share_window(share, first_part(rank, ranks)));
	return ranks > 1 ? most : share->windows;
}

fp_status fp_share_bytes(const fp_share *share, fp_journey journey, int other, void *bytes, int64_t size)
{
	fp_comm *comm = share->comm;
	fp_status status = FP_OK;
	if (fp_share_ranks(share) == 1)
		return FP_OK;
	fp_stage stage = fp_stage_enter(comm->ctx, FP_STAGE_RANKS);
	if (journey == FP_BROADCASTS)
		status = comm->ops->broadcast(comm, other, bytes, size);
	else if (journey == FP_SENDS)
		status = comm->ops->send(comm, other, bytes, size);
	else
		status = comm->ops->receive(comm, other, bytes, size);
	fp_stage_enter(comm->ctx, stage);
	return status;
}

fp_status fp_share_exchange(const fp_share *share, const fp_parcel *out, const fp_parcel *in)
{
	fp_comm *comm = share->comm;
	fp_stage stage = fp_stage_enter(comm->ctx, FP_STAGE_RANKS);
	fp_status status = comm->ops->exchange(comm, out, in);
	fp_stage_enter(comm->ctx, stage);
	return status;
}

/* Some rows of a matrix, by way of `space` if it is not in the host's memory. */
static fp_status share_rows(const fp_share *share, fp_backend *be, fp_journey journey, int other, fp_matrix m,
							void *space)
{
	bool sends = journey == FP_SENDS || (journey == FP_BROADCASTS && fp_share_rank(share) == other);
	int64_t bytes = fp_matrix_size(m) * fp_dtype_size(m.dtype);
	fp_status status;
	if (!space)
		return fp_share_bytes(share, journey, other, fp_matrix_on_host(be, m), bytes);
	if (sends)
		FP_TRY(be->memory->download(be, space, m.dtype, m.cols, m));
	FP_TRY(be->memory->synchronize(be));
	FP_TRY(fp_share_bytes(share, journey, other, space, bytes));
	if (!sends)
		FP_TRY(be->memory->upload(be, m, space, m.dtype, m.cols));
	FP_TRY(be->memory->synchronize(be)); /* the next rows overwrite the space */
cleanup:
	return status;
}

/* Block by block of rows. */
fp_status fp_share_matrix(const fp_share *share, fp_backend *be, fp_journey journey, int other, fp_matrix m)
{
	int64_t row_bytes = m.cols * fp_dtype_size(m.dtype);
	void *space = NULL;
	fp_status status = FP_OK;
	if (fp_share_ranks(share) == 1 || fp_matrix_is_absent(m) || row_bytes == 0)
		return FP_OK;
	int64_t rows = fp_larger(fp_smaller(TRANSFER_BYTES / row_bytes, m.rows), 1);
	if (!fp_matrix_on_host(be, m))
		FP_TRY(fp_allocate_undefined(be->ctx, &space, rows * row_bytes));
	for (int64_t first = 0; first < m.rows; first += rows)
		FP_TRY(
			share_rows(share, be, journey, other, fp_matrix_rows(m, first, fp_smaller(rows, m.rows - first)), space));
cleanup:
	fp_free(space);
	return status;
}

fp_status fp_share_gather(const fp_share *share, void *values, int64_t bytes)
{
	fp_status status = FP_OK;
	int ranks = fp_share_ranks(share);
	for (int rank = 0; rank < ranks && ranks > 1; rank++) {
		int begin = first_part(rank, ranks), end = first_part(rank + 1, ranks);
		if (end > begin)
			FP_TRY(fp_share_bytes(share, FP_BROADCASTS, rank, (char *)values + begin * bytes, (end - begin) * bytes));
	}
cleanup:
	return status;
}

void fp_share_tasks(int *owner, const double *cost, int64_t count, double *busy, int ranks)
{
	for (int64_t i = 0; i < count; i++)
		owner[i] = -1;
	for (int64_t done = 0; done < count; done++) {
		int64_t largest = -1;
		int least = 0;
		for (int64_t i = 0; i < count; i++)
			if (owner[i] < 0 && (largest < 0 || cost[i] > cost[largest]))
				largest = i;
		for (int rank = 1; rank < ranks; rank++)
			if (busy[rank] < busy[least])
				least = rank;
		owner[largest] = least;
		busy[least] += cost[largest];
	}
}
