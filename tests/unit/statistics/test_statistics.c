/* SPDX-License-Identifier: Apache-2.0 */
/* Compares statistics with the same products in double precision, for different batch sizes, in one sum and in parts. */
#include "solver_fixture.h"

#include "statistics/part_means.h"
#include "statistics/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 37, M = 11, P = 150 };

typedef struct streams {
	fp_context *ctx;
	fp_backend *be;
	float X[P * N], Xstar[P * N], h[P * M], hstar[P * M], W[M * N];
	fp_matrix dX, dXstar, dh, dhstar, dW;
} streams;

static void place(streams *s, fp_matrix *out, int64_t rows, int64_t cols, const float *values)
{
	assert_ok(s->ctx, fp_matrix_new(s->be, out, rows, cols, FP_F32));
	assert_ok(s->ctx, s->be->memory->upload(s->be, *out, values, FP_F32, cols));
}

static streams *make_streams(uint64_t seed)
{
	streams *s = calloc(1, sizeof *s);
	s->ctx = fp_context_new();
	assert_ok(s->ctx, fp_backend_open(&s->be, s->ctx, "cpu", 1));
	for (int i = 0; i < P * N; i++) {
		s->X[i] = random_normal(&seed);
		s->Xstar[i] = s->X[i] + 0.01F * random_normal(&seed);
	}
	for (int i = 0; i < P * M; i++) {
		s->h[i] = 30 * random_normal(&seed); /* large compared with its error */
		s->hstar[i] = s->h[i] + 0.1F * random_normal(&seed);
	}
	for (int i = 0; i < M * N; i++)
		s->W[i] = random_normal(&seed);
	place(s, &s->dX, P, N, s->X);
	place(s, &s->dXstar, P, N, s->Xstar);
	place(s, &s->dh, P, M, s->h);
	place(s, &s->dhstar, P, M, s->hstar);
	place(s, &s->dW, M, N, s->W);
	return s;
}

static void free_streams(streams *s)
{
	fp_matrix_free(s->be, &s->dX);
	fp_matrix_free(s->be, &s->dXstar);
	fp_matrix_free(s->be, &s->dh);
	fp_matrix_free(s->be, &s->dhstar);
	fp_matrix_free(s->be, &s->dW);
	fp_backend_close(s->be);
	fp_context_free(s->ctx);
	free(s);
}

static void fold_rows(streams *s, fp_statistics *statistics, const fp_statistics_plan *plan, int64_t first, int64_t end)
{
	for (; first < end; first += plan->batch) {
		int64_t rows = end - first < plan->batch ? end - first : plan->batch;
		fp_matrix X = fp_matrix_rows(s->dX, first, rows), Xstar = fp_matrix_rows(s->dXstar, first, rows);
		assert_ok(s->ctx, fp_statistics_fold(statistics, X, Xstar));
		if (plan->residual_outputs > 0)
			assert_ok(s->ctx, fp_statistics_fold_residual(statistics, fp_matrix_rows(s->dh, first, rows),
														  fp_matrix_rows(s->dhstar, first, rows), Xstar));
	}
}

/* Registers for sums of parts; the first lends its workspaces. */
typedef struct part_registers {
	streams *s;
	const fp_statistics_plan *plan;
	fp_statistics *first, others[FP_PARTS + 1];
} part_registers;

static fp_statistics *register_of(part_registers *r, int which)
{
	return which == 0 ? r->first : &r->others[which];
}

static fp_status make_register(void *data, int which, fp_addends *out)
{
	part_registers *r = data;
	fp_statistics_plan plan = *r->plan;
	plan.lender = r->first;
	if (which > 0)
		assert_ok(r->s->ctx, fp_statistics_new(&r->others[which], r->s->be, &plan));
	return fp_statistics_list(register_of(r, which), out);
}

