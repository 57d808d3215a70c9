/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune_matrix.c: fp_prune_matrix() of the public interface: the solver on one matrix, without a model.
 *
 *     C = target, or WA      R = C − WA      e₀ = ‖WX* − WX‖² = ⟨WA, W⟩ − 2⟨W, C⟩ + y²
 * (solver/problem.h names the matrices.) What the caller gives is checked first: the solver takes for granted that A is
 * symmetric and has no negative eigenvalue.
 */
#include <fistapruner/fistapruner.h>

#include "base/memory.h"
#include "solver/problem.h"

#include <math.h>

/* Relative to √(A[i,i]·A[j,j]). Summing the same products in another order changes them by far less. */
static const double SYMMETRY_TOLERANCE = 1e-4;
/* Rounding a Gram matrix to float gives no eigenvalue below −this·λ_max. */
static const double NEGATIVE_TOLERANCE = 1e-4;

typedef struct matrix_session {
	fp_backend *be;
	fp_settings settings; /* resolved copy */
	fp_matrix W, A, C, R, V;
	fp_gram gram;
	fp_problem problem;
	double energy; /* ‖WX‖² */
} matrix_session;

static void session_close(matrix_session *session)
{
	fp_matrix *all[] = {&session->W, &session->A, &session->C, &session->R, &session->V};
	if (!session->be)
		return;
	fp_gram_free(&session->gram);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(session->be, all[i]);
	fp_backend_close(session->be);
}

static fp_status check_request(fp_context *ctx, const float *result, const fp_matrix_problem *problem)
{
	int64_t entries;
	if (problem->rows < 1 || problem->cols < 1 || !fp_multiply_checked(problem->rows, problem->cols, &entries) ||
		!fp_multiply_checked(problem->cols, problem->cols, &entries))
		return fp_fail(ctx, FP_ERROR_USAGE, "a matrix of %lld × %lld: rows and cols must be 1 or more",
					   (long long)problem->rows, (long long)problem->cols);
	if (!result || !problem->weights || !problem->gram)
		return fp_fail(ctx, FP_ERROR_USAGE, "%s is NULL: result, weights and gram must be given",
					   !result ? "result" : (!problem->weights ? "weights" : "gram"));
	if (problem->target && !(problem->energy >= 0 && isfinite(problem->energy)))
		return fp_fail(ctx, FP_ERROR_USAGE, "energy %g: must be the square of a norm, ‖WX‖², when a target is given",
					   problem->energy);
	return FP_OK;
}

/* Uploads an argument; NaN or infinity is an error that names it. */
static fp_status upload(matrix_session *session, fp_matrix *out, int64_t rows, int64_t cols, const float *host,
						const char *name)
{
	fp_backend *be = session->be;
	int finite;
	fp_status status;
	FP_TRY(fp_matrix_new(be, out, rows, cols, FP_F32));
	FP_TRY(be->memory->upload(be, *out, host, FP_F32, cols));
	FP_TRY(be->linear->finite(be, *out, &finite));
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_NUMERIC, "%s holds NaN or infinity; every entry must be finite", name);
cleanup:
	return status;
}

static fp_status check_symmetry(fp_context *ctx, const float *gram, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (gram[i * n + i] < 0)
			return fp_fail(ctx, FP_ERROR_NUMERIC, "gram[%lld, %lld] is %g: the diagonal of X*X*ᵀ is never negative",
						   (long long)i, (long long)i, (double)gram[i * n + i]);
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < i; j++) {
			double size = sqrt((double)gram[i * n + i] * (double)gram[j * n + j]);
			double lower = gram[i * n + j];
			double upper = gram[j * n + i];
			if (fabs(lower - upper) > SYMMETRY_TOLERANCE * size)
				return fp_fail(
					ctx, FP_ERROR_NUMERIC,
					"gram is not symmetric: [%lld, %lld] is %g and [%lld, %lld] is %g; give all of X*X*ᵀ, not "
					"one triangle of it",
					(long long)i, (long long)j, lower, (long long)j, (long long)i, upper);
		}
	return FP_OK;
}

/* A + δI has a Cholesky factor if and only if A has no eigenvalue below −δ. */
static fp_status check_definite(matrix_session *session)
{
	fp_backend *be = session->be;
	int64_t n = session->A.rows;
	fp_matrix factor = {0};
	fp_matrix shift = {0};
	double largest;
	int64_t refused;
	fp_status status;
	FP_TRY(fp_gram_largest(&session->gram, &largest));
	if (largest <= 0) /* with a diagonal that is not negative, all entries are zero */
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &factor, n, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &shift, 1, n, FP_F32));
	FP_TRY(be->memory->copy(be, factor, session->A));
	FP_TRY(be->memory->fill(be, shift, (float)(NEGATIVE_TOLERANCE * largest)));
	FP_TRY(be->linear->add_diagonal(be, factor, shift));
	FP_TRY(be->linear->inverse(be, factor, &refused));
	if (refused)
		status = fp_fail(
			be->ctx, FP_ERROR_NUMERIC,
			"gram has a negative eigenvalue, below %g, so it is not of the form X*X*ᵀ; give the sum of products itself",
			-NEGATIVE_TOLERANCE * largest);
