/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The masses that bases are learned from, and the first step, against plain loops in double. Adam's first step goes by the
 * signs of the gradient: with a short one, the basis shows them. They are compared with differences of the plain mass along
 * every turn of two channels.
 */
#include "basis_fixture.h"
#include "plain_mass.h"
#include "verify.h"

#include "basis/head_basis.h"
#include "basis/rotation.h"
#include "basis/stream_basis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WINDOWS = 60, LENGTH = 16, LAYERS = 2 };

/* An operator with what its inputs cost. */
typedef struct plain_operator {
	int64_t m, n;
	double *W, *K; /* K = (H + δI)⁻¹ of its inputs */
	double weight;
	bool rows;      /* turned as MᵀW, with costs that stay; else as WM */
	int64_t shared; /* heads in a row with the same M */
} plain_operator;

typedef struct gradient_run {
	model_fixture f;
	fp_settings *settings;
	fp_windows windows;
	fp_basis_task task;
	fp_basis *basis;
	double sensitivities[LAYERS * FP_ROLE_COUNT];
	plain_operator operators[LAYERS * FP_ROLE_COUNT];
	int count;
} gradient_run;

static void open_run(gradient_run *run, const char *model, const char *pattern, const char *steps, const char *rate,
					 bool stream)
{
	uint64_t seed = 3;
	char assignments[3][64];
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, model);
	snprintf(assignments[0], sizeof assignments[0], "pattern=%s", pattern);
	snprintf(assignments[1], sizeof assignments[1], "basis_steps=%s", steps);
	snprintf(assignments[2], sizeof assignments[2], "basis_rate=%s", rate);
	run->settings = resolved_settings(run->f.ctx, "llama",
									  (const char *const[]){assignments[0], assignments[1], assignments[2], NULL});
	run->windows = (fp_windows){.count = WINDOWS, .length = LENGTH};
	run->windows.ids = calloc(WINDOWS * LENGTH, sizeof *run->windows.ids);
	for (int i = 0; i < WINDOWS * LENGTH; i++)
		run->windows.ids[i] = (int32_t)((double)(random_uniform(&seed) + 1) / 2 * 40) % 40;
	for (int i = 0; i < LAYERS * FP_ROLE_COUNT; i++)
		run->sensitivities[i] = 0.5 + fabs((double)random_normal(&seed));
	run->task = basis_task(&run->f, run->settings, &run->windows, stream);
	assert_ok(run->f.ctx, fp_basis_new(&run->basis, run->f.model, &run->task.freedom, stream));
	fp_model_set_basis(run->f.model, run->basis); /* identities: the norms' weights go into the operators */
}

static void close_run(gradient_run *run)
{
	for (int i = 0; i < run->count; i++) {
		free(run->operators[i].W);
		free(run->operators[i].K);
	}
	fp_model_set_basis(run->f.model, NULL);
	fp_basis_free(run->basis);
	fp_settings_free(run->settings);
	free(run->windows.ids);
	close_fixture(&run->f);
}

static double *as_doubles(model_fixture *f, fp_matrix matrix)
{
	float *floats = matrix_floats(f, matrix);
	double *out = to_double(floats, fp_matrix_size(matrix));
	free(floats);
	return out;
}

/* (H + 1% of its mean diagonal)⁻¹ */
static double *inverse_of(model_fixture *f, fp_matrix H)
{
	int64_t n = H.rows;
	double *A = as_doubles(f, H), *K = malloc((size_t)(n * n) * sizeof *K), mean = 0;
	double *copy = malloc((size_t)(n * n) * sizeof *copy), *right = malloc((size_t)n * sizeof *right);
	double *column = malloc((size_t)n * sizeof *column);
	for (int64_t i = 0; i < n; i++)
		mean += A[i * n + i] / (double)n;
	for (int64_t i = 0; i < n; i++)
		A[i * n + i] += 0.01 * mean;
	for (int64_t j = 0; j < n; j++) {
		memcpy(copy, A, (size_t)(n * n) * sizeof *copy);
		for (int64_t i = 0; i < n; i++)
			right[i] = i == j;
		verify_solve(copy, right, column, n);
		for (int64_t i = 0; i < n; i++)
			K[i * n + j] = column[i];
	}
	free(A);
	free(copy);
	free(right);
	free(column);
	return K;
}