static void fold_parts(streams *s, fp_statistics *statistics, const fp_statistics_plan *plan)
{
	fp_share share = fp_share_divided(NULL, P);
	part_registers r = {.s = s, .plan = plan, .first = statistics};
	fp_part_means means = {0};
	fp_part_sum sum;
	int which;
	fp_part_sum_open(&sum, &share, s->be, make_register, &r);
	assert_ok(s->ctx, fp_part_means_new(&means, statistics, FP_PARTS));
	for (int part = 0; part < FP_PARTS; part++) {
		assert_ok(s->ctx, fp_part_sum_begin(&sum, part, &which));
		assert_ok(s->ctx, fp_statistics_clear(register_of(&r, which)));
		fold_rows(s, register_of(&r, which), plan, fp_share_window(&share, part), fp_share_window(&share, part + 1));
		assert_ok(s->ctx, fp_statistics_end_part(register_of(&r, which)));
		assert_ok(s->ctx, fp_part_means_take(&means, register_of(&r, which), part));
		assert_ok(s->ctx, fp_part_sum_end(&sum));
	}
	assert_ok(s->ctx, fp_part_sum_finish(&sum, false));
	assert_int_equal(sum.made, plan->registers);
	fp_part_sum_close(&sum);
	for (int i = 1; i <= FP_PARTS; i++)
		fp_statistics_free(&r.others[i]);
	fp_statistics_added(statistics);
	assert_ok(s->ctx, fp_part_means_gather(&means, &share));
	if (plan->centred)
		assert_ok(s->ctx, fp_part_means_join(&means, statistics));
	fp_part_means_free(&means);
}

/* With registers in parts, else in one sum. */
static void fold_all(streams *s, fp_statistics *statistics, const fp_statistics_plan *plan)
{
	assert_ok(s->ctx, fp_statistics_new(statistics, s->be, plan));
	if (plan->registers > 0)
		fold_parts(s, statistics, plan);
	else
		fold_rows(s, statistics, plan, 0, P);
	assert_ok(s->ctx, fp_statistics_finish(statistics));
	assert_int_equal(statistics->tokens, P);
}

/* Batches of both kinds of sums. */
static const struct {
	int64_t batch;
	int registers;
} ways[] = {{P, 0}, {64, 0}, {7, 0}, {1, 0}, {P, 3}, {4, 3}};
enum { WAYS = sizeof ways / sizeof ways[0] };

/* `got` must equal PᵀQ up to a few float roundings of the summands */
static void check(streams *s, fp_matrix got, const double *left, const double *right, int64_t a, int64_t b,
				  const char *name)
{
	double *want = malloc((size_t)(a * b) * sizeof *want);
	float *values = malloc((size_t)(a * b) * sizeof *values);
	verify_inner(want, left, right, P, a, b);
	assert_int_equal(got.rows, a);
	assert_int_equal(got.cols, b);
	assert_ok(s->ctx, s->be->memory->download(s->be, values, FP_F32, b, got));
	double scale = sqrt(verify_dot(left, left, P * a) / (double)a * verify_dot(right, right, P * b) / (double)b);
	for (int64_t i = 0; i < a * b; i++)
		if (!(fabs((double)values[i] - want[i]) < 6e-6 * scale))
			fail_msg("%s: entry %lld is %g, not %g", name, (long long)i, (double)values[i], want[i]);
	free(want);
	free(values);
}

static void equal_the_products_in_any_batches(void **unused)
{
	(void)unused;
	streams *s = make_streams(5);
	double *X = to_double(s->X, P * N), *Xstar = to_double(s->Xstar, P * N);
	double *delta = malloc(sizeof(double) * P * N), *E = malloc(sizeof(double) * P * M);
	for (int i = 0; i < P * N; i++)
		delta[i] = X[i] - Xstar[i];
	for (int i = 0; i < P * M; i++)
		E[i] = (double)s->h[i] - (double)s->hstar[i];
	for (int b = 0; b < WAYS; b++) {
		fp_statistics statistics;
		fold_all(s, &statistics,
				 &(fp_statistics_plan){.inputs = N,
									   .batch = ways[b].batch,
									   .two_streams = true,
									   .residual_outputs = M,
									   .registers = ways[b].registers});
		check(s, statistics.A, Xstar, Xstar, N, N, "A");
		check(s, statistics.cross, delta, Xstar, N, N, "cross");
		check(s, statistics.difference, delta, delta, N, N, "difference");
		check(s, statistics.residual, E, Xstar, M, N, "residual");
		check(s, statistics.residual_delta, E, delta, M, N, "residual_delta");
		double energy = verify_dot(E, E, P * M);
		assert_true(fabs(statistics.residual_energy - energy) < 1e-5 * energy);
		fp_statistics_free(&statistics);
	}
	free(X);
	free(Xstar);
	free(delta);
	free(E);
	free_streams(s);
}

