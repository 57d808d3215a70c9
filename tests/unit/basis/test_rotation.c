/* SPDX-License-Identifier: Apache-2.0 */
/* Steps on orthogonal matrices: they go down ‖R − Q‖² to a known Q, stay orthogonal, and keep ones. */
#include "basis_fixture.h"

#include "basis/rotation.h"

#include <math.h>
#include <stdlib.h>

typedef struct rotation_run {
	model_fixture f; /* for its context and backend */
	fp_matrix R;
	fp_rotation rotation;
	float *Q; /* the goal, blocks·n × n */
	int64_t count;
} rotation_run;

static void open_run(rotation_run *run, fp_rotation_kind kind, int64_t blocks, int64_t n, uint64_t seed)
{
	*run = (rotation_run){.count = blocks * n * n};
	open_fixture(&run->f, "llama-plain");
	run->Q = malloc((size_t)run->count * sizeof *run->Q);
	float *root = malloc((size_t)(n * n) * sizeof *root);
	for (int64_t block = 0; block < blocks; block++) {
		float *Q = run->Q + block * n * n;
		random_orthogonal(root, n, kind == FP_TURN_KEEP_ONES, &seed);
		for (int64_t i = 0; i < n; i++) /* a square: without a reflection, which no turn reaches */
			for (int64_t j = 0; j < n; j++) {
				double sum = 0;
				for (int64_t k = 0; k < n; k++)
					sum += (double)root[i * n + k] * (double)root[k * n + j];
				Q[i * n + j] = (float)sum;
			}
	}
	free(root);
	assert_ok(run->f.ctx, fp_identities(run->f.be, &run->R, blocks, n));
	assert_ok(run->f.ctx, fp_rotation_new(&run->rotation, run->f.be, kind, run->R));
}

static void close_run(rotation_run *run)
{
	fp_rotation_free(&run->rotation);
	fp_matrix_free(run->f.be, &run->R);
	close_fixture(&run->f);
	free(run->Q);
}

/* ‖R − Q‖², and the gradient for the next step. */
static double measure(rotation_run *run)
{
	float *R = matrix_floats(&run->f, run->R);
	double sum = 0;
	for (int64_t i = 0; i < run->count; i++) {
		double difference = (double)R[i] - (double)run->Q[i];
		sum += difference * difference;
		R[i] = (float)(2 * difference);
	}
	set_matrix(&run->f, run->rotation.gradient, R);
	free(R);
	return sum;
}

static void check_constraints(rotation_run *run, double most)
{
	assert_true(orthogonality_error(&run->f, run->R) < most);
	if (run->rotation.kind == FP_TURN_KEEP_ONES)
		assert_true(ones_error(&run->f, run->R) < most * sqrt((double)run->R.cols));
}

static void steps_reach_the_goal(void **unused)
{
	(void)unused;
	enum { STEPS = 400 };
	static const struct {
		fp_rotation_kind kind;
		int64_t blocks, n;
	} cases[] = {{FP_TURN_ALL, 1, 16}, {FP_TURN_ALL, 3, 6}, {FP_TURN_ALL, 4, 8}, {FP_TURN_KEEP_ONES, 1, 24}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		rotation_run run;
		open_run(&run, cases[i].kind, cases[i].blocks, cases[i].n, 3 + i);
		double first = measure(&run), last = first;
		for (int step = 0; step < STEPS; step++) {
			double rate = 0.2 * (1 - (double)step / STEPS);
			assert_ok(run.f.ctx, fp_rotation_step(&run.rotation, rate));
			double now = measure(&run);
			if (step < 5 && !(now < last)) /* while the goal is far */
				fail_msg("case %zu: step %d goes up from %g to %g", i, step, last, now);
			last = now;
			check_constraints(&run, 1e-4);
		}
		print_message("  case %zu: %g, then %g\n", i, first, last);
		assert_true(last < 1e-3 * first);
		assert_ok(run.f.ctx, fp_rotation_finish(&run.rotation));
		check_constraints(&run, 2e-6);
		close_run(&run);
	}
}