static void take_operator(gradient_run *run, const fp_layer *layer, fp_role role, fp_matrix H, bool rows,
						  int64_t shared)
{
	fp_matrix W = layer->weight[role];
	if (fp_matrix_is_absent(W))
		return;
	run->operators[run->count++] = (plain_operator){.m = W.rows,
													.n = W.cols,
													.W = as_doubles(&run->f, W),
													.K = inverse_of(&run->f, H),
													.weight = run->sensitivities[layer->index * FP_ROLE_COUNT + role],
													.rows = rows,
													.shared = shared};
}

/* The mass of an operator in a basis of blocks of order n, and all of it. */
static double turned_mass(const plain_operator *o, const double *M, int64_t n, const fp_pattern *pattern, double *all)
{
	double *T = calloc((size_t)(o->m * o->n), sizeof *T), *h = malloc((size_t)o->n * sizeof *h);
	for (int64_t i = 0; i < o->m; i++)
		for (int64_t j = 0; j < o->n; j++)
			for (int64_t k = 0; k < n; k++) {
				int64_t channel = o->rows ? i : j, first = channel / n * n;
				double turn = M[(channel / n / o->shared * n + k) * n + channel % n];
				T[i * o->n + j] += turn * (o->rows ? o->W[(first + k) * o->n + j] : o->W[i * o->n + first + k]);
			}
	for (int64_t j = 0; j < o->n; j++) {
		const double *block = M + j / n / o->shared * n * n;
		int64_t first = j / n * n;
		double sum = o->rows ? o->K[j * o->n + j] : 0;
		for (int64_t a = 0; a < n && !o->rows; a++)
			for (int64_t b = 0; b < n; b++)
				sum += block[a * n + j % n] * o->K[(first + a) * o->n + first + b] * block[b * n + j % n];
		h[j] = 1 / sum;
	}
	double mass = plain_mass(T, h, o->m, o->n, pattern);
	*all = plain_sum(NULL, T, h, o->m, o->n);
	free(T);
	free(h);
	return mass;
}

/* Σ weight·mass over the operators, and the same of all that there is. */
static double objective(const gradient_run *run, const double *M, int64_t n, double *all)
{
	double sum = 0;
	*all = 0;
	for (int i = 0; i < run->count; i++) {
		double whole;
		sum += run->operators[i].weight * turned_mass(&run->operators[i], M, n, &run->task.pattern, &whole);
		*all += run->operators[i].weight * whole;
	}
	return sum;
}

/* The slope of the objective at the identity when channels i and j of a block turn against each other. */
static double slope(const gradient_run *run, double *M, int64_t n, int64_t block, int64_t i, int64_t j)
{
	const double angle = 1e-5;
	double value[2], all, *own = M + block * n * n;
	for (int side = 0; side < 2; side++) {
		double s = sin(side ? -angle : angle);
		own[i * n + i] = own[j * n + j] = cos(angle);
		own[i * n + j] = s;
		own[j * n + i] = -s;
		value[side] = objective(run, M, n, &all);
	}
	own[i * n + i] = own[j * n + j] = 1;
	own[i * n + j] = own[j * n + i] = 0;
	return (value[0] - value[1]) / (2 * angle);
}

/* X ← X − u1ᵀ + 1uᵀ with u = X1/n */
static void keep_ones(double *X, int64_t n)
{
	double *u = calloc((size_t)n, sizeof *u);
	for (int64_t i = 0; i < n * n; i++)
		u[i / n] += X[i] / (double)n;
	for (int64_t i = 0; i < n * n; i++)
		X[i] += u[i % n] - u[i / n];
	free(u);
}