/* Subtracts the column means from `values` and stores them in `mean`. */
static void centre(double *values, int64_t cols, double *mean)
{
	for (int64_t j = 0; j < cols; j++) {
		mean[j] = 0;
		for (int64_t t = 0; t < P; t++)
			mean[j] += values[t * cols + j] / P;
		for (int64_t t = 0; t < P; t++)
			values[t * cols + j] -= mean[j];
	}
}

static void check_mean(streams *s, fp_matrix got, const double *want, const char *name)
{
	float values[N];
	assert_int_equal(got.rows, 1);
	assert_ok(s->ctx, s->be->memory->download(s->be, values, FP_F32, got.cols, got));
	for (int64_t j = 0; j < got.cols; j++)
		if (!(fabs((double)values[j] - want[j]) < 1e-6 * (1 + fabs(want[j]))))
			fail_msg("%s: entry %lld is %g, not %g", name, (long long)j, (double)values[j], want[j]);
}

/* Means a hundred times the deviations, which occur in normalised states, cost no accuracy. */
static void centred_statistics_are_those_of_the_deviations(void **unused)
{
	(void)unused;
	streams *s = make_streams(11);
	double mean[N], mean_delta[N], mean_E[M];
	double *delta = malloc(sizeof(double) * P * N), *E = malloc(sizeof(double) * P * M);
	for (int i = 0; i < P * N; i++) {
		float offset = (float)(i % N % 5 == 0 ? 100 : i % N % 3);
		s->X[i] += offset + 0.005F;
		s->Xstar[i] += offset;
		delta[i] = (double)s->X[i] - (double)s->Xstar[i];
	}
	for (int i = 0; i < P * M; i++) {
		s->h[i] += 0.1F;
		E[i] = (double)s->h[i] - (double)s->hstar[i];
	}
	assert_ok(s->ctx, s->be->memory->upload(s->be, s->dX, s->X, FP_F32, N));
	assert_ok(s->ctx, s->be->memory->upload(s->be, s->dXstar, s->Xstar, FP_F32, N));
	assert_ok(s->ctx, s->be->memory->upload(s->be, s->dh, s->h, FP_F32, M));
	double *Xstar = to_double(s->Xstar, P * N);
	centre(Xstar, N, mean);
	centre(delta, N, mean_delta);
	centre(E, M, mean_E);
	for (int b = 0; b < WAYS; b++) {
		fp_statistics statistics;
		fold_all(s, &statistics,
				 &(fp_statistics_plan){.inputs = N,
									   .batch = ways[b].batch,
									   .two_streams = true,
									   .centred = true,
									   .residual_outputs = M,
									   .registers = ways[b].registers});
		check(s, statistics.A, Xstar, Xstar, N, N, "A");
		check(s, statistics.cross, delta, Xstar, N, N, "cross");
		check(s, statistics.difference, delta, delta, N, N, "difference");
		check(s, statistics.residual, E, Xstar, M, N, "residual");
		check(s, statistics.residual_delta, E, delta, M, N, "residual_delta");
		check_mean(s, statistics.mean, mean, "mean");
		check_mean(s, statistics.mean_delta, mean_delta, "mean of the difference");
		check_mean(s, statistics.mean_residual, mean_E, "mean of E");
		double energy = verify_dot(E, E, P * M);
		assert_true(fabs(statistics.residual_energy - energy) < 1e-5 * energy);
		fp_statistics_free(&statistics);
	}
	free(Xstar);
	free(delta);
	free(E);
	free_streams(s);
}

/* The expected drift in double precision. */
typedef struct expected_drift {
	double Xstar[P * N], W_delta[P * M], E[P * M];
	double energy, residual; /* ‖WΔ‖², ⟨E, WΔ⟩ */
} expected_drift;

