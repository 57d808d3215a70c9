/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics against the products themselves in double; in any batches. */
#include "solver_fixture.h"

#include "statistics/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 37, M = 11, P = 150 };

typedef struct streams {
	fp_context *ctx;
	fp_backend *be;
	float X[P * N], Xstar[P * N], h[P * M], hstar[P * M];
	fp_matrix dX, dXstar, dh, dhstar;
} streams;

static void place(streams *s, fp_matrix *out, int64_t cols, const float *values)
{
	assert_ok(s->ctx, fp_matrix_new(s->be, out, P, cols, FP_F32));
	assert_ok(s->ctx, s->be->ops->upload(s->be, *out, values, FP_F32, cols));
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
		s->h[i] = 30 * random_normal(&seed); /* beside which the error in it is small */
		s->hstar[i] = s->h[i] + 0.1F * random_normal(&seed);
	}
	place(s, &s->dX, N, s->X);
	place(s, &s->dXstar, N, s->Xstar);
	place(s, &s->dh, M, s->h);
	place(s, &s->dhstar, M, s->hstar);
	return s;
}

static void free_streams(streams *s)
{
	fp_matrix_free(s->be, &s->dX);
	fp_matrix_free(s->be, &s->dXstar);
	fp_matrix_free(s->be, &s->dh);
	fp_matrix_free(s->be, &s->dhstar);
	fp_backend_close(s->be);
	fp_context_free(s->ctx);
	free(s);
}

static void fold_into(streams *s, fp_statistics *statistics, bool residual, int64_t batch)
{
	for (int64_t first = 0; first < P; first += batch) {
		int64_t rows = P - first < batch ? P - first : batch;
		fp_matrix X = fp_matrix_rows(s->dX, first, rows), Xstar = fp_matrix_rows(s->dXstar, first, rows);
		assert_ok(s->ctx, fp_statistics_fold(statistics, X, Xstar));
		if (residual)
			assert_ok(s->ctx, fp_statistics_fold_residual(statistics, fp_matrix_rows(s->dh, first, rows),
														  fp_matrix_rows(s->dhstar, first, rows), Xstar));
	}
	assert_ok(s->ctx, fp_statistics_finish(statistics));
	assert_int_equal(statistics->tokens, P);
}

static void fold_all(streams *s, fp_statistics *statistics, bool two, bool residual, int64_t batch)
{
	assert_ok(s->ctx, fp_statistics_new(statistics, s->be, N, two, residual ? M : 0, batch));
	fold_into(s, statistics, residual, batch);
}

/* got must equal PᵀQ to a few float roundings of the sizes that were summed */
static void check(streams *s, fp_matrix got, const double *left, const double *right, int64_t a, int64_t b,
				  const char *name)
{
	double *want = malloc((size_t)(a * b) * sizeof *want);
	float *values = malloc((size_t)(a * b) * sizeof *values);
	verify_inner(want, left, right, P, a, b);
	assert_int_equal(got.rows, a);
	assert_int_equal(got.cols, b);
	assert_ok(s->ctx, s->be->ops->download(s->be, values, FP_F32, b, got));
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
	static const int64_t batches[] = {P, 64, 7, 1};
	streams *s = make_streams(5);
	double *X = to_double(s->X, P * N), *Xstar = to_double(s->Xstar, P * N);
	double *delta = malloc(sizeof(double) * P * N), *gap = malloc(sizeof(double) * P * M);
	for (int i = 0; i < P * N; i++)
		delta[i] = X[i] - Xstar[i];
	for (int i = 0; i < P * M; i++)
		gap[i] = (double)s->h[i] - (double)s->hstar[i];
	for (int b = 0; b < 4; b++) {
		fp_statistics statistics;
		fold_all(s, &statistics, true, true, batches[b]);
		check(s, statistics.A, Xstar, Xstar, N, N, "A");
		check(s, statistics.cross, delta, Xstar, N, N, "cross");
		check(s, statistics.difference, delta, delta, N, N, "difference");
		check(s, statistics.residual, gap, Xstar, M, N, "residual");
		check(s, statistics.repair, gap, delta, M, N, "repair");
		double energy = verify_dot(gap, gap, P * M);
		assert_true(fabs(statistics.gap_energy - energy) < 1e-5 * energy);
		fp_statistics_free(&statistics);
	}
	free(X);
	free(Xstar);
	free(delta);
	free(gap);
	free_streams(s);
}

/* values ← values less their columns' means, which go to mean */
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
	assert_ok(s->ctx, s->be->ops->download(s->be, values, FP_F32, got.cols, got));
	for (int64_t j = 0; j < got.cols; j++)
		if (!(fabs((double)values[j] - want[j]) < 1e-6 * (1 + fabs(want[j]))))
			fail_msg("%s: entry %lld is %g, not %g", name, (long long)j, (double)values[j], want[j]);
}