/* The cosine of the angle between the step that was made from the identity and the one by differences. */
static double agreement(gradient_run *run, fp_matrix learned, fp_rotation_kind kind)
{
	int64_t n = learned.cols, blocks = learned.rows / n;
	double *M = calloc((size_t)(blocks * n * n), sizeof *M), *X = calloc((size_t)(blocks * n * n), sizeof *X);
	double *got = as_doubles(&run->f, learned), dot = 0, size[2] = {0, 0};
	for (int64_t i = 0; i < blocks * n; i++)
		M[i * n + i % n] = 1;
	for (int64_t block = 0; block < blocks; block++) {
		double *own = X + block * n * n;
		for (int64_t i = 0; i < n; i++)
			for (int64_t j = i + 1; j < n; j++) {
				own[i * n + j] = slope(run, M, n, block, i, j) > 0 ? -1 : 1;
				own[j * n + i] = -own[i * n + j];
			}
		if (kind == FP_TURN_KEEP_ONES)
			keep_ones(own, n);
		for (int64_t k = 0; k < n * n; k++) {
			double made = got[block * n * n + k] - (k % (n + 1) == 0);
			dot += made * own[k];
			size[0] += made * made;
			size[1] += own[k] * own[k];
		}
	}
	free(M);
	free(X);
	free(got);
	assert_true(size[0] > 0);
	return dot / sqrt(size[0] * size[1]);
}

static void check_masses(gradient_run *run, fp_matrix M, const fp_mass *got, const char *what)
{
	double *values = as_doubles(&run->f, M), all, removed = objective(run, values, M.cols, &all);
	if (!(fabs(got->removed / removed - 1) < 2e-3 && fabs(got->all / all - 1) < 2e-3))
		fail_msg("%s: the masses are %g of %g, by plain loops %g of %g", what, got->removed, got->all, removed, all);
	free(values);
}

/* Layer 0's operators that a kind of M turns, with Gram matrices that were measured. */
static void take_heads(gradient_run *run, const fp_layer *layer, const fp_layer_inputs *inputs, bool values)
{
	const fp_model_config *c = fp_model_get_config(run->f.model);
	int64_t shared = c->heads / c->kv_heads;
	if (values) {
		take_operator(run, layer, FP_VALUE, inputs->H[FP_GROUP_ATTENTION], true, 1);
		take_operator(run, layer, FP_OUTPUT, inputs->H[FP_GROUP_OUTPUT], false, shared);
	} else {
		take_operator(run, layer, FP_QUERY, inputs->H[FP_GROUP_ATTENTION], true, shared);
		take_operator(run, layer, FP_KEY, inputs->H[FP_GROUP_ATTENTION], true, 1);
	}
}

static void check_heads(const char *model, const char *pattern, bool values, const char *steps, const char *rate)
{
	gradient_run run;
	fp_text_stream stream;
	fp_layer_inputs inputs;
	fp_layer *layer;
	fp_mass before = {0}, after = {0};
	open_run(&run, model, pattern, steps, rate, false);
	assert_ok(run.f.ctx, fp_text_stream_open(&stream, run.f.model, &run.windows, &(fp_share){0}));
	assert_ok(run.f.ctx, fp_layer_load(&layer, run.f.model, 0));
	assert_ok(run.f.ctx, fp_layer_inputs_measure(&inputs, &stream, layer, FP_ATTENTION_INPUTS));
	take_heads(&run, layer, &inputs, values);
	fp_layer_basis own = {0};
	fp_matrix *M = values ? &own.value : &own.query;
	const fp_model_config *c = fp_model_get_config(run.f.model);
	assert_ok(run.f.ctx, fp_identities(run.f.be, M, c->kv_heads, c->head_dim));
	fp_matrix identity;
	assert_ok(run.f.ctx, fp_identities(run.f.be, &identity, c->kv_heads, c->head_dim));
	assert_ok(run.f.ctx, fp_learn_heads(&run.task, layer, run.sensitivities, &inputs, &own, &before, &after));
	check_masses(&run, identity, &before, model);
	check_masses(&run, *M, &after, model);
	assert_true(after.removed < before.removed);
	assert_true(orthogonality_error(&run.f, *M) < 2e-6);
	fp_rotation_kind kind = FP_TURN_ALL;
	if (strcmp(steps, "1") == 0) {
		double cosine = agreement(&run, *M, kind);
		print_message("  %-14s %s, %s: cosine %.4f\n", model, pattern, values ? "values" : "queries", cosine);
		assert_true(cosine > 0.97);
	}
	fp_matrix_free(run.f.be, &identity);
	fp_matrix_free(run.f.be, M);
	fp_layer_inputs_free(run.f.be, &inputs);
	fp_layer_free(layer);
	fp_text_stream_free(&stream);
	close_run(&run);
}

static const char *const patterns[] = {"50%", "2:4"};

