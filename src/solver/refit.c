/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refit.c: least squares on a fixed support, which takes the ℓ₁ bias out of the weights that stay.
 *
 *     min ‖VX* − T‖² over V with V = 0 outside the mask
 * The rows are independent problems; conjugate gradients run on all of them at once, one GEMM a step, each row with its
 * own step lengths, preconditioned by diag(A): r = (C − VA)∘mask   z = r·diag(A)⁻¹   p ← z + βp   q = (pA)∘mask   α =
 * ⟨r,z⟩/⟨p,q⟩   V += αp   r −= αq
 */
#include "base/clock.h"
#include "base/memory.h"
#include "solver/problem.h"

#include <math.h>

/* A row is solved as well as float can when ⟨r,z⟩ has fallen to a share of what it was, or of what the target alone
 * gives, or when a step would be very long: with a unit diagonal that is a direction without curvature, the null space
 * of a rank-deficient A. It must then stay where it is, for further steps are rounding errors divided by rounding
 * errors, and grow. */
static const float SOLVED = 1e-11F;
static const float SOLVED_TARGET = 1e-12F;
static const float LONGEST_STEP = 1e5F;

typedef struct refit_space {
	fp_backend *be;
	fp_matrix r, z, p, q;      /* m × n */
	fp_matrix a, b, inverse;   /* 1 × m, 1 × m, 1 × n */
	float *rz, *next, *factor; /* host, m each */
	float *enough;             /* the ⟨r,z⟩ below which a row is solved */
} refit_space;

static void space_free(refit_space *space)
{
	fp_matrix *all[] = {&space->r, &space->z, &space->p, &space->q, &space->a, &space->b, &space->inverse};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
	fp_free(space->rz);
	fp_free(space->enough);
	fp_free(space->next);
	fp_free(space->factor);
}

static fp_status space_new(refit_space *space, const fp_problem *problem)
{
	fp_backend *be = space->be;
	int64_t m = problem->W.rows;
	int64_t n = problem->W.cols;
	float *diagonal = NULL;
	fp_matrix *wide[] = {&space->r, &space->z, &space->p, &space->q};
	fp_status status;
	for (int i = 0; i < 4; i++)
		FP_TRY(fp_matrix_new(be, wide[i], m, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->a, 1, m, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->b, 1, m, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->inverse, 1, n, FP_F32));
	FP_TRY(FP_NEW(be->ctx, &space->rz, m));
	FP_TRY(FP_NEW(be->ctx, &space->enough, m));
	FP_TRY(FP_NEW(be->ctx, &space->next, m));
	FP_TRY(FP_NEW(be->ctx, &space->factor, m));
	FP_TRY(FP_NEW(be->ctx, &diagonal, n));
	FP_TRY(be->ops->download(be, diagonal, FP_F32, n, problem->gram->diagonal));
	for (int64_t i = 0; i < n; i++)
		diagonal[i] = diagonal[i] > 0 ? 1.0F / diagonal[i] : 0.0F;
	FP_TRY(be->ops->upload(be, space->inverse, diagonal, FP_F32, n));
cleanup:
	fp_free(diagonal);
	return status;
}

/* Y ← Y + sign·f∘X + …: Y[i,:] ← x·f[i]·X[i,:] + y·Y[i,:] or, with on_y, X[i,:] + f[i]·Y[i,:] */
static fp_status row_update(refit_space *space, float sign, bool on_y, fp_matrix X, fp_matrix Y)
{
	fp_backend *be = space->be;
	int64_t m = X.rows;
	fp_matrix vector = on_y ? space->b : space->a;
	fp_matrix ones = on_y ? space->a : space->b;
	fp_status status;
	if (sign < 0)
		for (int64_t i = 0; i < m; i++)
			space->factor[i] = -space->factor[i];
	FP_TRY(be->ops->upload(be, vector, space->factor, FP_F32, m));
	FP_TRY(be->ops->fill(be, ones, 1.0F));
	FP_TRY(be->ops->row_axpby(be, space->a, X, space->b, Y));
cleanup:
	return status;
}

static fp_status row_products(refit_space *space, fp_matrix X, fp_matrix Y, float *out)
{
	fp_backend *be = space->be;
	fp_status status = be->ops->row_dot(be, X, Y, space->a);
	return status == FP_OK ? be->ops->download(be, out, FP_F32, X.rows, space->a) : status;
}

static fp_status refit_step(refit_space *space, const fp_problem *problem, fp_matrix mask, fp_matrix V)
{
	fp_backend *be = space->be;
	int64_t m = V.rows;
	fp_status status;
	FP_TRY(be->ops->gemm(be, 1.0F, space->p, FP_PLAIN, problem->gram->A, FP_TRANSPOSED, 0.0F, space->q));
	FP_TRY(be->ops->apply_mask(be, mask, space->q));
	FP_TRY(row_products(space, space->p, space->q, space->next));
	for (int64_t i = 0; i < m; i++) {
		float step = space->next[i] > 0 && space->rz[i] > space->enough[i] ? space->rz[i] / space->next[i] : 0.0F;
		if (step == 0.0F || step > LONGEST_STEP) {
			step = 0.0F;
			space->enough[i] = INFINITY; /* for good */
		}
		space->factor[i] = step;
	}
	FP_TRY(row_update(space, 1.0F, false, space->p, V));
	FP_TRY(row_update(space, -1.0F, false, space->q, space->r));
	FP_TRY(be->ops->scale_columns(be, space->inverse, space->r, space->z));
	FP_TRY(row_products(space, space->r, space->z, space->next));
	for (int64_t i = 0; i < m; i++) {
		space->factor[i] = space->rz[i] > 0 ? space->next[i] / space->rz[i] : 0.0F;
		space->rz[i] = space->next[i];
	}
	FP_TRY(row_update(space, 1.0F, true, space->z, space->p));
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
	fp_use use = fp_backend_use(be, FP_USE_REFINEMENT);
	FP_TRY(space_new(&space, problem));
	FP_TRY(fp_problem_gradient(problem, V, space.r));
	FP_TRY(be->ops->axpby(be, 0.0F, space.r, -1.0F, space.r)); /* r ← −G */
	FP_TRY(be->ops->apply_mask(be, mask, space.r));
	FP_TRY(be->ops->scale_columns(be, space.inverse, space.r, space.z));
	FP_TRY(be->ops->copy(be, space.p, space.z));
	FP_TRY(row_products(&space, space.r, space.z, space.rz));
	FP_TRY(be->ops->scale_columns(be, space.inverse, problem->C, space.q));
	FP_TRY(row_products(&space, problem->C, space.q, space.enough));
	for (int64_t i = 0; i < V.rows; i++)
		space.enough[i] = fmaxf(SOLVED * space.rz[i], SOLVED_TARGET * space.enough[i]);
	for (int64_t k = 0; k < steps; k++)
		FP_TRY(refit_step(&space, problem, mask, V));
	FP_TRY(be->ops->apply_mask(be, mask, V));
cleanup:
	space_free(&space);
	fp_backend_use(be, use);
	fp_stage_enter(be->ctx, stage);
	return status;
}
