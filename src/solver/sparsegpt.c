/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsegpt.c: SparseGPT (Frantar and Alistarh 2023) on a problem's own Gram matrix.
 *
 *     δ = damping · mean diag(A)
 *     H = A + δI
 *     UᵀU = H⁻¹
 *
 * U drives a sweep over the columns in blocks. An input that is always zero (zero diagonal) gets a diagonal of 1, and
 * its weights are set to zero. If Cholesky fails, the damping grows tenfold, and the report says so.
 */
#include "backend/work_space.h"
#include "base/memory.h"
#include "solver/steps.h"

#include <math.h>

static const double STRONGEST_DAMPING = 10.0; /* that failures lead to: with more, H would hardly depend on A */

/* added (1 × n) ← what to add to the diagonal; alive (1 × n) ← 0 for inputs that are always zero, 1 for others */
static fp_status damping_vectors(const fp_gram *gram, double damping, fp_matrix added, fp_matrix alive)
{
	fp_backend *be = gram->be;
	int64_t n = gram->A.rows;
	float *diagonal = NULL;
	float *keep = NULL;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &diagonal, n));
	FP_TRY(FP_NEW(be->ctx, &keep, n));
	FP_TRY(be->memory->download(be, diagonal, FP_F32, n, gram->diagonal));
	for (int64_t i = 0; i < n; i++) {
		keep[i] = diagonal[i] > 0 ? 1.0F : 0.0F;
		diagonal[i] = (float)(damping * gram->mean_diagonal) + (diagonal[i] > 0 ? 0.0F : 1.0F);
	}
	FP_TRY(be->memory->upload(be, added, diagonal, FP_F32, n));
	FP_TRY(be->memory->upload(be, alive, keep, FP_F32, n));
cleanup:
	fp_free(diagonal);
	fp_free(keep);
	return status;
}

fp_status fp_gram_factor(fp_gram *gram, double damping)
{
	fp_backend *be = gram->be;
	int64_t n = gram->A.rows;
	fp_matrix added = {0};
	fp_matrix alive = {0};
	int64_t refused = 1;
	fp_status status = FP_OK;
	if (!fp_matrix_is_absent(gram->factor))
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &added, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &alive, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &gram->factor, n, n, FP_F32));
	for (double tried = damping; refused; tried = tried > 0 ? tried * 10 : 1e-6) {
		if (tried > fmax(damping, STRONGEST_DAMPING))
			FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC,
						   "the Gram matrix is not positive definite even with %g times its mean diagonal added; "
						   "use more calibration text or --warm-start wanda",
						   gram->factor_damping));
		FP_TRY(damping_vectors(gram, tried, added, alive));
		FP_TRY(be->memory->copy(be, gram->factor, gram->A));
		FP_TRY(be->linear->add_diagonal(be, gram->factor, added));
		FP_TRY(be->linear->inverse_factor(be, gram->factor, &refused));
		gram->factor_damping = tried;
		if (refused)
			fp_log(be->ctx, FP_LOG_WARNING,
				   "Cholesky failed for a Gram matrix with damping %g; trying ten times as much", tried);
	}
cleanup:
	fp_matrix_free(be, &added);
	fp_matrix_free(be, &alive);
	if (status != FP_OK)
		fp_matrix_free(be, &gram->factor);
	return status;
}

fp_status fp_sparsegpt(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask)
{
	fp_gram *gram = problem->gram;
	fp_backend *be = gram->be;
	fp_matrix added = {0};
	fp_matrix alive = {0};
	int64_t block = settings->block;
	fp_status status = FP_OK;
	if (problem->pattern.group > FP_SWEEP_GROUP)
		FP_TRY(
			fp_fail(be->ctx, FP_ERROR_USAGE,
					"pattern %lld:%lld: SparseGPT takes groups of up to %d entries; use a smaller M, or a method and a "
					"--warm-start other than sparsegpt",
					(long long)problem->pattern.kept, (long long)problem->pattern.group, FP_SWEEP_GROUP));
	FP_TRY(fp_gram_factor(gram, settings->damping));
	FP_TRY(fp_matrix_new(be, &added, 1, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &alive, 1, V.cols, FP_F32));
	FP_TRY(damping_vectors(gram, 0, added, alive));
	FP_TRY(be->linear->scale_columns(be, alive, problem->W, V));
	if (!fp_pattern_prunes(&problem->pattern))
		FP_TRY(be->pruning->mask_nonzero(be, problem->W, mask));
	if (problem->pattern.group > 0) /* a group must not cross a block boundary */
		block = (block + problem->pattern.group - 1) / problem->pattern.group * problem->pattern.group;
	FP_TRY(be->pruning->sparsegpt_sweep(be, gram->factor, &problem->pattern, problem->grid, block, V, mask));
cleanup:
	fp_matrix_free(be, &added);
	fp_matrix_free(be, &alive);
	return status;
}

fp_solve_memory fp_sparsegpt_memory(const fp_backend *be, const fp_solve_size *size)
{
	double n = (double)size->inputs;
	double work = (double)fp_inverse_bytes(be, size->inputs) / sizeof(float);
	/* U, and its transpose on a device */
	return (fp_solve_memory){.kept = n * n, .peak = be->asynchronous ? n * n + work : 0};
}

static fp_status solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
					   fp_solution *solution)
{
	(void)solution;
	return fp_warm_start(problem, "sparsegpt", settings, V, mask);
}

static fp_solve_memory memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	(void)settings;
	return fp_sparsegpt_memory(be, size);
}

static fp_solve_products products(const fp_backend *be, const fp_settings *settings)
{
	(void)be, (void)settings;
	/* the sweep is triangular; the factor takes Cholesky, an inverse and Cholesky */
	return (fp_solve_products){.operators = 0.5, .gram = 1};
}

const fp_method fp_method_sparsegpt = {
	.quantiser = FP_QUANTISER_OWN,
	.needs_text = true,
	.feed = fp_feed_sequential,
	.solve = solve,
	.memory = memory,
	.products = products,
};
