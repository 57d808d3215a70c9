/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/row_slices.h"

#include "base/memory.h"
#include "base/numbers.h"

/* OpenBLAS's threads divide inner dimensions that are no multiple of this into other blocks than one thread does. */
enum { BLOCK_ORDER = 32 };
static const int64_t BLOCK_BYTES = (int64_t)32 << 20; /* of all ranks' rows that travel at the same time */

static bool has_strips(const fp_share *share, const fp_backend *be, int64_t rows)
{
	return be->strip_rows > 0 && rows / be->strip_rows >= 2 * (int64_t)fp_share_ranks(share);
}

/* The first row of a rank's slice; of rank `ranks`, the number of rows. The last rank has what is left over of a strip. */
static int64_t first_row(const fp_share *share, const fp_backend *be, int rank, int64_t rows)
{
	int64_t ranks = fp_share_ranks(share), strip = has_strips(share, be, rows) ? be->strip_rows : 1;
	return rank == ranks ? rows : rows / strip * rank / ranks * strip;
}

fp_matrix fp_row_slice(const fp_share *share, const fp_backend *be, int rank, fp_matrix m)
{
	int64_t first = first_row(share, be, rank, m.rows);
	return fp_matrix_rows(m, first, first_row(share, be, rank + 1, m.rows) - first);
}

bool fp_rows_may_be_multiplied(const fp_share *share, const fp_backend *be, int64_t rows, int64_t n)
{
	bool same_blocks = be->threads == 1 || n % BLOCK_ORDER == 0;
	return fp_share_ranks(share) > 1 && !be->asynchronous && has_strips(share, be, rows) && n >= FP_LEAST_ORDER &&
		   same_blocks;
}

/* Some rows of each matrix: a part of one rank's slice. */
typedef struct rows {
	const fp_share *share;
	const fp_backend *be;
	const fp_kept_entries *kept; /* NULL: all entries travel */
	int rank, block, blocks;
} rows;

/* *first ← where they begin */
static fp_matrix rows_of(const rows *r, fp_matrix m, int64_t *first)
{
	fp_matrix slice = fp_row_slice(r->share, r->be, r->rank, m);
	int64_t skipped = slice.rows * r->block / r->blocks;
	*first = first_row(r->share, r->be, r->rank, m.rows) + skipped;
	return fp_matrix_rows(slice, skipped, slice.rows * (r->block + 1) / r->blocks - skipped);
}

/* The entries of matrix number i that travel. */
static int64_t entries_in(const rows *r, const fp_addends *list, int64_t i)
{
	int64_t first;
	fp_matrix some = rows_of(r, list->matrices[i], &first);
	return r->kept ? fp_kept_count(&r->kept->list[i], first, some.rows) : fp_matrix_size(some);
}

static int64_t entries_of(const rows *r, const fp_addends *list)
{
	int64_t entries = 0;
	for (int64_t i = 0; i < list->matrix_count; i++)
		entries += entries_in(r, list, i);
	return entries;
}

static int block_count(const fp_addends *list)
{
	int64_t bytes = 0;
	for (int64_t i = 0; i < list->matrix_count; i++)
		bytes += fp_matrix_size(list->matrices[i]) * (int64_t)sizeof(float);
	return (int)fp_larger((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES, 1);
}

/* Between some rows of a matrix and host memory. */
static fp_status copy_matrix(const rows *r, const fp_addends *list, int64_t i, fp_backend *be, float *host, bool out)
{
	int64_t first;
	fp_matrix some = rows_of(r, list->matrices[i], &first);
	FP_REQUIRE(be, some.dtype == FP_F32);
	if (some.rows == 0)
		return FP_OK;
	if (r->kept) {
		void *entries = fp_matrix_on_host(be, some);
		FP_REQUIRE(be, entries && some.cols == r->kept->list[i].cols);
		fp_kept_copy(&r->kept->list[i], first, some.rows, entries, host, sizeof(float), out, be->threads);
		return FP_OK;
	}
	return out ? be->memory->download(be, host, FP_F32, some.cols, some)
			   : be->memory->upload(be, some, host, FP_F32, some.cols);
}

static fp_status copy_rows(const rows *r, const fp_addends *list, fp_backend *be, float *host, bool out)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < list->matrix_count; i++) {
		FP_TRY(copy_matrix(r, list, i, be, host, out));
		host += entries_in(r, list, i);
	}
	FP_TRY(be->memory->synchronize(be)); /* before `host` is read or overwritten */
