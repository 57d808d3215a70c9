/* SPDX-License-Identifier: Apache-2.0 */
/*
 * support_admm.c: the support search, ADMM with an ℓ₀ projection.
 *
 *     min ½‖VX* − T‖²  subject to V = Z, Z with the pattern
 *
 * With u the scaled multiplier and Π the projection onto the pattern, a step is
 *
 *     V = (C + ρ(Z − u))(A + ρI)⁻¹
 *     Z = Π(V + u)
 *     u ← u + V − Z
 *
 * Since C = WA + R, the first line is computed as
 *
 *     V − W = (ρ(Z − u − W) + R)(A + ρI)⁻¹
 *
 * so that products round only the difference from the dense weights. After a step Z and u are nonzero at different
 * entries, so that one matrix and the mask hold both.
 *
 * ρ grows level by level (inverse_cache.c), with a few steps at each level, until the support hardly changes. The levels
 * are the same for all operators of a Gram matrix, which share the inverses. The problem should have a unit diagonal,
 * to which ρ is relative.
 */
#include "base/clock.h"
#include "solver/inverse_cache.h"
#include "solver/steps.h"

#include <math.h>

/* docs/research/ingredients.md has measurements. The support is decided at ρ near 1, after eight or nine levels, and what
 * changes once it has settled hardly changes the error. */
enum { STEPS_PER_PENALTY = 6 };
static const double CONVERGED_SHARE = 0.03; /* of the kept entries, changed in one level */

typedef struct admm_space {
	fp_backend *be;
	fp_matrix T, G;   /* m × n: the product's left operand and result, in the type that products take */
	float scale;      /* T and G are stored multiplied by this; 1 unless they are F16 */
	fp_matrix S;      /* m × n: Z where the mask is 1, u elsewhere */
	fp_matrix before; /* the mask after the level before */
} admm_space;

static void space_free(admm_space *space)
{
	fp_matrix *all[] = {&space->T, &space->G, &space->S, &space->before};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
}

/* *out ← the power of two that scales the largest entry of W and R into [8, 16). A column of the inverse sums to at most
 * √n/ρ ≤ 10√n, so that products stay within F16's range up to n = 167,000, and entries a million times smaller than
 * the largest are still represented. */
static fp_status find_scale(const fp_problem *problem, float *out)
{
	fp_backend *be = problem->gram->be;
	double largest = 0;
	double other = 0;
	int exponent;
	fp_status status;
	*out = 1.0F;
	FP_TRY(be->linear->max_abs(be, problem->W, &largest));
	if (!fp_matrix_is_absent(problem->R))
		FP_TRY(be->linear->max_abs(be, problem->R, &other));
	largest = fmax(largest, other);
	if (largest > 0 && isfinite(largest)) {
		(void)frexp(largest, &exponent);
		*out = (float)ldexp(1.0, 4 - exponent);
	}
cleanup:
	return status;
}

/* T ← scale·(ρ(V − W) + R), the first operand */
static fp_status first_operand(admm_space *space, const fp_problem *problem, double rho, fp_matrix V)
{
	fp_backend *be = space->be;
	fp_dtype type = fp_backend_operand(be, FP_USE_ITERATION);
	fp_matrix first = {0};
	fp_status status;
	space->scale = 1.0F;
	if (type == FP_F16)
		FP_TRY(find_scale(problem, &space->scale));
	FP_TRY(fp_matrix_new(be, &first, V.rows, V.cols, FP_F32));
	FP_TRY(be->memory->copy(be, first, V));
	FP_TRY(be->linear->axpby(be, space->scale * (float)-rho, problem->W, space->scale * (float)rho, first));
	if (!fp_matrix_is_absent(problem->R))
		FP_TRY(be->linear->axpby(be, space->scale, problem->R, 1.0F, first));
	if (type == FP_F32) {
		space->T = first;
		return FP_OK;
	}
	FP_TRY(fp_matrix_new(be, &space->T, V.rows, V.cols, type));
	FP_TRY(be->memory->copy(be, space->T, first));
cleanup:
	fp_matrix_free(be, &first);
	return status;
}