static expected_drift *expect_drift(const streams *s, bool centred)
{
	expected_drift *e = calloc(1, sizeof *e);
	double mean[N];
	for (int i = 0; i < P * N; i++)
		e->Xstar[i] = (double)s->Xstar[i];
	for (int i = 0; i < P * M; i++) {
		e->E[i] = (double)s->h[i] - (double)s->hstar[i];
		for (int j = 0; j < N; j++) {
			int at = i / M * N + j;
			e->W_delta[i] += ((double)s->X[at] - (double)s->Xstar[at]) * (double)s->W[i % M * N + j];
		}
	}
	if (centred) {
		centre(e->Xstar, N, mean);
		centre(e->W_delta, M, mean);
		centre(e->E, M, mean);
	}
	e->energy = verify_dot(e->W_delta, e->W_delta, P * M);
	e->residual = verify_dot(e->E, e->W_delta, P * M);
	return e;
}

static void check_drift(streams *s, const fp_statistics_plan *plan, const expected_drift *e)
{
	bool outputs = !fp_matrix_is_absent(plan->only), residual = plan->residual_outputs > 0;
	double scale = sqrt(verify_dot(e->E, e->E, P * M) * e->energy);
	fp_statistics statistics;
	fp_drift drift;
	fold_all(s, &statistics, plan);
	assert_int_equal(fp_matrix_is_absent(statistics.cross), outputs);
	assert_ok(s->ctx, fp_statistics_drift(&statistics, s->dW, &drift));
	assert_int_equal(drift.borrowed, outputs);
	fp_statistics_forget_targets(&statistics); /* the drift must survive */
	check(s, drift.product, e->W_delta, e->Xstar, M, N, outputs ? "drift by outputs" : "drift by inputs");
	assert_true(fabs(drift.energy - e->energy) < 2e-5 * e->energy);
	assert_true(residual ? fabs(drift.residual - e->residual) < 2e-5 * scale : drift.residual == 0.0);
	fp_drift_free(s->be, &drift);
	fp_statistics_free(&statistics);
}

/* By inputs and by outputs, for different batch sizes, centred and not, with E and without. The means of
 * the differences are large compared with their deviations, and E is correlated with the drift. */
static void both_ways_lead_to_the_same_drift(void **unused)
{
	(void)unused;
	streams *s = make_streams(12);
	for (int i = 0; i < P * N; i++)
		s->Xstar[i] += 0.005F * (float)(i % N % 4);
	for (int i = 0; i < P * M; i++)
		s->hstar[i] += 0.05F - 3 * (s->X[i / M * N] - s->Xstar[i / M * N]);
	assert_ok(s->ctx, s->be->memory->upload(s->be, s->dXstar, s->Xstar, FP_F32, N));
	assert_ok(s->ctx, s->be->memory->upload(s->be, s->dhstar, s->hstar, FP_F32, M));
	for (int way = 0; way < 8; way++) {
		fp_statistics_plan plan = {.inputs = N,
								   .two_streams = true,
								   .centred = (way & 1) != 0,
								   .residual_outputs = way & 2 ? M : 0,
								   .only = way & 4 ? s->dW : (fp_matrix){0}};
		expected_drift *e = expect_drift(s, plan.centred);
		for (int b = 0; b < WAYS; b++) {
			plan.batch = ways[b].batch;
			plan.registers = ways[b].registers;
			check_drift(s, &plan, e);
		}
		free(e);
	}
	free_streams(s);
}

static void the_drift_goes_the_cheaper_way(void **unused)
{
	(void)unused;
	assert_true(fp_drift_by_outputs(4096, 11008, false)); /* LLaMA's down */
	assert_true(fp_drift_by_outputs(4096, 11008, true));
	assert_false(fp_drift_by_outputs(4096, 4096, false)); /* o: 4mn against 3n² */
	assert_true(fp_drift_by_outputs(4096, 4096, true));   /* and against 3n² + 2mn */
	assert_false(fp_drift_by_outputs(3072, 768, true));   /* OPT's fc1 */
}

static void one_stream_needs_nothing_but_A(void **unused)
{
	(void)unused;
	streams *s = make_streams(6);
	fp_statistics statistics;
	double *Xstar = to_double(s->Xstar, P * N);
	fold_all(s, &statistics, &(fp_statistics_plan){.inputs = N, .batch = 40, .only = s->dW});
	check(s, statistics.A, Xstar, Xstar, N, N, "A");
	assert_true(fp_matrix_is_absent(statistics.cross) && fp_matrix_is_absent(statistics.difference));
	assert_true(fp_matrix_is_absent(statistics.residual) && fp_matrix_is_absent(statistics.residual_delta));
	assert_true(fp_matrix_is_absent(statistics.drift.product) && fp_matrix_is_absent(statistics.W));
	fp_statistics_free(&statistics);
	free(Xstar);
	free_streams(s);
}

