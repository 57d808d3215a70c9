/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the parts of a text have the same bits for any number of ranks, those of the fixed tree. */
#include "support.h"
#include "thread_ranks.h"

#include "sharing/row_slices.h"

#include <stdlib.h>
#include <string.h>

enum {
	ROWS = 67,
	COLS = 5, /* two ranks have whole strips each, more ranks any rows */
	SIZE = ROWS * COLS,
	LARGE = 70001, /* entries of a matrix that travels by itself */
	MOST_RANKS = 20
};

/* A part's summands, of sizes so different that the order of additions shows. */
static float summand(int part, int i)
{
	float value = (float)((part * 7919 + i * 104729) % 1009 - 504) / 337.0F;
	return part % 3 == 1 ? value * 4096 : part % 5 == 2 ? value / 4096 : value;
}

static bool is_kept(int i)
{
	return i % 3 != 1;
}

/* What a sum over ranks gave. */
typedef struct outcome {
	int64_t windows;
	bool skipped[FP_PARTS]; /* parts that are not summed although they have windows */
	bool everywhere;
	bool sliced; /* each rank sums some rows, and gets the others from the others */
	bool kept;   /* of some entries only, if there are several ranks */
	bool large;  /* a large matrix too, with the same summand in all entries */
	float sum[MOST_RANKS][SIZE];
	double number[MOST_RANKS];
	float first[MOST_RANKS], last[MOST_RANKS]; /* of the large matrix */
	int made[MOST_RANKS], expected[MOST_RANKS];
	fp_status status[MOST_RANKS];
} outcome;

typedef struct registers {
	fp_backend *be;
	bool sliced, large;
	fp_matrix sum[FP_PARTS + 1], wide[FP_PARTS + 1];
	double number[FP_PARTS + 1];
} registers;

static fp_status make(void *data, int which, fp_addends *out)
{
	registers *r = data;
	fp_status status;
	FP_TRY(fp_matrix_new(r->be, &r->sum[which], ROWS, COLS, FP_F32));
	FP_TRY(r->be->memory->fill(r->be, r->sum[which], 1e30F)); /* what begins a part is undefined */
	FP_TRY(fp_addends_matrix(out, r->be->ctx, r->sum[which]));
	FP_TRY(fp_addends_matrix(out, r->be->ctx, (fp_matrix){0}));
	if (r->large) {
		FP_TRY(fp_matrix_new(r->be, &r->wide[which], 1, LARGE, FP_F32));
		FP_TRY(fp_addends_matrix(out, r->be->ctx, r->wide[which]));
	}
	if (!r->sliced)
		FP_TRY(fp_addends_number(out, r->be->ctx, &r->number[which]));
cleanup:
	return status;
}

static fp_status set_part(registers *r, int part, int which)
{
	float values[SIZE];
	fp_status status = FP_OK;
	for (int i = 0; i < SIZE; i++)
		values[i] = summand(part, i);
	r->number[which] = summand(part, SIZE);
	if (r->large)
		FP_TRY(r->be->memory->fill(r->be, r->wide[which], values[0]));
	FP_TRY(r->be->memory->upload(r->be, r->sum[which], values, FP_F32, COLS));
cleanup:
	return status;
}

static fp_status list_kept(fp_kept_entries *kept, fp_backend *be)
{
	float values[SIZE];
	for (int i = 0; i < SIZE; i++)
		values[i] = is_kept(i) ? 1.0F : 0.0F;
	return fp_kept_entries_add(kept, be->ctx, ROWS, COLS, values);
}

/* Register 0 ← the sum on all ranks, each of which forgets the rows that are not its own */
static fp_status sum_slices(fp_part_sum *sum, registers *r, bool some)
{
	const fp_share *share = sum->share;
	fp_kept_entries entries = {0}, *kept = some ? &entries : NULL;
	fp_status status = FP_OK;
	if (some)
		FP_TRY(list_kept(&entries, r->be));
	FP_TRY(fp_part_sum_scatter(sum, kept));
	for (int rank = 0; rank < fp_share_ranks(share); rank++) {
		fp_matrix rows = fp_row_slice(share, r->be, rank, r->sum[0]);
		if (rank != fp_share_rank(share))
			FP_TRY(r->be->memory->fill(r->be, rows, 1e30F));
	}
	FP_TRY(fp_row_slices_collect(&sum->registers[0], kept, share, r->be));
cleanup:
	fp_kept_entries_free(&entries);
	return status;
}

static void sum_on_rank(fp_comm *comm, void *data)
{
	outcome *o = data;
	int me = comm->rank, which;
	fp_share share = fp_share_divided(comm, o->windows);
	registers r = {.sliced = o->sliced, .large = o->large};
	fp_part_sum sum = {0};
	fp_status status;
	FP_TRY(fp_backend_open(&r.be, comm->ctx, "cpu", 1));
	fp_part_sum_open(&sum, &share, r.be, make, &r);
	for (int part = 0; part < FP_PARTS; part++)
		sum.used[part] = sum.used[part] && !o->skipped[part];
	for (int part = share.begin; part < share.end; part++) {
		if (!sum.used[part])
			continue;
		FP_TRY(fp_part_sum_begin(&sum, part, &which));
		FP_TRY(set_part(&r, part, which));
		FP_TRY(fp_part_sum_end(&sum));
	}
	if (!o->sliced)
		FP_TRY(fp_part_sum_finish(&sum, o->everywhere));
	else
		FP_TRY(o->everywhere ? fp_part_sum_finish_rows(&sum) : sum_slices(&sum, &r, o->kept));
	o->made[me] = sum.made;
	o->expected[me] = fp_part_sum_registers(&share, FP_PARTS);
	o->number[me] = o->sliced ? 0 : r.number[0];
	FP_TRY(r.be->memory->download(r.be, o->sum[me], FP_F32, COLS, r.sum[0]));
	if (o->large) {
		FP_TRY(r.be->memory->download(r.be, &o->first[me], FP_F32, 1, fp_matrix_cols(r.wide[0], 0, 1)));
		FP_TRY(r.be->memory->download(r.be, &o->last[me], FP_F32, 1, fp_matrix_cols(r.wide[0], LARGE - 1, 1)));
	}
cleanup:
	for (int i = 0; i <= FP_PARTS; i++) {
		fp_matrix_free(r.be, &r.sum[i]);
		fp_matrix_free(r.be, &r.wide[i]);
	}
	fp_part_sum_close(&sum);
	fp_backend_close(r.be);
	o->status[me] = status;
}