cleanup:
	return status;
}

/* Between matrices and a vector of all their entries. */
static fp_status copy_on_device(const rows *r, const fp_addends *list, fp_backend *be, fp_matrix vector, bool out)
{
	int64_t at = 0, first;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < list->matrix_count; i++) {
		fp_matrix some = rows_of(r, list->matrices[i], &first);
		if (some.rows == 0)
			continue;
		fp_matrix piece = fp_matrix_reshape(fp_matrix_cols(vector, at, fp_matrix_size(some)), some.rows, some.cols);
		FP_TRY(out ? be->memory->copy(be, piece, some) : be->memory->copy(be, some, piece));
		at += fp_matrix_size(some);
	}
cleanup:
	return status;
}

/* Space for so many floats. */
static fp_status make_parcel(fp_parcel *out, fp_backend *be, int64_t floats)
{
	out->size = floats * (int64_t)sizeof(float);
	return fp_allocate_undefined(be->ctx, &out->bytes, out->size + 1);
}

/* Between matrices and a vector. */
static fp_status copy_vector(const rows *r, const fp_addends *list, fp_backend *be, fp_matrix vector, bool out)
{
	return r->kept ? copy_rows(r, list, be, fp_matrix_on_host(be, vector), out)
				   : copy_on_device(r, list, be, vector, out);
}

/* What goes to each rank and comes from it. */
typedef struct parcels {
	fp_parcel *out, *in;
	int ranks;
} parcels;

static fp_status parcels_new(parcels *p, fp_backend *be, const fp_share *share)
{
	fp_status status;
	*p = (parcels){.ranks = fp_share_ranks(share)};
	FP_TRY(FP_NEW(be->ctx, &p->out, p->ranks));
	FP_TRY(FP_NEW(be->ctx, &p->in, p->ranks));
cleanup:
	return status;
}

static void parcels_free(parcels *p)
{
	for (int i = 0; i < p->ranks && p->out && p->in; i++) {
		fp_free(p->out[i].bytes);
		fp_free(p->in[i].bytes);
	}
	fp_free(p->out);
	fp_free(p->in);
	*p = (parcels){0};
}

/* One block of the rows of every rank. */
static fp_status collect_block(const fp_addends *list, rows own, fp_backend *be)
{
	int ranks = fp_share_ranks(own.share);
	parcels p;
	fp_parcel mine = {0};
	fp_status status;
	FP_TRY(parcels_new(&p, be, own.share));
	FP_TRY(make_parcel(&mine, be, entries_of(&own, list)));
	FP_TRY(copy_rows(&own, list, be, mine.bytes, true));
	for (int rank = 0; rank < ranks; rank++) {
		rows other = own;
		other.rank = rank;
		if (rank == own.rank)
			continue;
		p.out[rank] = mine;
		FP_TRY(make_parcel(&p.in[rank], be, entries_of(&other, list)));
	}
	FP_TRY(fp_share_exchange(own.share, p.out, p.in));
	for (int rank = 0; rank < ranks; rank++) {
		rows other = own;
		other.rank = rank;
		if (rank != own.rank)
			FP_TRY(copy_rows(&other, list, be, p.in[rank].bytes, false));
	}
cleanup:
	for (int rank = 0; rank < p.ranks && p.out; rank++)
		p.out[rank].bytes = NULL; /* all are `mine` */
	parcels_free(&p);
	fp_free(mine.bytes);
	return status;
}

