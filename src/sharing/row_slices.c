/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/row_slices.h"

#include "base/memory.h"
#include "base/numbers.h"

static const int64_t BLOCK_BYTES = (int64_t)32 << 20; /* of all ranks' rows that travel at the same time */

fp_matrix fp_row_slice(const fp_share *share, int rank, fp_matrix m)
{
	int64_t ranks = fp_share_ranks(share), first = m.rows * rank / ranks;
	return fp_matrix_rows(m, first, m.rows * (rank + 1) / ranks - first);
}

/* Some rows of each matrix: a part of one rank's slice. */
typedef struct rows {
	const fp_share *share;
	int rank, block, blocks;
} rows;

static fp_matrix rows_of(const rows *r, fp_matrix m)
{
	fp_matrix slice = fp_row_slice(r->share, r->rank, m);
	int64_t first = slice.rows * r->block / r->blocks;
	return fp_matrix_rows(slice, first, slice.rows * (r->block + 1) / r->blocks - first);
}

static int64_t entries_of(const rows *r, const fp_addends *list)
{
	int64_t entries = 0;
	for (int64_t i = 0; i < list->matrix_count; i++)
		entries += fp_matrix_size(rows_of(r, list->matrices[i]));
	return entries;
}

static int64_t bytes_of(const rows *r, const fp_addends *list)
{
	return entries_of(r, list) * (int64_t)sizeof(float);
}

static int block_count(const fp_addends *list)
{
	int64_t bytes = 0;
	for (int64_t i = 0; i < list->matrix_count; i++)
		bytes += fp_matrix_size(list->matrices[i]) * (int64_t)sizeof(float);
	return (int)fp_larger((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES, 1);
}

/* Between matrices and host memory. */
static fp_status copy_rows(const rows *r, const fp_addends *list, fp_backend *be, float *host, bool out)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < list->matrix_count; i++) {
		fp_matrix some = rows_of(r, list->matrices[i]);
		FP_REQUIRE(be, some.dtype == FP_F32);
		if (some.rows == 0)
			continue;
		FP_TRY(out ? be->memory->download(be, host, FP_F32, some.cols, some)
				   : be->memory->upload(be, some, host, FP_F32, some.cols));
		host += fp_matrix_size(some);
	}
	FP_TRY(be->memory->synchronize(be)); /* before `host` is read or overwritten */
cleanup:
	return status;
}

/* Between matrices and a vector on the device. */
static fp_status copy_on_device(const rows *r, const fp_addends *list, fp_backend *be, fp_matrix vector, bool out)
{
	int64_t at = 0;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < list->matrix_count; i++) {
		fp_matrix some = rows_of(r, list->matrices[i]);
		if (some.rows == 0)
			continue;
		fp_matrix piece = fp_matrix_reshape(fp_matrix_cols(vector, at, fp_matrix_size(some)), some.rows, some.cols);
		FP_TRY(out ? be->memory->copy(be, piece, some) : be->memory->copy(be, some, piece));
		at += fp_matrix_size(some);
	}
cleanup:
	return status;
}

fp_status fp_row_slices_collect(const fp_addends *list, const fp_share *share, fp_backend *be)
{
	int ranks = fp_share_ranks(share), me = fp_share_rank(share), blocks = block_count(list);
	float *out = NULL, *in = NULL;
	fp_status status = FP_OK;
	for (int block = 0; block < blocks && ranks > 1; block++) {
		rows own = {share, me, block, blocks};
		FP_TRY(FP_NEW(be->ctx, &out, entries_of(&own, list) + 1));
		FP_TRY(copy_rows(&own, list, be, out, true));
		for (int way = 1; way < ranks; way++) {
			rows other = {share, (me + ranks - way) % ranks, block, blocks};
			FP_TRY(FP_NEW(be->ctx, &in, entries_of(&other, list) + 1));
			FP_TRY(fp_share_exchange(share, (me + way) % ranks, out, bytes_of(&own, list), other.rank, in,
									 bytes_of(&other, list)));
			FP_TRY(copy_rows(&other, list, be, in, false));
			fp_free(in);
			in = NULL;
		}
		fp_free(out);
		out = NULL;
	}
cleanup:
	fp_free(in);
	fp_free(out);
	return status;
}

/* What a rank's parts are after it has added them: pieces[i].which < 0 if there is nothing in a piece. */
typedef struct pieces {
	fp_part_fragment list[FP_PARTS];
	int count, filled;
} pieces;

static pieces pieces_of(const fp_part_sum *sum, int rank)
{
	fp_part_sum shape = {.share = sum->share};
	pieces out = {.count = 0};
	for (int part = 0; part < sum->share->parts; part++)
		if (fp_share_owner(sum->share, part) == rank)
			(void)fp_part_sum_push(&shape, (fp_part_fragment){part, part + 1, -1}); /* adds nothing, and cannot fail */
	for (int i = 0; i < shape.depth; i++) {
		fp_part_fragment piece = shape.stack[i];
		while (piece.which < 0 && piece.begin < piece.end)
			piece.which = sum->used[piece.begin++] ? 0 : -1;
		out.filled += piece.which == 0;
		out.list[out.count++] = (fp_part_fragment){shape.stack[i].begin, shape.stack[i].end, piece.which};
	}
	return out;
}