/* Only the part of a goal that is allowed is reached: ones stay ones. */
static void a_goal_that_is_not_allowed_is_not_reached(void **unused)
{
	(void)unused;
	rotation_run run;
	uint64_t seed = 5;
	open_run(&run, FP_TURN_KEEP_ONES, 1, 12, 5);
	random_orthogonal(run.Q, 12, false, &seed);
	double first = measure(&run);
	for (int step = 0; step < 100; step++) {
		assert_ok(run.f.ctx, fp_rotation_step(&run.rotation, 0.1));
		measure(&run);
	}
	assert_ok(run.f.ctx, fp_rotation_finish(&run.rotation));
	check_constraints(&run, 2e-6);
	assert_true(measure(&run) < first);
	close_run(&run);
}

/* A last step that was long leaves singular values far below 1. */
static void the_end_is_orthogonal_from_afar(void **unused)
{
	(void)unused;
	for (int blocks = 1; blocks <= 3; blocks++) {
		rotation_run run;
		open_run(&run, FP_TURN_ALL, blocks, 8, 21);
		for (int64_t i = 0; i < run.count; i++)
			run.Q[i] *= 0.2F;
		set_matrix(&run.f, run.R, run.Q);
		assert_ok(run.f.ctx, fp_rotation_finish(&run.rotation));
		check_constraints(&run, 2e-6);
		close_run(&run);
	}
}

/* Large steps too. */
static void one_rate_serves_every_order(void **unused)
{
	(void)unused;
	static const int64_t orders[] = {2, 8, 64};
	for (int i = 0; i < 3; i++)
		for (int kind = FP_TURN_ALL; kind <= FP_TURN_KEEP_ONES; kind++) {
			rotation_run run;
			open_run(&run, (fp_rotation_kind)kind, 1, orders[i], 13);
			for (int step = 0; step < 30; step++) {
				measure(&run);
				assert_ok(run.f.ctx, fp_rotation_step(&run.rotation, 1));
			}
			assert_ok(run.f.ctx, fp_rotation_finish(&run.rotation));
			check_constraints(&run, 5e-6);
			close_run(&run);
		}
}

/* Where all channels turn with one, Adam's first step has the norm √n·rate: it must not leave the orthogonal matrices. */
static void long_steps_stay_orthogonal(void **unused)
{
	(void)unused;
	static const fp_rotation_kind kinds[] = {FP_TURN_ALL, FP_TURN_KEEP_ONES};
	for (int i = 0; i < 2; i++) {
		rotation_run run;
		uint64_t seed = 2;
		int64_t n = 128;
		open_run(&run, kinds[i], 1, n, 4);
		for (int step = 0; step < 3; step++) {
			float *G = malloc((size_t)run.count * sizeof *G), u[128], v[128];
			for (int64_t k = 0; k < n; k++) {
				u[k] = random_normal(&seed);
				v[k] = random_normal(&seed);
			}
			for (int64_t k = 0; k < run.count; k++) /* of rank one: all signs agree */
				G[k] = u[k / n] * v[k % n];
			set_matrix(&run.f, run.rotation.gradient, G);
			free(G);
			assert_ok(run.f.ctx, fp_rotation_step(&run.rotation, 1));
		}
		assert_ok(run.f.ctx, fp_rotation_finish(&run.rotation));
		check_constraints(&run, 5e-6);
		close_run(&run);
	}
}

/* A gradient of zero leaves R alone. */
static void no_gradient_is_no_step(void **unused)
{
	(void)unused;
	rotation_run run;
	open_run(&run, FP_TURN_ALL, 2, 6, 1);
	float *before = matrix_floats(&run.f, run.R);
	assert_ok(run.f.ctx, run.f.be->memory->fill(run.f.be, run.rotation.gradient, 0));
	assert_ok(run.f.ctx, fp_rotation_step(&run.rotation, 1));
	float *after = matrix_floats(&run.f, run.R);
	assert_memory_equal(before, after, (size_t)run.count * sizeof *before);
	free(before);
	free(after);
	close_run(&run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_reach_the_goal),        cmocka_unit_test(a_goal_that_is_not_allowed_is_not_reached),
		cmocka_unit_test(one_rate_serves_every_order), cmocka_unit_test(long_steps_stay_orthogonal),
		cmocka_unit_test(no_gradient_is_no_step),      cmocka_unit_test(the_end_is_orthogonal_from_afar),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