static void the_matrix_is_symmetric_to_the_bit(void **unused)
{
	(void)unused;
	streams *s = make_streams(7);
	fp_statistics statistics;
	float A[N * N];
	fold_all(s, &statistics, &(fp_statistics_plan){.inputs = N, .batch = 33, .two_streams = true});
	assert_ok(s->ctx, s->be->memory->download(s->be, A, FP_F32, N, statistics.A));
	for (int i = 0; i < N; i++)
		for (int j = 0; j < i; j++)
			assert_memory_equal(&A[i * N + j], &A[j * N + i], sizeof(float));
	fp_statistics_free(&statistics);
	free_streams(s);
}

static void identity_makes_errors_those_of_the_weights(void **unused)
{
	(void)unused;
	streams *s = make_streams(8);
	fp_statistics statistics;
	float A[N * N];
	assert_ok(s->ctx, fp_statistics_new(&statistics, s->be, &(fp_statistics_plan){.inputs = N}));
	assert_ok(s->ctx, fp_statistics_identity(&statistics));
	assert_ok(s->ctx, s->be->memory->download(s->be, A, FP_F32, N, statistics.A));
	for (int i = 0; i < N * N; i++)
		assert_true(A[i] == (i % (N + 1) == 0 ? 1.0F : 0.0F));
	fp_statistics_free(&statistics);
	free_streams(s);
}

static void what_is_not_finite_is_refused(void **unused)
{
	(void)unused;
	static const float bad[] = {NAN, INFINITY, 1e30F /* finite, but not its square */};
	for (int b = 0; b < 3; b++) {
		streams *s = make_streams(9);
		fp_statistics statistics;
		s->Xstar[77] = bad[b];
		assert_ok(s->ctx, s->be->memory->upload(s->be, s->dXstar, s->Xstar, FP_F32, N));
		assert_ok(s->ctx, fp_statistics_new(&statistics, s->be, &(fp_statistics_plan){.inputs = N, .batch = P}));
		assert_ok(s->ctx, fp_statistics_fold(&statistics, s->dX, s->dXstar));
		assert_fails(s->ctx, FP_ERROR_NUMERIC, "NaN or infinity", fp_statistics_finish(&statistics));
		fp_statistics_free(&statistics);
		free_streams(s);
	}
}

static void every_allocation_may_fail(void **unused)
{
	(void)unused;
	streams *s = make_streams(10);
	for (int outputs = 0; outputs < 2; outputs++) {
		fp_statistics_plan plan = {
			.inputs = N, .batch = P, .two_streams = true, .centred = true, .residual_outputs = M};
		fp_status status = FP_ERROR_MEMORY;
		if (outputs)
			plan.only = s->dW;
		for (int64_t n = 1; status != FP_OK; n++) {
			fp_statistics statistics;
			fp_drift drift = {0};
			s->ctx->fail_allocation_at = s->ctx->allocations + n;
			status = fp_statistics_new(&statistics, s->be, &plan);
			if (status == FP_OK)
				status = fp_statistics_drift(&statistics, s->dW, &drift);
			if (status != FP_OK)
				assert_int_equal(status, FP_ERROR_MEMORY);
			fp_drift_free(s->be, &drift);
			fp_statistics_free(&statistics);
		}
		s->ctx->fail_allocation_at = 0;
	}
	free_streams(s);
}

static float *numbers_of(streams *s, fp_matrix matrix)
{
	float *out = malloc((size_t)(fp_matrix_size(matrix) + 1) * sizeof *out);
	assert_ok(s->ctx, s->be->memory->download(s->be, out, FP_F32, matrix.cols, matrix));
	return out;
}

static void assert_equal_matrices(streams *s, fp_matrix a, fp_matrix b)
{
	float *x = numbers_of(s, a), *y = numbers_of(s, b);
	assert_int_equal(fp_matrix_size(a), fp_matrix_size(b));
	assert_memory_equal(x, y, (size_t)fp_matrix_size(a) * sizeof *x);
	free(x);
	free(y);
}