/* A sum in which some rows of all ranks come together. */
typedef struct gathering {
	fp_part_sum *sum; /* over this rank's parts: all rows */
	rows own;
	fp_share whole;
	fp_part_sum tree; /* over all parts: this rank's rows, as a vector */
	fp_matrix vectors[FP_PARTS + 1];
	float **in; /* what came, by rank */
} gathering;

static fp_status make_vector(void *data, int which, fp_addends *out)
{
	gathering *g = data;
	fp_backend *be = g->sum->be;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &g->vectors[which], 1, entries_of(&g->own, &g->sum->registers[0]), FP_F32));
	FP_TRY(fp_addends_matrix(out, be->ctx, g->vectors[which]));
cleanup:
	return status;
}

/* Sends the rows of others to them, and receives this rank's. */
static fp_status exchange_rows(gathering *g)
{
	const fp_part_sum *sum = g->sum;
	const fp_share *share = sum->share;
	const fp_addends *list = &sum->registers[0];
	fp_context *ctx = sum->be->ctx;
	int ranks = fp_share_ranks(share), me = fp_share_rank(share);
	int64_t own = entries_of(&g->own, list);
	float *out = NULL;
	fp_status status = FP_OK;
	for (int way = 1; way < ranks; way++) {
		rows theirs = {share, (me + way) % ranks, g->own.block, g->own.blocks};
		int from = (me + ranks - way) % ranks;
		int64_t entries = entries_of(&theirs, list), sent = 0, received = pieces_of(sum, from).filled * own;
		FP_TRY(FP_NEW(ctx, &out, pieces_of(sum, me).filled * entries + 1));
		for (int i = 0; i < sum->depth; i++)
			if (sum->stack[i].which >= 0) {
				FP_TRY(copy_rows(&theirs, &sum->registers[sum->stack[i].which], sum->be, out + sent, true));
				sent += entries;
			}
		if (received > 0)
			FP_TRY(FP_NEW(ctx, &g->in[from], received));
		FP_TRY(fp_share_exchange(share, theirs.rank, out, sent * (int64_t)sizeof *out, from,
								 received > 0 ? g->in[from] : NULL, received * (int64_t)sizeof *out));
		fp_free(out);
		out = NULL;
	}
cleanup:
	fp_free(out);
	return status;
}

/* Adds the pieces of one rank, in the order of the tree. */
static fp_status add_pieces(gathering *g, int rank)
{
	const fp_part_sum *sum = g->sum;
	fp_backend *be = sum->be;
	bool mine = rank == fp_share_rank(sum->share);
	int64_t own = entries_of(&g->own, &sum->registers[0]), at = 0;
	pieces all = pieces_of(sum, rank);
	fp_status status = FP_OK;
	for (int i = 0; i < all.count; i++) {
		fp_part_fragment piece = all.list[i];
		if (piece.which >= 0) {
			FP_TRY(fp_part_sum_take_register(&g->tree, &piece.which));
			if (mine)
				FP_TRY(
					copy_on_device(&g->own, &sum->registers[sum->stack[i].which], be, g->vectors[piece.which], true));
			else
				FP_TRY(be->memory->upload(be, g->vectors[piece.which], g->in[rank] + at, FP_F32, own));
			at += own;
		}
		FP_TRY(fp_part_sum_push(&g->tree, piece));
	}
cleanup:
	return status;
}

/* One block of this rank's rows. */
static fp_status gather_block(fp_part_sum *sum, int block, int blocks)
{
	const fp_share *share = sum->share;
	fp_backend *be = sum->be;
	gathering g = {.sum = sum, .own = {share, fp_share_rank(share), block, blocks}, .whole = *share};
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &g.in, fp_share_ranks(share)));
	g.whole.comm = NULL;
	g.whole.begin = 0;
	g.whole.end = share->parts;
	fp_part_sum_open(&g.tree, &g.whole, be, make_vector, &g);
	FP_TRY(exchange_rows(&g));
	if (entries_of(&g.own, &sum->registers[0]) == 0)
		goto cleanup;
	for (int rank = 0; rank < fp_share_ranks(share); rank++)
		FP_TRY(add_pieces(&g, rank));
	if (g.tree.stack[0].which >= 0)
		FP_TRY(copy_on_device(&g.own, &sum->registers[0], be, g.vectors[g.tree.stack[0].which], false));
	FP_TRY(be->memory->synchronize(be)); /* before what was received is freed */
cleanup:
	fp_part_sum_close(&g.tree);
	for (int i = 0; i <= FP_PARTS; i++)
		fp_matrix_free(be, &g.vectors[i]);
	for (int rank = 0; g.in && rank < fp_share_ranks(share); rank++)
		fp_free(g.in[rank]);
	fp_free(g.in);
	return status;
}

fp_status fp_part_sum_scatter(fp_part_sum *sum)
{
	fp_status status;
	if (fp_share_ranks(sum->share) == 1)
		return fp_part_sum_finish(sum, false);
	FP_TRY(fp_part_sum_skip(sum));
	if (sum->made == 0) {
		int which;
		FP_TRY(fp_part_sum_take_register(sum, &which));
	}
	FP_REQUIRE(sum->be, sum->registers[0].number_count == 0);
	int blocks = block_count(&sum->registers[0]);
	for (int block = 0; block < blocks; block++)
		FP_TRY(gather_block(sum, block, blocks));
	sum->depth = 0;
cleanup:
	return status;
}
