/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refit.c: least squares on a fixed support.
 *
 *     min ‖VX* − T‖² over V with V = 0 outside the mask
 *
 * The rows are independent problems. Conjugate gradients, preconditioned by diag(A), solve all of them at once: one GEMM
 * per step, and step lengths α and β per row. From r = (R − (V − W)A)∘mask and p = z = r·diag(A)⁻¹, each step is
 *
 *     q = (pA)∘mask
 *     α = ⟨r, z⟩/⟨p, q⟩
 *     V ← V + αp
 *     r ← r − αq
 *     z = r·diag(A)⁻¹
 *     β = ⟨r, z⟩/⟨r, z⟩ of the step before
 *     p ← z + βp
 *
 * V comes from a search, so that the steps change it little: if products round p and A to 16 bits, the error is
 * relative to that change and not to V. Only the first residual must be exact.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "solver/steps.h"

#include <math.h>

/* A row has converged, as far as float arithmetic allows, when ⟨r, z⟩ is at most CONVERGED times its first value or
 * CONVERGED_TARGET times its value for V = 0, or when α would exceed LONGEST_STEP: with a unit diagonal that is a
 * direction without curvature, in the null space of a rank-deficient A. The row then stops, because further steps would
 * divide rounding errors by rounding errors, and grow. */
static const float CONVERGED = 1e-11F;
static const float CONVERGED_TARGET = 1e-12F;
static const float LONGEST_STEP = 1e5F;

typedef struct refit_space {
	fp_backend *be;
	fp_cg cg;           /* cg.V and cg.mask are the caller's */
	fp_matrix q;        /* m × n */
	fp_matrix A;        /* in the type that products take, borrowed */
	float *rz, *enough; /* host, m each */
} refit_space;

static void space_free(refit_space *space)
{
	fp_cg *cg = &space->cg;
	fp_matrix *all[] = {&cg->r, &cg->p, &cg->inverse, &cg->rz, &cg->enough, &cg->narrow, &cg->factor, &space->q};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
	fp_free(space->rz);
	fp_free(space->enough);
}

/* inverse ← 1/diag(A), or 0 for an entry of diag(A) that is not positive */
static fp_status invert_diagonal(fp_backend *be, fp_matrix diagonal, fp_matrix inverse)
{
	int64_t n = diagonal.cols;
	float *numbers = NULL;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &numbers, n));
	FP_TRY(be->memory->download(be, numbers, FP_F32, n, diagonal));
	for (int64_t i = 0; i < n; i++)
		numbers[i] = numbers[i] > 0 ? 1.0F / numbers[i] : 0.0F;
	FP_TRY(be->memory->upload(be, inverse, numbers, FP_F32, n));
cleanup:
	fp_free(numbers);
	return status;
}

static fp_status space_new(refit_space *space, const fp_problem *problem, fp_matrix mask, fp_matrix V)
{
	fp_backend *be = space->be;
	fp_cg *cg = &space->cg;
	int64_t m = V.rows;
	int64_t n = V.cols;
	fp_status status;
	*cg = (fp_cg){.mask = mask, .V = V, .longest = LONGEST_STEP};
	space->A = problem->gram->A;
	FP_TRY(fp_matrix_new(be, &cg->r, m, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &cg->p, m, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->q, m, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &cg->inverse, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &cg->rz, 1, m, FP_F32));
	FP_TRY(fp_matrix_new(be, &cg->enough, 1, m, FP_F32));
	FP_TRY(FP_NEW(be->ctx, &space->rz, m));
	FP_TRY(FP_NEW(be->ctx, &space->enough, m));
	FP_TRY(invert_diagonal(be, problem->gram->diagonal, cg->inverse));
	if (problem->gram->unit && fp_backend_operand(be, FP_USE_ITERATION) == FP_F16) {
		FP_TRY(fp_gram_half(problem->gram, &space->A));
		FP_TRY(fp_matrix_new(be, &cg->narrow, m, n, FP_F16));
		FP_TRY(fp_matrix_new(be, &cg->factor, 1, m, FP_F32));
	}
cleanup:
	return status;
}

/* The first residual and direction, and the ⟨r, z⟩ at which each row has converged. */
static fp_status start(refit_space *space, const fp_problem *problem)
{
	fp_backend *be = space->be;
	fp_cg *cg = &space->cg;
	int64_t m = cg->r.rows;
	fp_status status;
	FP_TRY(fp_problem_difference(problem, cg->V, space->q));
	FP_TRY(fp_problem_gradient_at(problem, space->q, cg->r));
	FP_TRY(be->linear->axpby(be, 0.0F, cg->r, -1.0F, cg->r)); /* r ← −G */
	FP_TRY(be->pruning->apply_mask(be, cg->mask, cg->r));
	FP_TRY(be->pruning->cg_step(be, cg, (fp_matrix){0}));
	FP_TRY(be->memory->download(be, space->rz, FP_F32, m, cg->rz));
	FP_TRY(be->linear->scale_columns(be, cg->inverse, problem->C, space->q));
	FP_TRY(be->linear->row_dot(be, problem->C, space->q, cg->enough));
	FP_TRY(be->memory->download(be, space->enough, FP_F32, m, cg->enough));
	for (int64_t i = 0; i < m; i++)
		space->enough[i] = fmaxf(CONVERGED * space->rz[i], CONVERGED_TARGET * space->enough[i]);
	FP_TRY(be->memory->upload(be, cg->enough, space->enough, FP_F32, m));
cleanup:
	return status;
}

static fp_status take_steps(refit_space *space, int64_t steps)
{
	fp_backend *be = space->be;
	fp_matrix direction = fp_matrix_is_absent(space->cg.narrow) ? space->cg.p : space->cg.narrow;
	FP_PRODUCTS_FOR(be, FP_USE_ITERATION);
	fp_status status = FP_OK;
	for (int64_t k = 0; k < steps; k++) {
		FP_TRY(be->linear->gemm(be, 1.0F, direction, FP_PLAIN, space->A, FP_TRANSPOSED, 0.0F, space->q));
		FP_TRY(be->pruning->cg_step(be, &space->cg, space->q));
	}
cleanup:
	return status;
}

fp_status fp_refit(const fp_problem *problem, int64_t steps, fp_matrix mask, fp_matrix V)
{
	fp_backend *be = problem->gram->be;
	refit_space space = {.be = be};
	fp_status status = FP_OK;
	if (steps <= 0)
		return FP_OK;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_REFIT);
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	FP_TRY(space_new(&space, problem, mask, V));
	FP_TRY(start(&space, problem));
	FP_TRY(take_steps(&space, steps));
	FP_TRY(be->pruning->apply_mask(be, mask, V));
cleanup:
	space_free(&space);
	fp_stage_enter(be->ctx, stage);
	return status;
}

fp_solve_memory fp_refit_memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	double n = (double)size->inputs, mn = (double)size->entries;
	bool half = fp_backend_operand(be, FP_USE_ITERATION) == FP_F16;
	/* r, p and q; and in F16 p, and A if it has a unit diagonal */
	return (fp_solve_memory){.kept = settings->scaling && half ? 0.5 * n * n : 0,
							 .peak = (half ? 3.5 : 3) * mn + fp_product_floats(be, FP_USE_REFINEMENT, size)};
}