static void the_first_step_of_heads_goes_down_the_plain_mass(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain", "llama-multi-query", "llama-head-dim"};
	for (int i = 0; i < 4; i++)
		for (int p = 0; p < 2; p++)
			for (int values = 0; values < 2; values++)
				check_heads(models[i], patterns[p], values, "1", "0.002");
}

static void masses_of_learned_heads_are_plain_ones(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain"};
	for (int i = 0; i < 2; i++)
		for (int p = 0; p < 2; p++)
			for (int values = 0; values < 2; values++)
				check_heads(models[i], patterns[p], values, "40", "1");
}

static void take_stream(gradient_run *run)
{
	fp_text_stream stream;
	assert_ok(run->f.ctx, fp_text_stream_open(&stream, run->f.model, &run->windows, &(fp_share){0}));
	for (int64_t i = 0; i < LAYERS; i++) {
		fp_layer *layer;
		fp_layer_inputs inputs;
		assert_ok(run->f.ctx, fp_layer_load(&layer, run->f.model, i));
		assert_ok(run->f.ctx, fp_layer_inputs_measure(&inputs, &stream, layer, FP_STREAM_INPUTS));
		for (int role = 0; role < FP_ROLE_COUNT; role++) /* one block, which no other head shares */
			take_operator(run, layer, (fp_role)role, inputs.H[fp_role_group((fp_role)role)],
						  role == FP_OUTPUT || role == FP_DOWN, 1);
		fp_layer_inputs_free(run->f.be, &inputs);
		fp_layer_free(layer);
	}
	fp_text_stream_free(&stream);
}

static void check_stream(const char *model, const char *pattern, const char *steps, const char *rate)
{
	gradient_run run;
	fp_basis_gain gain = {0};
	open_run(&run, model, pattern, steps, rate, true);
	take_stream(&run);
	double all, *identity = as_doubles(&run.f, run.basis->R);
	double before = objective(&run, identity, run.basis->R.cols, &all);
	assert_ok(run.f.ctx, fp_learn_stream(&run.task, run.basis, run.sensitivities, &gain));
	double whole, *R = as_doubles(&run.f, run.basis->R), after = objective(&run, R, run.basis->R.cols, &whole);
	/* both are shares of what there was before the turn */
	if (!(fabs(gain.stream_before / (before / all) - 1) < 2e-3 && fabs(gain.stream_after / (after / all) - 1) < 2e-3))
		fail_msg("%s, %s: the shares are %g and %g, by plain loops %g and %g", model, pattern, gain.stream_before,
				 gain.stream_after, before / all, after / all);
	assert_true(after < before);
	bool keeps = fp_model_get_config(run.f.model)->norm == FP_LAYER_NORM;
	assert_true(orthogonality_error(&run.f, run.basis->R) < 2e-6);
	if (keeps)
		assert_true(ones_error(&run.f, run.basis->R) < 1e-5);
	if (strcmp(steps, "1") == 0) {
		double cosine = agreement(&run, run.basis->R, keeps ? FP_TURN_KEEP_ONES : FP_TURN_ALL);
		print_message("  %-14s %s: cosine %.4f\n", model, pattern, cosine);
		assert_true(cosine > 0.97);
	} else {
		print_message("  %-14s %s: %.4f, then %.4f\n", model, pattern, gain.stream_before, gain.stream_after);
	}
	free(identity);
	free(R);
	close_run(&run);
}

static void the_first_step_of_the_stream_goes_down_the_plain_mass(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain", "qwen3-plain", "qwen2-tied"};
	for (int i = 0; i < 4; i++)
		for (int p = 0; p < 2; p++)
			check_stream(models[i], patterns[p], "1", "0.002");
}

static void masses_of_a_learned_stream_are_plain_ones(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain", "qwen3-plain"};
	for (int i = 0; i < 3; i++)
		for (int p = 0; p < 2; p++)
			check_stream(models[i], patterns[p], "60", "1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_step_of_heads_goes_down_the_plain_mass),
		cmocka_unit_test(masses_of_learned_heads_are_plain_ones),
		cmocka_unit_test(the_first_step_of_the_stream_goes_down_the_plain_mass),
		cmocka_unit_test(masses_of_a_learned_stream_are_plain_ones),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
