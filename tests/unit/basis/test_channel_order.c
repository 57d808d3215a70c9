/* SPDX-License-Identifier: Apache-2.0 */
/* The order of inner channels: it never raises the removed mass, finds what is obvious, and is left alone where no group
 * can gain. */
#include "basis_fixture.h"
#include "plain_mass.h"

#include "basis/channel_order.h"

#include <stdlib.h>

typedef struct order_run {
	model_fixture f; /* for its context and backend */
	int64_t rows, channels;
	double *W, *squares;
	fp_layer layer;
	fp_matrix weights[FP_ROLE_COUNT];
	fp_matrix inner;
	fp_basis_task task;
	int32_t *order;
} order_run;

static void open_run(order_run *run, int64_t rows, int64_t channels, fp_pattern pattern)
{
	*run = (order_run){.rows = rows, .channels = channels};
	open_fixture(&run->f, "llama-plain");
	run->W = calloc((size_t)(rows * channels), sizeof *run->W);
	run->squares = malloc((size_t)channels * sizeof *run->squares);
	for (int64_t j = 0; j < channels; j++)
		run->squares[j] = 1;
	run->task = (fp_basis_task){.be = run->f.be, .ctx = run->f.ctx, .model = run->f.model, .pattern = pattern};
	run->layer = (fp_layer){.model = run->f.model, .index = 1};
	run->layer.weight = run->weights;
	assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &run->layer.weight[FP_DOWN], rows, channels, FP_F32));
	assert_ok(run->f.ctx, fp_matrix_new(run->f.be, &run->inner, 1, channels, FP_F32));
}

static void close_run(order_run *run)
{
	fp_free(run->order);
	fp_matrix_free(run->f.be, &run->layer.weight[FP_DOWN]);
	fp_matrix_free(run->f.be, &run->inner);
	close_fixture(&run->f);
	free(run->W);
	free(run->squares);
}

static void randomise(order_run *run, uint64_t seed)
{
	for (int64_t j = 0; j < run->channels; j++) {
		float scale = random_normal(&seed);
		run->squares[j] = (double)(0.01F + scale * scale);
	}
	for (int64_t i = 0; i < run->rows * run->channels; i++)
		run->W[i] = (double)random_normal(&seed);
}

static void put(order_run *run, fp_matrix matrix, const double *values)
{
	int64_t count = fp_matrix_size(matrix);
	float *floats = malloc((size_t)count * sizeof *floats);
	for (int64_t i = 0; i < count; i++)
		floats[i] = (float)values[i];
	set_matrix(&run->f, matrix, floats);
	free(floats);
}

static void find_order(order_run *run)
{
	fp_free(run->order);
	put(run, run->layer.weight[FP_DOWN], run->W);
	put(run, run->inner, run->squares);
	assert_ok(run->f.ctx, fp_order_channels(&run->order, &run->task, &run->layer, run->inner));
}

/* What the pattern removes of the rows in an order; NULL: as they are. */
static double removed_in(const order_run *run, const int32_t *order)
{
	double *W = malloc((size_t)(run->rows * run->channels) * sizeof *W);
	double *h = malloc((size_t)run->channels * sizeof *h);
	for (int64_t j = 0; j < run->channels; j++) {
		int64_t from = order ? order[j] : j;
		h[j] = run->squares[from];
		for (int64_t i = 0; i < run->rows; i++)
			W[i * run->channels + j] = run->W[i * run->channels + from];
	}
	double mass = plain_mass(W, h, run->rows, run->channels, &run->task.pattern);
	free(W);
	free(h);
	return mass;
}

static void assert_permutation(const order_run *run)
{
	unsigned char *seen = calloc((size_t)run->channels, 1);
	assert_non_null(run->order);
	for (int64_t i = 0; i < run->channels; i++) {
		assert_in_range(run->order[i], 0, run->channels - 1);
		assert_false(seen[run->order[i]]);
		seen[run->order[i]] = 1;
	}
	free(seen);
}

