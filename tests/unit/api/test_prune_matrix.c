/* SPDX-License-Identifier: Apache-2.0 */
/* fp_prune_matrix(): any method through the public interface, checked from the activations; and its refusals. */
#include <fistapruner/fistapruner.h>

#include "support.h"
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { M = 10, N = 32, P = 120 };

typedef struct matrices {
	fp_context *ctx;
	fp_settings *settings;
	double X[P * N], Xstar[P * N], W[M * N];
	float weights[M * N], gram[N * N], target[M * N], result[M * N];
	fp_matrix_problem problem;
	fp_matrix_report report;
} matrices;

/* drift 0: target NULL */
static matrices *make(double drift)
{
	matrices *s = calloc(1, sizeof *s);
	uint64_t seed = 12;
	double A[N * N], B[N * N], C[M * N];
	s->ctx = fp_context_new();
	assert_ok(s->ctx, fp_settings_new(&s->settings, s->ctx));
	assert_ok(s->ctx, fp_settings_set(s->settings, s->ctx, "threads", "1"));
	for (int i = 0; i < M * N; i++)
		s->W[i] = s->weights[i] = random_normal(&seed);
	for (int t = 0; t < P; t++) {
		double common = (double)random_normal(&seed);
		for (int j = 0; j < N; j++) {
			s->X[t * N + j] = (double)random_normal(&seed) + common;
			s->Xstar[t * N + j] = s->X[t * N + j] + drift * (double)random_normal(&seed);
		}
	}
	verify_inner(A, s->Xstar, s->Xstar, P, N, N);
	verify_inner(B, s->X, s->Xstar, P, N, N);
	verify_product(C, s->W, B, M, N, N);
	for (int i = 0; i < N * N; i++)
		s->gram[i] = (float)A[i];
	for (int i = 0; i < M * N; i++)
		s->target[i] = (float)C[i];
	s->problem = (fp_matrix_problem){.rows = M, .cols = N, .weights = s->weights, .gram = s->gram};
	if (drift > 0) {
		double zero[M * N] = {0};
		double norm = verify_residual(zero, s->Xstar, s->W, s->X, M, N, P);
		s->problem.target = s->target;
		s->problem.energy = norm * norm;
	}
	return s;
}

static void finish(matrices *s)
{
	fp_settings_free(s->settings);
	fp_context_free(s->ctx);
	free(s);
}

static void set(matrices *s, const char *assignment)
{
	assert_ok(s->ctx, fp_settings_assign(s->settings, s->ctx, assignment));
}

static fp_status prune(matrices *s)
{
	return fp_prune_matrix(s->result, &s->report, s->ctx, &s->problem, s->settings);
}

static double direct_error(matrices *s)
{
	double V[M * N];
	for (int i = 0; i < M * N; i++)
		V[i] = s->result[i];
	return verify_residual(V, s->Xstar, s->W, s->X, M, N, P);
}

static void reports_the_error_of_the_activations(void **unused)
{
	(void)unused;
	static const char *const methods[][2] = {{"method=magnitude", "preset=fast"},
											 {"method=wanda", "preset=fast"},
											 {"method=sparsegpt", "preset=fast"},
											 {"method=fista", "preset=paper"},
											 {"method=fista", "preset=fast"}};
	static const double drifts[] = {0, 0.3};
	static const char *const patterns[] = {"pattern=50%", "pattern=2:4", "pattern=0%"};
	for (int d = 0; d < 2; d++)
		for (int i = 0; i < 5; i++)
			for (int p = 0; p < 3; p++) {
				matrices *s = make(drifts[d]);
				set(s, methods[i][0]);
				set(s, methods[i][1]);
				set(s, patterns[p]);
				assert_ok(s->ctx, prune(s));
				double direct = direct_error(s);
				double zero[M * N] = {0};
				double output = verify_residual(zero, s->Xstar, s->W, s->X, M, N, P);
				assert_true(fabs(s->report.error - direct) < 1e-4 * direct + 1e-4 * output);
				assert_true(fabs(s->report.relative_error - direct / output) < 2e-4);
				assert_true(s->report.sparsity == (double)verify_zeros(s->result, M * N) / (M * N));
				assert_int_equal(verify_negative_zeros(s->result, M * N), 0);
				if (p == 1)
					assert_int_equal(verify_full_groups(s->result, M, N, 2, 4), 0);
				else
					assert_true(s->report.sparsity >= (p == 0 ? 0.5 : 0.0));
				if (i < 3)
					assert_true(s->report.iterations == 0 && s->report.lambda == 0);
				finish(s);
			}
}

static void result_may_be_the_weights(void **unused)
{
	(void)unused;
	matrices *s = make(0.2);
	assert_ok(s->ctx, prune(s));
	assert_ok(s->ctx, fp_prune_matrix(s->weights, &s->report, s->ctx, &s->problem, s->settings));
	assert_memory_equal(s->weights, s->result, sizeof s->weights);
	finish(s);
}