/* Means a hundred times the deviations, as channels of a normalised state may have, cost no digits. */
static void centred_statistics_are_those_of_the_deviations(void **unused)
{
	(void)unused;
	static const int64_t batches[] = {P, 64, 7, 1};
	streams *s = make_streams(11);
	double mean[N], mean_delta[N], mean_gap[M];
	double *delta = malloc(sizeof(double) * P * N), *gap = malloc(sizeof(double) * P * M);
	for (int i = 0; i < P * N; i++) {
		float offset = (float)(i % N % 5 == 0 ? 100 : i % N % 3);
		s->X[i] += offset + 0.005F;
		s->Xstar[i] += offset;
		delta[i] = (double)s->X[i] - (double)s->Xstar[i];
	}
	for (int i = 0; i < P * M; i++) {
		s->h[i] += 0.1F;
		gap[i] = (double)s->h[i] - (double)s->hstar[i];
	}
	assert_ok(s->ctx, s->be->ops->upload(s->be, s->dX, s->X, FP_F32, N));
	assert_ok(s->ctx, s->be->ops->upload(s->be, s->dXstar, s->Xstar, FP_F32, N));
	assert_ok(s->ctx, s->be->ops->upload(s->be, s->dh, s->h, FP_F32, M));
	double *Xstar = to_double(s->Xstar, P * N);
	centre(Xstar, N, mean);
	centre(delta, N, mean_delta);
	centre(gap, M, mean_gap);
	for (int b = 0; b < 4; b++) {
		fp_statistics statistics;
		assert_ok(s->ctx, fp_statistics_new(&statistics, s->be, N, true, M, batches[b]));
		assert_ok(s->ctx, fp_statistics_centre(&statistics, batches[b]));
		fold_into(s, &statistics, true, batches[b]);
		check(s, statistics.A, Xstar, Xstar, N, N, "A");
		check(s, statistics.cross, delta, Xstar, N, N, "cross");
		check(s, statistics.difference, delta, delta, N, N, "difference");
		check(s, statistics.residual, gap, Xstar, M, N, "residual");
		check(s, statistics.repair, gap, delta, M, N, "repair");
		check_mean(s, statistics.mean, mean, "mean");
		check_mean(s, statistics.mean_delta, mean_delta, "mean of the difference");
		check_mean(s, statistics.mean_gap, mean_gap, "mean of the gap");
		double energy = verify_dot(gap, gap, P * M);
		assert_true(fabs(statistics.gap_energy - energy) < 1e-5 * energy);
		fp_statistics_free(&statistics);
	}
	free(Xstar);
	free(delta);
	free(gap);
	free_streams(s);
}

static void one_stream_needs_nothing_but_A(void **unused)
{
	(void)unused;
	streams *s = make_streams(6);
	fp_statistics statistics;
	double *Xstar = to_double(s->Xstar, P * N);
	fold_all(s, &statistics, false, false, 40);
	check(s, statistics.A, Xstar, Xstar, N, N, "A");
	assert_true(fp_matrix_is_absent(statistics.cross) && fp_matrix_is_absent(statistics.difference));
	assert_true(fp_matrix_is_absent(statistics.residual) && fp_matrix_is_absent(statistics.repair));
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
	fold_all(s, &statistics, true, false, 33);
	assert_ok(s->ctx, s->be->ops->download(s->be, A, FP_F32, N, statistics.A));
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
	assert_ok(s->ctx, fp_statistics_new(&statistics, s->be, N, false, 0, 0));
	assert_ok(s->ctx, fp_statistics_identity(&statistics));
	assert_ok(s->ctx, s->be->ops->download(s->be, A, FP_F32, N, statistics.A));
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
		assert_ok(s->ctx, s->be->ops->upload(s->be, s->dXstar, s->Xstar, FP_F32, N));
		assert_ok(s->ctx, fp_statistics_new(&statistics, s->be, N, false, 0, P));
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
	fp_status status = FP_ERROR_MEMORY;
	for (int64_t n = 1; status != FP_OK; n++) {
		fp_statistics statistics;
		s->ctx->fail_allocation_at = s->ctx->allocations + n;
		status = fp_statistics_new(&statistics, s->be, N, true, M, P);
		if (status == FP_OK)
			status = fp_statistics_centre(&statistics, P);
		if (status != FP_OK)
			assert_int_equal(status, FP_ERROR_MEMORY);
		fp_statistics_free(&statistics);
	}
	free_streams(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_the_products_in_any_batches),
		cmocka_unit_test(centred_statistics_are_those_of_the_deviations),
		cmocka_unit_test(one_stream_needs_nothing_but_A),
		cmocka_unit_test(the_matrix_is_symmetric_to_the_bit),
		cmocka_unit_test(identity_makes_errors_those_of_the_weights),
		cmocka_unit_test(what_is_not_finite_is_refused),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