/* The large channels stand in one group; spread over the groups, none of them is removed. */
static void large_channels_are_spread(void **unused)
{
	(void)unused;
	static const struct {
		int64_t channels, large;
		fp_pattern pattern;
	} cases[] = {{8, 4, {2, 4, 0.5}},   {8, 2, {1, 4, 0.75}}, {16, 8, {4, 8, 0.5}},  {32, 8, {1, 4, 0.75}},
				 {64, 32, {2, 4, 0.5}}, {6, 3, {1, 2, 0.5}},  {32, 8, {4, 16, 0.75}}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		order_run run;
		open_run(&run, 3, cases[i].channels, cases[i].pattern);
		for (int64_t k = 0; k < 3 * cases[i].channels; k++)
			run.W[k] = k % cases[i].channels < cases[i].large ? 2 : 0;
		assert_true(removed_in(&run, NULL) > 0);
		find_order(&run);
		assert_permutation(&run);
		if (removed_in(&run, run.order) > 0)
			fail_msg("case %zu: %g is still removed", i, removed_in(&run, run.order));
		close_run(&run);
	}
}

/* E[x²] counts as much as w². */
static void inputs_count(void **unused)
{
	(void)unused;
	order_run run;
	open_run(&run, 2, 8, (fp_pattern){2, 4, 0.5});
	for (int64_t k = 0; k < 16; k++)
		run.W[k] = 1;
	for (int64_t j = 0; j < 8; j++)
		run.squares[j] = j < 4 ? 9 : 0;
	find_order(&run);
	assert_permutation(&run);
	assert_true(removed_in(&run, run.order) == 0);
	close_run(&run);
}

static void the_mass_never_rises(void **unused)
{
	(void)unused;
	static const struct {
		int64_t rows, channels;
		fp_pattern pattern;
	} cases[] = {{24, 40, {2, 4, 0.5}},  {24, 40, {1, 4, 0.75}}, {24, 40, {4, 8, 0.5}}, {1, 64, {3, 4, 0.25}},
				 {512, 32, {2, 4, 0.5}}, {24, 4, {2, 4, 0.5}},   {7, 96, {1, 2, 0.5}},  {24, 48, {8, 16, 0.5}}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		order_run run;
		open_run(&run, cases[i].rows, cases[i].channels, cases[i].pattern);
		randomise(&run, 31 + i);
		find_order(&run);
		assert_permutation(&run);
		double before = removed_in(&run, NULL), after = removed_in(&run, run.order);
		print_message("  %d:%d of %3d channels: %.1f, then %.1f\n", (int)cases[i].pattern.kept,
					  (int)cases[i].pattern.group, (int)cases[i].channels, before, after);
		assert_true(after <= before * (1 + 1e-6));
		if (cases[i].channels > cases[i].pattern.group)
			assert_true(after < before);
		close_run(&run);
	}
}

/* With more rows than are looked at, evenly spaced ones stand for the others. */
static void many_rows_are_sampled(void **unused)
{
	(void)unused;
	order_run run;
	open_run(&run, 1300, 16, (fp_pattern){2, 4, 0.5});
	randomise(&run, 3);
	find_order(&run);
	assert_permutation(&run);
	assert_true(removed_in(&run, run.order) < removed_in(&run, NULL));
	close_run(&run);
}

static void threads_do_not_change_the_order(void **unused)
{
	(void)unused;
	order_run run;
	int32_t first[64];
	open_run(&run, 24, 64, (fp_pattern){2, 4, 0.5});
	randomise(&run, 8);
	find_order(&run);
	memcpy(first, run.order, sizeof first);
	for (int threads = 1; threads <= 3; threads++) {
		run.f.be->threads = threads;
		find_order(&run);
		assert_memory_equal(first, run.order, sizeof first);
	}
	close_run(&run);
}

static void there_is_no_order_where_none_helps(void **unused)
{
	(void)unused;
	static const struct {
		int64_t channels;
		fp_pattern pattern;
	} cases[] = {{40, {.sparsity = 0.5}}, {42, {2, 4, 0.5}}, {20, {4, 8, 0.5}}, {64, {16, 32, 0.5}}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		order_run run;
		open_run(&run, 5, cases[i].channels, cases[i].pattern);
		randomise(&run, i);
		find_order(&run);
		assert_null(run.order);
		close_run(&run);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_channels_are_spread),
		cmocka_unit_test(inputs_count),
		cmocka_unit_test(the_mass_never_rises),
		cmocka_unit_test(many_rows_are_sampled),
		cmocka_unit_test(threads_do_not_change_the_order),
		cmocka_unit_test(there_is_no_order_where_none_helps),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