/* The paper starts from SparseGPT for OPT and from Wanda for LLaMA; the caller's settings are not changed by it. */
static void presets_go_by_family(void **unused)
{
	(void)unused;
	matrices *s = make(0.2);
	float opt[M * N];
	char value[64];
	set(s, "preset=paper");
	s->problem.family = "opt";
	assert_ok(s->ctx, prune(s));
	memcpy(opt, s->result, sizeof opt);
	s->problem.family = "llama";
	assert_ok(s->ctx, prune(s));
	assert_memory_not_equal(opt, s->result, sizeof opt);
	assert_ok(s->ctx, fp_settings_get(s->settings, s->ctx, "lambda_search", value, sizeof value));
	assert_string_equal(value, "geometric");
	set(s, "warm_start=sparsegpt");
	set(s, "tolerance=1e-6");
	assert_ok(s->ctx, prune(s));
	assert_memory_equal(opt, s->result, sizeof opt);
	finish(s);
}

static void bad_arguments_are_refused(void **unused)
{
	(void)unused;
	matrices *s = make(0.2);
	s->problem.rows = 0;
	assert_fails(s->ctx, FP_ERROR_USAGE, "1 or more", prune(s));
	s->problem.rows = -3;
	assert_fails(s->ctx, FP_ERROR_USAGE, "1 or more", prune(s));
	s->problem.rows = M;
	s->problem.cols = INT64_MAX / 2;
	assert_fails(s->ctx, FP_ERROR_USAGE, "1 or more", prune(s));
	s->problem.cols = N;
	s->problem.gram = NULL;
	assert_fails(s->ctx, FP_ERROR_USAGE, "gram is NULL", prune(s));
	s->problem.gram = s->gram;
	s->problem.energy = -1;
	assert_fails(s->ctx, FP_ERROR_USAGE, "energy", prune(s));
	s->problem.energy = NAN;
	assert_fails(s->ctx, FP_ERROR_USAGE, "energy", prune(s));
	s->problem.energy = 1e-3;
	assert_fails(s->ctx, FP_ERROR_USAGE, "too small", prune(s));
	finish(s);
	s = make(0);
	s->weights[5] = NAN;
	assert_fails(s->ctx, FP_ERROR_NUMERIC, "weights holds NaN", prune(s));
	s->weights[5] = 1;
	s->gram[7] = INFINITY;
	assert_fails(s->ctx, FP_ERROR_NUMERIC, "gram holds NaN", prune(s));
	finish(s);
	s = make(0.2);
	s->target[9] = NAN;
	assert_fails(s->ctx, FP_ERROR_NUMERIC, "target holds NaN", prune(s));
	finish(s);
}

static void what_is_no_gram_matrix_is_refused(void **unused)
{
	(void)unused;
	matrices *s = make(0);
	for (int i = 0; i < N; i++) /* one triangle only */
		for (int j = 0; j < i; j++)
			s->gram[i * N + j] = 0;
	assert_fails(s->ctx, FP_ERROR_NUMERIC, "not symmetric", prune(s));
	finish(s);
	s = make(0);
	s->gram[3 * N + 3] = -1;
	assert_fails(s->ctx, FP_ERROR_NUMERIC, "never negative", prune(s));
	finish(s);
	s = make(0);
	for (int i = 0; i < N * N; i++) /* −μ·11ᵀ takes the direction of all ones far below zero */
		s->gram[i] -= i % (N + 1) ? 2.0F * P : 0.0F;
	assert_fails(s->ctx, FP_ERROR_NUMERIC, "negative eigenvalue", prune(s));
	finish(s);
}

/* Singular, or nothing at all, is a Gram matrix all the same. */
static void singular_gram_matrices_are_fine(void **unused)
{
	(void)unused;
	matrices *s = make(0);
	for (int i = 0; i < N * N; i++)
		s->gram[i] = 1;
	assert_ok(s->ctx, prune(s));
	assert_true(s->report.sparsity >= 0.5 && s->report.relative_error < 1e-2);
	memset(s->gram, 0, sizeof s->gram);
	assert_ok(s->ctx, prune(s));
	assert_true(s->report.error == 0 && s->report.relative_error == 0);
	finish(s);
}

static void every_allocation_may_fail(void **unused)
{
	(void)unused;
	matrices *s = make(0.2);
	fp_status status = FP_ERROR_MEMORY;
	set(s, "patience=1");
	for (int64_t n = 1; status != FP_OK; n++) {
		s->ctx->fail_allocation_at = s->ctx->allocations + n;
		status = prune(s);
		if (status != FP_OK)
			assert_int_equal(status, FP_ERROR_MEMORY);
	}
	finish(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reports_the_error_of_the_activations),
		cmocka_unit_test(result_may_be_the_weights),
		cmocka_unit_test(presets_go_by_family),
		cmocka_unit_test(bad_arguments_are_refused),
		cmocka_unit_test(what_is_no_gram_matrix_is_refused),
		cmocka_unit_test(singular_gram_matrices_are_fine),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
