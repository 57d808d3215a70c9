/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alps.c: ALPS (Meng, Behdin, Wang and Mazumder 2024, arXiv 2406.07831), as its authors run it, on a problem with a
 * unit diagonal. The Gram matrix is damped by λ₂ = 0.01 · mean diagonal before it is scaled.
 *
 * 1. ADMM finds the support. Π keeps the largest entries that the pattern allows; u is the multiplier over ρ. From
 *    Z = Π(W), u = 0 and ρ = 0.1, a step is
 *
 *        V = (C + ρ(Z − u))(A + ρI)⁻¹     Z = Π(V + u)     u ← u + V − Z
 *
 *    Every third step compares the support of Z with that of three steps ago. With k entries kept and d that differ,
 *
 *        d > 0.1k           ρ ← 1.3ρ      and ρ has grown
 *        d > 0.005k         ρ ← 1.2ρ      and ρ has grown
 *        d > 0              ρ ← 1.1ρ if ρ has grown; else ρ ← ρ/5, and the iteration starts again from Π(W)
 *        d = 0              stop if ρ has grown; else ρ ← ρ/5
 *
 *    where ρu stays as it was. It also stops after 30 steps when d < 0.0003k, and after 300 steps.
 * 2. Π(V) gives the support and the start of ten steps of preconditioned conjugate gradients for the least squares on
 *    that support. The paper's preconditioner is diag(A), here the identity: that is fp_refit().
 *
 * The step's elementwise part is that of the support search (support_admm.c): one matrix S holds Z on the mask and u
 * elsewhere, and since C = WA + R the product gives V − W from T = ρ(Z − u − W) + R. The authors take every inverse
 * from one eigendecomposition in double. A Cholesky inverse for each ρ is cheaper for the dozen values that occur.
 */
#include "backend/work_space.h"
#include "base/clock.h"
#include "solver/inverse_cache.h"
#include "solver/steps.h"

#include <math.h>

enum { MOST_STEPS = 300, STEPS_PER_PENALTY = 3, STEPS_BEFORE_FEW = 30, CG_STEPS = 10 };
static const double RIDGE = 0.01;
static const double FIRST_RHO = 0.1;
static const double LARGEST_RHO = 1e6;
static const double MANY = 0.1; /* changed, of the entries kept */
static const double SOME = 0.005;
static const double FEW = 0.0003;

typedef struct alps_space {
	fp_backend *be;
	fp_matrix inverse; /* (A + ρI)⁻¹ */
	fp_matrix S, T;    /* m × n */
	fp_matrix before;  /* the mask three steps ago */
	double rho;
	bool grown; /* ρ has grown */
} alps_space;

static void space_free(alps_space *space)
{
	fp_matrix *all[] = {&space->inverse, &space->S, &space->T, &space->before};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
}

static fp_status space_new(alps_space *space, fp_matrix V)
{
	fp_backend *be = space->be;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &space->inverse, V.cols, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->S, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->T, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->before, V.rows, V.cols, FP_U8));
cleanup:
	return status;
}

/* Z ← Π(W), u ← 0 */
static fp_status start(alps_space *space, const fp_problem *problem, fp_matrix mask)
{
	fp_status status = space->be->memory->copy(space->be, space->S, problem->W);
	return status == FP_OK ? fp_round(problem, space->S, mask) : status;
}

/* inverse ← (A + *rho·I)⁻¹. A deficient A that Cholesky refuses, because ρ is lost in its rounding, gets a larger ρ. */
static fp_status invert(alps_space *space, const fp_problem *problem, double *rho)
{
	int64_t refused;
	fp_status status;
	for (;; *rho *= 2) {
		FP_TRY(fp_gram_invert(problem->gram, *rho, space->inverse, &refused));
		if (!refused)
			return FP_OK;
		if (!(*rho < LARGEST_RHO))
			FP_TRY(fp_fail(space->be->ctx, FP_ERROR_NUMERIC, "the Gram matrix is not positive semidefinite"));
	}
cleanup:
	return status;
}

/* Goes on with ρ = rho: its inverse, u ← u·(old ρ)/ρ, and T. work: m × n */
static fp_status set_penalty(alps_space *space, const fp_problem *problem, double rho, fp_matrix mask, fp_matrix work)
{
	fp_backend *be = space->be;
	fp_status status;
	FP_TRY(invert(space, problem, &rho));
	float ratio = (float)(space->rho / rho);
	space->rho = rho;
	FP_TRY(be->memory->copy(be, work, space->S));
	FP_TRY(be->pruning->apply_mask(be, mask, work)); /* Z */
	FP_TRY(be->linear->axpby(be, 1.0F - ratio, work, ratio, space->S));
	FP_TRY(be->memory->copy(be, space->T, space->S));
	FP_TRY(be->linear->axpby(be, 2.0F, work, -1.0F, space->T)); /* 2Z − (Z + u) */
	FP_TRY(be->linear->axpby(be, (float)-rho, problem->W, (float)rho, space->T));
	if (!fp_matrix_is_absent(problem->R))
		FP_TRY(be->linear->axpby(be, 1.0F, problem->R, 1.0F, space->T));
cleanup:
	return status;
}