cleanup:
	fp_matrix_free(be, &factor);
	fp_matrix_free(be, &shift);
	return status;
}

/* Computes C, R, e₀ and ‖WX‖² from the caller's target and energy, or for X* = X. */
static fp_status make_problem(matrix_session *session, const fp_matrix_problem *given)
{
	fp_backend *be = session->be;
	double own;
	double common;
	fp_status status;
	session->problem = (fp_problem){.gram = &session->gram, .W = session->W};
	FP_TRY(fp_matrix_new(be, &session->R, given->rows, given->cols, FP_F32));
	FP_TRY(be->linear->gemm(be, 1.0F, session->W, FP_PLAIN, session->A, FP_PLAIN, 0.0F, session->R));
	FP_TRY(be->linear->dot(be, session->W, session->R, &own));
	if (!given->target) {
		session->energy = own;
		session->problem.C = session->R;
		return FP_OK;
	}
	FP_TRY(upload(session, &session->C, given->rows, given->cols, given->target, "target"));
	FP_TRY(be->linear->dot(be, session->W, session->C, &common));
	FP_TRY(be->linear->axpby(be, 1.0F, session->C, -1.0F, session->R));
	double constant = own - 2.0 * common + given->energy;
	if (constant < -1e-4 * (own + given->energy))
		FP_TRY(fp_fail(be->ctx, FP_ERROR_USAGE,
					   "energy %g is too small for these weights, gram and target: ‖WX‖² is at least %g", given->energy,
					   2.0 * common - own));
	session->energy = given->energy;
	session->problem.C = session->C;
	session->problem.R = session->R;
	session->problem.constant = constant > 0 ? constant : 0;
cleanup:
	return status;
}

static fp_status session_open(matrix_session *session, fp_context *ctx, const fp_matrix_problem *given)
{
	fp_settings *settings = &session->settings;
	int64_t n = given->cols;
	fp_status status;
	FP_TRY(fp_settings_resolve(settings, ctx, given->family ? given->family : ""));
	if (!fp_is(settings->quantize, "none"))
		FP_TRY(
			fp_fail(ctx, FP_ERROR_USAGE, "quantize %s: a matrix alone is not quantised; use none", settings->quantize));
	FP_TRY(fp_backend_open(&session->be, ctx, settings->device, (int)settings->threads));
	FP_TRY(upload(session, &session->W, given->rows, n, given->weights, "weights"));
	FP_TRY(upload(session, &session->A, n, n, given->gram, "gram"));
	FP_TRY(check_symmetry(ctx, given->gram, n));
	FP_TRY(fp_gram_new(&session->gram, session->be, session->A));
	FP_TRY(check_definite(session));
	FP_TRY(make_problem(session, given));
	FP_TRY(fp_parse_sparsity(ctx, settings->pattern, &session->problem.pattern.sparsity, &session->problem.pattern.kept,
							 &session->problem.pattern.group));
	FP_TRY(fp_matrix_new(session->be, &session->V, given->rows, n, FP_F32));
cleanup:
	return status;
}

/* Replaces −0.0 by +0.0 and returns the number of zeros. */
static int64_t clean_zeros(float *values, int64_t count)
{
	int64_t zeros = 0;
	for (int64_t i = 0; i < count; i++)
		if (values[i] == 0.0F) {
			values[i] = 0.0F;
			zeros++;
		}
	return zeros;
}

fp_status fp_prune_matrix(float *result, fp_matrix_report *report, fp_context *ctx, const fp_matrix_problem *problem,
						  const fp_settings *settings)
{
	matrix_session session = {.settings = *settings};
	fp_solution solution;
	fp_status status;
	FP_TRY(check_request(ctx, result, problem));
	FP_TRY(session_open(&session, ctx, problem));
	FP_TRY(fp_solve(&session.problem, &session.settings, session.V, &solution));
	FP_TRY(session.be->memory->download(session.be, result, FP_F32, problem->cols, session.V));
	FP_TRY(session.be->memory->synchronize(session.be));
	int64_t entries = problem->rows * problem->cols; /* check_request() has seen that it is in range */
	*report = (fp_matrix_report){
		.error = solution.error,
		.relative_error = session.energy > 0 ? solution.error / sqrt(session.energy) : 0.0,
		.sparsity = (double)clean_zeros(result, entries) / (double)entries,
		.lambda = solution.lambda,
		.iterations = solution.iterations,
	};
cleanup:
	session_close(&session);
	return status;
}
