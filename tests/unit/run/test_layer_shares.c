/* SPDX-License-Identifier: Apache-2.0 */
/* The shares cover all layers in order, and no other division finishes earlier. */
#include "support.h"

#include "comm/comm.h"
#include "run/layer_shares.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 24 };

/* The time at which the last rank finishes. */
static double makespan(const int64_t *first, int ranks, double forward, const double *cost)
{
	double latest = 0;
	for (int rank = 0; rank < ranks; rank++) {
		double busy = forward * (double)first[rank + 1];
		if (first[rank] == first[rank + 1])
			continue;
		for (int64_t layer = first[rank]; layer < first[rank + 1]; layer++)
			busy += cost[layer];
		latest = fmax(latest, busy);
	}
	return latest;
}

/* The earliest finish over all divisions, by trying every one. */
static double best(int64_t *first, int rank, int ranks, int64_t layers, double forward, const double *cost)
{
	double found = INFINITY;
	if (rank == ranks) {
		first[ranks] = layers;
		return makespan(first, ranks, forward, cost);
	}
	for (first[rank] = rank == 0 ? 0 : first[rank - 1]; first[rank] <= layers; first[rank]++) {
		int64_t mine = first[rank];
		found = fmin(found, best(first, rank + 1, ranks, layers, forward, cost));
		first[rank] = mine;
		if (rank == 0)
			break;
	}
	return found;
}

static void no_division_is_better(void **unused)
{
	(void)unused;
	srand(7);
	for (int trial = 0; trial < 300; trial++) {
		int64_t first[MOST + 1], tried[MOST + 1], layers = 1 + rand() % 9;
		int ranks = 1 + rand() % 4;
		double cost[MOST], forward = (rand() % 3) * 0.25;
		for (int64_t layer = 0; layer < layers; layer++)
			cost[layer] = rand() % 4; /* some are finished already */
		fp_share_layers(first, ranks, layers, forward, cost);
		assert_int_equal(first[0], 0);
		assert_int_equal(first[ranks], layers);
		for (int rank = 0; rank < ranks; rank++)
			assert_true(first[rank] <= first[rank + 1]);
		double wanted = best(tried, 0, ranks, layers, forward, cost);
		assert_true(makespan(first, ranks, forward, cost) <= wanted * (1 + 1e-6) + 1e-9);
	}
}

static void early_ranks_get_more_layers(void **unused)
{
	(void)unused;
	int64_t first[5];
	double cost[80];
	for (int i = 0; i < 80; i++)
		cost[i] = 10;
	fp_share_layers(first, 4, 80, 1, cost);
	assert_true(first[1] - first[0] > first[4] - first[3]);
	fp_share_layers(first, 4, 80, 0, cost);
	for (int rank = 0; rank < 4; rank++)
		assert_int_equal(first[rank + 1] - first[rank], 20);
}

static void a_single_process_has_no_other_rank(void **unused)
{
	(void)unused;
	fp_context *ctx = fp_context_new();
	fp_comm *comm;
	int64_t value = 3;
	assert_ok(ctx, fp_comm_open(&comm, ctx, false));
	assert_int_equal(comm->size, 1);
	assert_int_equal(comm->rank, 0);
	assert_ok(ctx, comm->ops->broadcast(comm, 0, &value, sizeof value));
	assert_ok(ctx, comm->ops->minimum(comm, &value));
	assert_int_equal(value, 3);
	assert_fails(ctx, FP_ERROR_INTERNAL, "no other rank", comm->ops->send(comm, 1, &value, sizeof value));
	assert_fails(ctx, FP_ERROR_INTERNAL, "no other rank", comm->ops->receive(comm, 1, &value, sizeof value));
	assert_ok(ctx, fp_comm_agree(comm, FP_OK));
	assert_int_equal(fp_comm_agree(comm, FP_ERROR_IO), FP_ERROR_IO);
	fp_comm_close(comm, false);
	fp_comm_close(NULL, true);
	setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
	setenv("FISTAPRUNER_MPI_MODULE", "/nowhere/module.so", 1);
	assert_fails(ctx, FP_ERROR_DEVICE, "FISTAPRUNER_MPI_MODULE", fp_comm_open(&comm, ctx, true));
	assert_ok(ctx, fp_comm_open(&comm, ctx, false)); /* a command that does not share work runs as one process */
	fp_comm_close(comm, false);
	unsetenv("OMPI_COMM_WORLD_SIZE");
	unsetenv("FISTAPRUNER_MPI_MODULE");
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_division_is_better),
		cmocka_unit_test(early_ranks_get_more_layers),
		cmocka_unit_test(a_single_process_has_no_other_rank),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
