/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admm.c: the ADMM pruner of Boža (2024), as its author runs it, on a problem with a unit diagonal.
 *
 *     A' = A + 0.1·I
 *     C' = C + 0.1·W
 *     ρ  = 1
 *
 * and, starting from V = W and u = 0, in each step
 *
 *     Z = (V + u)∘mask
 *     u ← u + V − Z
 *     V = (C' + ρ(Z − u))(A' + ρI)⁻¹
 *
 * Each of the first 15 steps chooses the mask again from |V + u|, at the sparsity s(1 − (1 − k/15)³) in step k; after
 * that the mask is fixed. With an N:M pattern these steps prune an entry only if both the pattern and the sparsity of
 * the step prune it.
 */
#include "backend/work_space.h"
#include "solver/steps.h"

#include <math.h>

enum { STEPS = 20, MASK_STEPS = 15 };
static const float RHO = 1.0F;
static const float DAMPING = 0.1F;
static const float PROTECTED = 1e12F; /* raises the scores that N:M keeps above all others */

typedef struct admm_space {
	fp_backend *be;
	fp_matrix inverse, shift; /* n × n; 1 × n */
	fp_matrix C, Z, u;        /* m × n */
} admm_space;

static void space_free(admm_space *space)
{
	fp_matrix *all[] = {&space->inverse, &space->shift, &space->C, &space->Z, &space->u};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
}

static fp_status space_new(admm_space *space, const fp_problem *problem)
{
	fp_backend *be = space->be;
	int64_t m = problem->W.rows;
	int64_t n = problem->W.cols;
	int64_t refused;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &space->inverse, n, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->shift, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->C, m, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->Z, m, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->u, m, n, FP_F32));
	FP_TRY(be->memory->copy(be, space->inverse, problem->gram->A));
	FP_TRY(be->memory->fill(be, space->shift, DAMPING + RHO));
	FP_TRY(be->linear->add_diagonal(be, space->inverse, space->shift));
	FP_TRY(be->linear->inverse(be, space->inverse, &refused));
	if (refused)
		FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "the Gram matrix is not positive semidefinite"));
	FP_TRY(be->memory->copy(be, space->C, problem->C));
	FP_TRY(be->linear->axpby(be, DAMPING, problem->W, 1.0F, space->C));
	FP_TRY(be->memory->fill(be, space->u, 0.0F));
cleanup:
	return status;
}

/* mask ← the pattern at `share` of its sparsity, by |score|; with N:M, score is overwritten */
static fp_status gradual_mask(fp_backend *be, fp_pattern pattern, double share, fp_matrix score, fp_matrix work,
							  fp_matrix mask)
{
	fp_pattern partial = {.sparsity = pattern.sparsity * share};
	fp_status status;
	if (pattern.group == 0)
		return be->pruning->mask_smallest(be, score, &partial, mask);
	FP_TRY(be->pruning->mask_smallest(be, score, &pattern, mask));
	if (share >= 1)
		return FP_OK;
	FP_TRY(be->memory->copy(be, work, score));
	FP_TRY(be->pruning->apply_mask(be, mask, work));
	FP_TRY(be->linear->axpby(be, PROTECTED, work, 1.0F, score));
	FP_TRY(be->pruning->mask_smallest(be, score, &partial, mask));
cleanup:
	return status;
}

static fp_status solve_unit(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
							fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	admm_space space = {.be = be};
	fp_status status;
	(void)settings;
	FP_TRY(space_new(&space, problem));
	FP_TRY(be->memory->copy(be, V, problem->W));
	for (int k = 0; k < STEPS; k++, solution->search_steps++) {
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(be->linear->axpby(be, 1.0F, V, 1.0F, space.u)); /* u ← V + u, then split into Z and u */
		if (k < MASK_STEPS) {
			FP_TRY(be->memory->copy(be, space.Z, space.u));
			FP_TRY(gradual_mask(be, problem->pattern, 1.0 - pow(1.0 - (k + 1.0) / MASK_STEPS, 3), space.Z, V, mask));
		}
		FP_TRY(be->memory->copy(be, space.Z, space.u));
		FP_TRY(be->pruning->apply_mask(be, mask, space.Z));
		FP_TRY(be->linear->axpby(be, -1.0F, space.Z, 1.0F, space.u));
		FP_TRY(be->linear->axpby(be, -RHO, space.u, RHO, space.Z));
		FP_TRY(be->linear->axpby(be, 1.0F, space.C, 1.0F, space.Z));
		FP_TRY(be->linear->gemm(be, 1.0F, space.Z, FP_PLAIN, space.inverse, FP_PLAIN, 0.0F, V));
	}
	FP_TRY(be->linear->axpby(be, 1.0F, space.u, 1.0F, V));
	FP_TRY(be->pruning->apply_mask(be, mask, V));
cleanup:
	space_free(&space);
	return status;
}

static fp_status solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
					   fp_solution *solution)
{
	fp_status status = fp_warm_start(problem, "dense", settings, V, mask);
	return status == FP_OK
			   ? fp_solve_scaled(problem, settings, settings->ridge, FP_SCALING_COLUMNS, solve_unit, V, mask, solution)
			   : status;
}

static fp_solve_memory memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	double n = (double)size->inputs, mn = (double)size->entries;
	double work = (double)fp_inverse_bytes(be, size->inputs) / sizeof(float);
	(void)settings;
	return (fp_solve_memory){.kept = fp_scaled_memory(size).kept,
							 .peak = fp_scaled_copies(size) + n * n + work + 3 * mn}; /* the inverse; C', Z, u */
}

static fp_solve_products products(const fp_backend *be, const fp_settings *settings)
{
	(void)be, (void)settings;
	return (fp_solve_products){.operators = STEPS, .gram = 1};
}

const fp_method fp_method_admm = {
	.quantiser = FP_QUANTISER_DESCENT,
	.needs_text = true,
	.feed = fp_feed_sequential,
	.solve = solve,
	.memory = memory,
	.products = products,
};
