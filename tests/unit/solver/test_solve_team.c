/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that solve some rows of an operator each get the rows of the whole solution, to the bit. */
#include "sharing/row_slices.h"
#include "solver_fixture.h"
#include "thread_ranks.h"

#include <stdlib.h>
#include <string.h>

enum { M = 200, N = 96, MOST_RANKS = 4, OPERATORS = 2 };

typedef struct outcome {
	bool keeps;
	double shift; /* added to the diagonal of A: the inverse of a negative one is refused at first */
	float V[M * N];
	int64_t steps[MOST_RANKS];
	fp_status status[MOST_RANKS];
} outcome;

typedef struct team_data {
	fp_comm *comm;
	fp_backend *be;
} team_data;

static fp_status sum(void *data, int64_t *value)
{
	fp_comm *comm = ((team_data *)data)->comm;
	return comm->ops->sum(comm, value);
}

static fp_status give(void *data, int from, fp_matrix m, int64_t *number)
{
	const team_data *own = data;
	float *host = malloc((size_t)fp_matrix_size(m) * sizeof *host);
	fp_status status;
	FP_TRY(own->be->memory->download(own->be, host, FP_F32, m.cols, m));
	FP_TRY(own->comm->ops->broadcast(own->comm, from, host, fp_matrix_size(m) * (int64_t)sizeof *host));
	FP_TRY(own->be->memory->upload(own->be, m, host, FP_F32, m.cols));
	FP_TRY(own->comm->ops->broadcast(own->comm, from, number, sizeof *number));
cleanup:
	free(host);
	return status;
}

/* Several operators, of which the inverses may be kept. */
static void solve_on_rank(fp_comm *comm, void *data)
{
	outcome *o = data;
	solver_fixture f;
	int me = comm->rank;
	make_fixture(&f, M, N, 400, 0.1, 3, "2:4");
	fixture_set(&f, "search_steps=120");
	fixture_set(&f, "support_search=admm");
	fixture_set(&f, "refit_steps=6");
	fixture_set(&f, "iterations=0");
	fixture_set(&f, "warm_start=dense");
	team_data own = {comm, f.be};
	fp_solve_team team = {
		.member = me, .members = comm->size, .rows = M, .keeps = o->keeps, .sum = sum, .give = give, .data = &own};
	fp_share share = {.comm = comm};
	fp_problem problem = f.problem;
	fp_solution solution;
	fp_matrix shift, V = fp_row_slice(&share, f.be, me, f.V);
	fp_status status;
	problem.W = fp_row_slice(&share, f.be, me, problem.W);
	problem.C = fp_row_slice(&share, f.be, me, problem.C);
	if (!fp_matrix_is_absent(problem.R))
		problem.R = fp_row_slice(&share, f.be, me, problem.R);
	problem.unmeasured = true;
	FP_TRY(fp_matrix_new(f.be, &shift, 1, N, FP_F32));
	FP_TRY(f.be->memory->fill(f.be, shift, (float)(o->shift * f.gram.mean_diagonal)));
	FP_TRY(f.be->linear->add_diagonal(f.be, f.dA, shift));
	fp_matrix_free(f.be, &shift);
	f.gram.team = comm->size > 1 ? &team : NULL;
	f.gram.shared = o->keeps;
	for (int i = 0; i < OPERATORS; i++)
		FP_TRY(fp_solve(&problem, f.settings, V, &solution));
	o->steps[me] = solution.search_steps;
	FP_TRY(f.be->memory->download(f.be, o->V + V.offset, FP_F32, N, V));
cleanup:
	o->status[me] = status;
	free_fixture(&f);
}

static void members_find_the_rows_of_the_whole(void **unused)
{
	(void)unused;
	static const double shifts[] = {0, -0.12};
	for (int i = 0; i < 4; i++)
		for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
			outcome *whole = calloc(1, sizeof *whole), *parts = calloc(1, sizeof *parts);
			whole->keeps = parts->keeps = i % 2 == 1;
			whole->shift = parts->shift = shifts[i / 2];
			run_thread_ranks(1, solve_on_rank, whole);
			run_thread_ranks(ranks, solve_on_rank, parts);
			assert_int_equal(whole->status[0], FP_OK);
			assert_true(whole->steps[0] > 6);
			for (int rank = 0; rank < ranks; rank++) {
				assert_int_equal(parts->status[rank], FP_OK);
				assert_int_equal(parts->steps[rank], whole->steps[0]);
			}
			assert_memory_equal(parts->V, whole->V, sizeof whole->V);
			free(whole);
			free(parts);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(members_find_the_rows_of_the_whole)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