static bool is_used(const outcome *o, int part)
{
	return part * o->windows / FP_PARTS < (part + 1) * o->windows / FP_PARTS && !o->skipped[part];
}

/* The tree in plain words: four parts in a row, and four of these in a row. */
static float tree(const outcome *o, int i)
{
	float sum = 0;
	bool any = false;
	for (int group = 0; group < FP_PARTS; group += 4) {
		float own = 0;
		bool some = false;
		for (int part = group; part < group + 4; part++)
			if (is_used(o, part)) {
				own = some ? own + summand(part, i) : summand(part, i);
				some = true;
			}
		if (some) {
			sum = any ? sum + own : own;
			any = true;
		}
	}
	return sum;
}

static void check(outcome *o, int ranks)
{
	run_thread_ranks(ranks, sum_on_rank, o);
	for (int rank = 0; rank < ranks; rank++) {
		assert_int_equal(o->status[rank], FP_OK);
		if (o->made[rank] > o->expected[rank])
			fail_msg("rank %d of %d has %d registers, not %d", rank, ranks, o->made[rank], o->expected[rank]);
		if (rank > 0 && !o->everywhere && !o->sliced)
			continue;
		for (int i = 0; i < SIZE; i++) {
			float want = o->kept && ranks > 1 && !is_kept(i) ? 0 : tree(o, i);
			if (memcmp(&want, &o->sum[rank][i], sizeof want) != 0)
				fail_msg("rank %d of %d, %lld windows: %.9g, not %.9g", rank, ranks, (long long)o->windows,
						 (double)o->sum[rank][i], (double)want);
		}
		assert_true(o->number[rank] == o->number[0]);
		if (o->large)
			assert_true(o->first[rank] == o->sum[rank][0] && o->last[rank] == o->sum[rank][0]);
	}
}

static void any_number_of_ranks_gives_the_same_bits(void **unused)
{
	(void)unused;
	static const int64_t windows[] = {1, 2, 5, 16, 128, 1000};
	for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
		for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++)
			for (int i = 0; i < 10; i++) {
				outcome *o = calloc(1, sizeof *o);
				o->windows = windows[w];
				o->everywhere = i % 5 == 1 || i % 5 == 4;
				o->sliced = i % 5 >= 2;
				o->kept = i % 5 == 3;
				o->large = !o->sliced && windows[w] == 16;
				for (int part = 0; part < FP_PARTS && windows[w] > FP_PARTS && i > 4; part++)
					o->skipped[part] = (part * 5 + ranks + i) % 3 == 0;
				check(o, ranks);
				free(o);
			}
}

static void one_process_has_three_registers(void **unused)
{
	(void)unused;
	fp_share alone = fp_share_divided(NULL, 128), whole = fp_share_whole(128);
	assert_int_equal(fp_part_sum_registers(&alone, FP_PARTS), 3);
	assert_int_equal(fp_part_sum_registers(&alone, 2), 2);
	assert_int_equal(fp_part_sum_registers(&whole, FP_PARTS), 1);
}

/* Whether the ranks' shares follow each other and cover all windows. */
static void every_window_has_one_rank(void **unused)
{
	(void)unused;
	for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
		for (int64_t windows = 0; windows < 40; windows++) {
			int64_t next = 0, most = 0;
			for (int rank = 0; rank < ranks; rank++) {
				fp_comm comm = {.rank = rank, .size = ranks};
				fp_share share = fp_share_divided(&comm, windows);
				assert_int_equal(fp_share_first(&share), next);
				for (int part = share.begin; part < share.end; part++)
					assert_int_equal(fp_share_owner(&share, part), rank);
				for (int64_t i = 0; i < fp_share_count(&share); i++) {
					int part = fp_share_part(&share, next + i);
					assert_true(part >= share.begin && part < share.end);
				}
				next += fp_share_count(&share);
				most = fp_share_count(&share) > most ? fp_share_count(&share) : most;
				if (rank + 1 == ranks) {
					assert_int_equal(next, windows);
					assert_int_equal(fp_share_most(&share), most);
				}
			}
		}
}

static void tasks_go_to_the_rank_with_the_least_to_do(void **unused)
{
	(void)unused;
	const double cost[] = {1, 1, 1, 5, 2, 2};
	double busy[3] = {0};
	int owner[6];
	fp_share_tasks(owner, cost, 6, busy, 3);
	assert_int_equal(owner[3], 0);
	for (int i = 0; i < 6; i++)
		assert_true(i == 3 || owner[i] > 0);
	assert_true(busy[0] == 5 && busy[1] + busy[2] == 7 && busy[1] >= 3 && busy[2] >= 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
		cmocka_unit_test(one_process_has_three_registers),
		cmocka_unit_test(every_window_has_one_rank),
		cmocka_unit_test(tasks_go_to_the_rank_with_the_least_to_do),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