fp_status fp_row_slices_collect(const fp_addends *list, const fp_kept_entries *kept, const fp_share *share,
								fp_backend *be)
{
	int blocks = block_count(list);
	fp_status status = FP_OK;
	for (int block = 0; block < blocks && fp_share_ranks(share) > 1 && status == FP_OK; block++)
		status = collect_block(list, (rows){share, be, kept, fp_share_rank(share), block, blocks}, be);
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
	parcels parcels;
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

/* The pieces of another rank's rows, one after the other. */
static fp_status pack_pieces(const gathering *g, int rank, fp_parcel *out)
{
	const fp_part_sum *sum = g->sum;
	rows theirs = g->own;
	theirs.rank = rank;
	int64_t entries = entries_of(&theirs, &sum->registers[0]), at = 0;
	fp_status status;
	FP_TRY(make_parcel(out, sum->be, pieces_of(sum, g->own.rank).filled * entries));
	for (int i = 0; i < sum->depth; i++)
		if (sum->stack[i].which >= 0) {
			FP_TRY(copy_rows(&theirs, &sum->registers[sum->stack[i].which], sum->be, (float *)out->bytes + at, true));
			at += entries;
		}
cleanup:
	return status;
}

/* Sends the rows of others to them, and receives this rank's. */
static fp_status exchange_rows(gathering *g)
{
	const fp_part_sum *sum = g->sum;
	int64_t own = entries_of(&g->own, &sum->registers[0]);
	fp_status status = FP_OK;
	for (int rank = 0; rank < g->parcels.ranks; rank++) {
		if (rank == g->own.rank)
			continue;
		FP_TRY(pack_pieces(g, rank, &g->parcels.out[rank]));
		FP_TRY(make_parcel(&g->parcels.in[rank], sum->be, pieces_of(sum, rank).filled * own));
	}
	FP_TRY(fp_share_exchange(sum->share, g->parcels.out, g->parcels.in));
cleanup:
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
				FP_TRY(copy_vector(&g->own, &sum->registers[sum->stack[i].which], be, g->vectors[piece.which], true));
			else
				FP_TRY(be->memory->upload(be, g->vectors[piece.which], (const float *)g->parcels.in[rank].bytes + at,
										  FP_F32, own));
			at += own;
		}
		FP_TRY(fp_part_sum_push(&g->tree, piece));
	}
cleanup:
	return status;
}

/* One block of this rank's rows. */
static fp_status gather_block(fp_part_sum *sum, const fp_kept_entries *kept, int block, int blocks)
{
	const fp_share *share = sum->share;
	fp_backend *be = sum->be;
	gathering g = {.sum = sum, .own = {share, be, kept, fp_share_rank(share), block, blocks}, .whole = *share};
	fp_status status;
	FP_TRY(parcels_new(&g.parcels, be, share));
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
		FP_TRY(copy_vector(&g.own, &sum->registers[0], be, g.vectors[g.tree.stack[0].which], false));
	FP_TRY(be->memory->synchronize(be)); /* before what was received is freed */
cleanup:
	fp_part_sum_close(&g.tree);
	for (int i = 0; i <= FP_PARTS; i++)
		fp_matrix_free(be, &g.vectors[i]);
	parcels_free(&g.parcels);
	return status;
}

fp_status fp_part_sum_scatter(fp_part_sum *sum, const fp_kept_entries *kept)
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
	FP_REQUIRE(sum->be, !kept || kept->count == sum->registers[0].matrix_count);
	int blocks = block_count(&sum->registers[0]);
	for (int block = 0; block < blocks; block++)
		FP_TRY(gather_block(sum, kept, block, blocks));
	sum->depth = 0;
cleanup:
	return status;
}

fp_status fp_part_sum_finish_rows(fp_part_sum *sum)
{
	fp_status status = fp_part_sum_scatter(sum, NULL);
	return status == FP_OK ? fp_row_slices_collect(&sum->registers[0], NULL, sum->share, sum->be) : status;
}