/* Z ← V, u ← 0, and the first operand for ρ */
static fp_status space_new(admm_space *space, const fp_problem *problem, double rho, fp_matrix V, fp_matrix mask)
{
	fp_backend *be = space->be;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &space->S, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->before, V.rows, V.cols, FP_U8));
	FP_TRY(be->memory->copy(be, space->S, V));
	FP_TRY(be->memory->copy(be, space->before, mask));
	FP_TRY(be->memory->fill(be, mask, 1.0F));
	FP_TRY(first_operand(space, problem, rho, V));
	FP_TRY(fp_matrix_new(be, &space->G, V.rows, V.cols, space->T.dtype));
cleanup:
	return status;
}

/* The steps of one level. The last one prepares T and u for the next level's ρ. */
static fp_status run_penalty(admm_space *space, const fp_problem *problem, int64_t level, fp_matrix inverse,
							 fp_matrix mask)
{
	fp_backend *be = space->be;
	double rho = fp_penalty(level);
	double next = fp_penalty(level + 1);
	fp_status status = FP_OK;
	for (int j = 0; j < STEPS_PER_PENALTY; j++) {
		bool last = j + 1 == STEPS_PER_PENALTY;
		fp_support_rule rule = {.pattern = problem->pattern,
								.penalty = (float)(last ? next : rho),
								.shrink = (float)(last ? rho / next : 1.0),
								.scale = space->scale,
								.W = problem->W,
								.R = problem->R};
		FP_TRY(be->linear->gemm(be, 1.0F, space->T, FP_PLAIN, inverse, FP_TRANSPOSED, 0.0F, space->G));
		FP_TRY(be->pruning->support_step(be, &rule, space->G, space->S, mask, space->T));
	}
cleanup:
	return status;
}

fp_status fp_support_admm(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
						  int64_t *steps)
{
	fp_backend *be = problem->gram->be;
	admm_space space = {.be = be};
	fp_matrix inverse;
	const fp_solve_team *team = problem->gram->team;
	double kept = (1.0 - problem->pattern.sparsity) * (double)((team ? team->rows : V.rows) * V.cols);
	int64_t level = 0;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_SEARCH);
	FP_PRODUCTS_FOR(be, FP_USE_ITERATION);
	fp_status status;
	FP_TRY(fp_gram_inverse(problem->gram, &level, &inverse));
	FP_TRY(space_new(&space, problem, fp_penalty(level), V, mask));
	for (int64_t k = 0; k < settings->search_steps && level < FP_PENALTY_LEVELS; k += STEPS_PER_PENALTY) {
		int64_t changed;
		int64_t wanted = level;
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(fp_gram_inverse(problem->gram, &wanted, &inverse));
		if (wanted != level)
			FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "the Gram matrix is not positive semidefinite"));
		FP_TRY(run_penalty(&space, problem, level++, inverse, mask));
		*steps += STEPS_PER_PENALTY;
		FP_TRY(be->pruning->mask_distance(be, mask, space.before, &changed));
		if (team)
			FP_TRY(team->sum(team->data, &changed));
		if ((double)changed <= CONVERGED_SHARE * kept)
			break;
		FP_TRY(be->memory->copy(be, space.before, mask));
	}
	FP_TRY(be->memory->copy(be, V, space.S));
	FP_TRY(be->pruning->apply_mask(be, mask, V));
cleanup:
	fp_stage_enter(be->ctx, stage);
	space_free(&space);
	return status;
}

fp_solve_memory fp_support_admm_memory(const fp_backend *be, const fp_solve_size *size)
{
	const double mask = 0.25;
	double mn = (double)size->entries;
	bool half = fp_backend_operand(be, FP_USE_ITERATION) == FP_F16;
	fp_solve_memory inverses = fp_inverse_cache_memory(be, size);
	double steps = (half ? 2 : 3) * mn + mask * mn; /* S, T and G, and the mask before */
	if (be->asynchronous)
		steps += fmax(inverses.peak, fp_product_floats(be, FP_USE_ITERATION, size));
	/* first_operand(): S, the mask before, and T in F32 and rounded */
	return (fp_solve_memory){.kept = inverses.kept, .peak = fmax(steps, 2.75 * mn)};
}

double fp_support_admm_products(const fp_settings *settings)
{
	const double usual = 60; /* six steps at each of nine levels, and the inverses */
	return fmin((double)settings->search_steps, usual);
}