/* The steps with one ρ; G is left V − W of the last. */
static fp_status run_steps(alps_space *space, const fp_problem *problem, fp_matrix G, fp_matrix mask)
{
	fp_backend *be = space->be;
	fp_support_rule rule = {.pattern = problem->pattern,
							.penalty = (float)space->rho,
							.shrink = 1.0F,
							.scale = 1.0F,
							.W = problem->W,
							.R = problem->R};
	fp_status status = FP_OK;
	for (int j = 0; j < STEPS_PER_PENALTY; j++) {
		FP_TRY(be->linear->gemm(be, 1.0F, space->T, FP_PLAIN, space->inverse, FP_TRANSPOSED, 0.0F, G));
		FP_TRY(be->pruning->support_step(be, &rule, G, space->S, mask, space->T));
	}
cleanup:
	return status;
}

/* The next ρ after `changed` of `kept` entries changed. */
static double next_rho(alps_space *space, double changed, double kept)
{
	double factor = changed > MANY * kept ? 1.3 : changed > SOME * kept ? 1.2 : space->grown ? 1.1 : 0.2;
	space->grown = space->grown || factor > 1;
	return fmin(space->rho * factor, LARGEST_RHO);
}

/* The ADMM steps. G is left V − W of the last one, not with the pattern. */
static fp_status find_support(alps_space *space, const fp_problem *problem, fp_matrix G, fp_matrix mask, int64_t *steps)
{
	fp_backend *be = space->be;
	double kept = (1.0 - problem->pattern.sparsity) * (double)fp_matrix_size(G);
	double rho = FIRST_RHO;
	fp_status status;
	FP_TRY(start(space, problem, mask));
	FP_TRY(be->memory->copy(be, space->before, mask));
	for (int64_t done = 0;;) {
		int64_t changed;
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(set_penalty(space, problem, rho, mask, G));
		FP_TRY(run_steps(space, problem, G, mask));
		done += STEPS_PER_PENALTY;
		*steps += STEPS_PER_PENALTY;
		FP_TRY(be->pruning->mask_distance(be, mask, space->before, &changed));
		if ((changed == 0 && space->grown) || (done > STEPS_BEFORE_FEW && (double)changed < FEW * kept) ||
			done >= MOST_STEPS)
			break;
		FP_TRY(be->memory->copy(be, space->before, mask));
		rho = next_rho(space, (double)changed, kept);
		if (changed > 0 && !space->grown)
			FP_TRY(start(space, problem, mask));
	}
cleanup:
	return status;
}

static fp_status solve_unit(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
							fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	alps_space space = {.be = be, .rho = FIRST_RHO};
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_SEARCH);
	fp_status status;
	(void)settings;
	FP_TRY(space_new(&space, V));
	FP_TRY(find_support(&space, problem, V, mask, &solution->search_steps));
	space_free(&space);
	FP_TRY(be->linear->axpby(be, 1.0F, problem->W, 1.0F, V));
	FP_TRY(fp_round(problem, V, mask));
	FP_TRY(fp_refit(problem, CG_STEPS, mask, V));
cleanup:
	space_free(&space);
	fp_stage_enter(be->ctx, stage);
	return status;
}

static fp_status solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
					   fp_solution *solution)
{
	fp_status status = fp_warm_start(problem, "dense", settings, V, mask);
	return status == FP_OK
			   ? fp_solve_scaled(problem, settings, RIDGE, FP_SCALING_COLUMNS, solve_unit, V, mask, solution)
			   : status;
}

static fp_solve_memory memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	const double mask = 0.25;
	double n = (double)size->inputs, mn = (double)size->entries;
	fp_solve_memory refit = fp_refit_memory(be, settings, size);
	double work = (double)fp_inverse_bytes(be, size->inputs) / sizeof(float);
	double search = n * n + work + 2 * mn + mask * mn; /* the inverse; S and T; the mask before */
	return (fp_solve_memory){.kept = fp_scaled_memory(size).kept + refit.kept,
							 .peak = fp_scaled_copies(size) + fmax(search, refit.peak)};
}

static fp_solve_products products(const fp_backend *be, const fp_settings *settings)
{
	const double usual_steps = 33, usual_inverses = 11;
	(void)be, (void)settings;
	/* the inverses are not shared: in a group of three or four operators about as much as this many for each */
	return (fp_solve_products){.operators = usual_steps + CG_STEPS + 1 + usual_inverses};
}

const fp_method fp_method_alps = {
	.quantiser = FP_QUANTISER_DESCENT,
	.needs_text = true,
	.feed = fp_feed_sequential,
	.solve = solve,
	.memory = memory,
	.products = products,
};