/* Several statistics may share the workspaces of one, batch by batch. */
static void borrowed_workspaces_change_nothing(void **unused)
{
	(void)unused;
	for (int outputs = 0; outputs < 2; outputs++) {
		streams *s = make_streams(11);
		fp_statistics lender, own[2], borrowed[2];
		fp_statistics_plan plan = {.inputs = N, .batch = P, .two_streams = true, .residual_outputs = M};
		if (outputs)
			plan.only = s->dW;
		assert_ok(s->ctx, fp_statistics_space(&lender, s->be, &plan));
		for (int i = 0; i < 2; i++) {
			plan.lender = NULL;
			assert_ok(s->ctx, fp_statistics_new(&own[i], s->be, &plan));
			plan.lender = &lender;
			assert_ok(s->ctx, fp_statistics_new(&borrowed[i], s->be, &plan));
		}
		for (int64_t first = 0; first < P; first += 50)
			for (int i = 0; i < 2; i++) { /* rows [first, first + 50 − 20i) */
				fp_statistics *both[2] = {&own[i], &borrowed[i]};
				int64_t rows = 50 - 20 * i;
				for (int k = 0; k < 2; k++) {
					fp_matrix Xstar = fp_matrix_rows(s->dXstar, first, rows);
					assert_ok(s->ctx, fp_statistics_fold(both[k], fp_matrix_rows(s->dX, first, rows), Xstar));
					assert_ok(s->ctx, fp_statistics_fold_residual(both[k], fp_matrix_rows(s->dh, first, rows),
																  fp_matrix_rows(s->dhstar, first, rows), Xstar));
				}
			}
		for (int i = 0; i < 2; i++) {
			assert_ok(s->ctx, fp_statistics_finish(&own[i]));
			assert_ok(s->ctx, fp_statistics_finish(&borrowed[i]));
			assert_equal_matrices(s, own[i].A, borrowed[i].A);
			assert_equal_matrices(s, own[i].residual, borrowed[i].residual);
			assert_true(own[i].drift.energy == borrowed[i].drift.energy);
			assert_true(own[i].residual_energy == borrowed[i].residual_energy);
			fp_statistics_free(&own[i]);
			fp_statistics_free(&borrowed[i]);
		}
		fp_statistics_free(&lender);
		free_streams(s);
	}
}

static void a_ridge_is_relative_to_the_diagonal(void **unused)
{
	(void)unused;
	streams *s = make_streams(12);
	fp_statistics statistics;
	assert_ok(s->ctx, fp_statistics_new(&statistics, s->be, &(fp_statistics_plan){.inputs = N, .batch = P}));
	assert_ok(s->ctx, fp_statistics_fold(&statistics, s->dX, s->dXstar));
	assert_ok(s->ctx, fp_statistics_finish(&statistics));
	float *before = numbers_of(s, statistics.A);
	assert_ok(s->ctx, fp_statistics_add_ridge(&statistics, 0.25));
	float *after = numbers_of(s, statistics.A);
	double mean = 0;
	for (int i = 0; i < N; i++)
		mean += (double)before[i * N + i] / N;
	for (int i = 0; i < N * N; i++) {
		double want = (double)before[i] + (i / N == i % N ? 0.25 * mean : 0);
		assert_true(fabs((double)after[i] - want) <= 1e-6 * mean);
	}
	free(before);
	free(after);
	fp_statistics_free(&statistics);
	free_streams(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_the_products_in_any_batches),
		cmocka_unit_test(centred_statistics_are_those_of_the_deviations),
		cmocka_unit_test(both_ways_lead_to_the_same_drift),
		cmocka_unit_test(the_drift_goes_the_cheaper_way),
		cmocka_unit_test(one_stream_needs_nothing_but_A),
		cmocka_unit_test(the_matrix_is_symmetric_to_the_bit),
		cmocka_unit_test(identity_makes_errors_those_of_the_weights),
		cmocka_unit_test(what_is_not_finite_is_refused),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(borrowed_workspaces_change_nothing),
		cmocka_unit_test(a_ridge_is_relative_to_the_diagonal),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
