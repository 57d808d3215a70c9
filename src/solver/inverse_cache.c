/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inverse_cache.c: (A + ρI)⁻¹ for a series of penalties ρ, shared by all operators of a Gram matrix.
 *
 * On a CPU an inverse costs little more than a product, so each is computed from A. On a device it costs many products,
 * so the inverse X' at ρ' = rρ is computed from the inverse X at ρ. With δ = ρ' − ρ:
 *
 *     A + ρ'I = X⁻¹ + δI
 *     X' = X(I + δX)⁻¹ ≈ X p(δX)
 *
 * The eigenvalues of δX are in (0, r − 1]. p has degree 3 and 1 − (1 + y)p(y) is the Chebyshev polynomial of that
 * interval, so that each eigenvalue of X' has a relative error of at most 2·10⁻⁵, and errors of earlier levels do not
 * grow. This takes two products, X² and one of polynomials of X: both are symmetric, and half of each is computed.
 */
#include "solver/inverse_cache.h"

#include "backend/work_space.h"
#include "base/memory.h"
#include "solver/steps.h"

#include <math.h>

enum { LEVELS_KEPT = 16, LEVELS_SKIPPED = 3 };
static const double FIRST_RHO = 0.15; /* relative to a unit diagonal */
static const double RATIO = 1.25;

double fp_penalty(int64_t level)
{
	return FIRST_RHO * pow(RATIO, (double)level);
}

fp_status fp_gram_invert(const fp_gram *gram, double rho, fp_matrix out, int64_t *refused)
{
	fp_backend *be = gram->be;
	fp_matrix diagonal = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &diagonal, 1, gram->A.rows, FP_F32));
	FP_TRY(be->memory->fill(be, diagonal, (float)rho));
	FP_TRY(be->memory->copy(be, out, gram->A));
	FP_TRY(be->linear->add_diagonal(be, out, diagonal));
	FP_TRY(be->linear->inverse(be, out, refused));
cleanup:
	fp_matrix_free(be, &diagonal);
	return status;
}

/* square ← X² for the inverse X at ρ, both triangles. Where products take F16, narrow is work space, and N = X − μI is
 * multiplied instead:
 *
 *     X² = N² + 2μX − μ²I
 *
 * With the mean diagonal μ no entry of N is much larger than the others of its row, and rounding errors are smaller. */
static fp_status square_of(fp_backend *be, double rho, fp_matrix X, fp_matrix narrow, fp_matrix square)
{
	const double scale = 256 * rho; /* no entry of X exceeds 1/ρ */
	fp_matrix diagonal = {0};
	double mean;
	fp_status status;
	if (fp_matrix_is_absent(narrow)) {
		FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
		FP_TRY(be->linear->gram(be, X, 0.0F, square)); /* X is symmetric: XᵀX = X² */
	} else {
		FP_TRY(fp_matrix_new(be, &diagonal, 1, X.rows, FP_F32));
		FP_TRY(be->linear->diagonal(be, X, diagonal));
		FP_TRY(fp_mean(be, diagonal, &mean));
		FP_TRY(be->memory->fill(be, diagonal, (float)-mean));
		FP_TRY(be->memory->copy(be, square, X));
		FP_TRY(be->linear->add_diagonal(be, square, diagonal));
		FP_TRY(be->linear->combine(be, (float)scale, square, 0.0F, square, narrow));
		FP_TRY(be->linear->axpby(be, (float)mean, X, (float)mean, square)); /* 2μX − μ²I */
		FP_TRY(fp_multiply_symmetric(be, (float)(1 / (scale * scale)), narrow, narrow, 1.0F, square));
	}
	FP_TRY(be->linear->mirror(be, square));
cleanup:
	fp_matrix_free(be, &diagonal);
	return status;
}

/* out ← the inverse one level above X, the inverse at ρ. out may be X. */
static fp_status raise_penalty(fp_backend *be, double rho, fp_matrix X, fp_matrix out)
{
	/* for r = 1.25:
	 *     (1 + y)p(y) = 1 − T₄(8y − 1)/T₄(−9)
	 *     p(y) = (51840 − 51712y + 49152y² − 32768y³)/51841 */
	const double delta = (RATIO - 1) * rho;
	const float a1 = (float)(51840.0 / 51841.0);
	const float a2 = (float)(-51712.0 / 51841.0 * delta);
	const double a3 = 49152.0 / 51841.0 * delta * delta;
	const double a4 = -32768.0 / 51841.0 * delta * delta * delta;
	/* in F16: entries of X² are at most 1/ρ² and those of `high` at most ρ/16; the largest become 256 */
	const fp_dtype type = fp_backend_operand(be, FP_USE_ITERATION);
	const bool half = type == FP_F16;
	const double scale = half ? 256 * rho * rho : 1, high_scale = half ? 4096 / rho : 1;
	fp_matrix square = {0}, high = {0}, rounded = {0};
	FP_PRODUCTS_FOR(be, FP_USE_ITERATION);
	fp_status status;
	FP_TRY(fp_matrix_new(be, &square, X.rows, X.cols, FP_F32));
	if (half)
		FP_TRY(fp_matrix_new(be, &rounded, X.rows, X.cols, type));
	FP_TRY(square_of(be, rho, X, rounded, square));
	FP_TRY(fp_matrix_new(be, &high, X.rows, X.cols, type)); /* after gram(), which needs memory itself */
	FP_TRY(be->linear->combine(be, (float)(a3 * high_scale), X, (float)(a4 * high_scale), square, high));
	FP_TRY(be->linear->combine(be, a1, X, a2, square, out));
	if (half)
		FP_TRY(be->linear->combine(be, (float)scale, square, 0.0F, square, rounded));
	FP_TRY(fp_multiply_symmetric(be, (float)(1 / (scale * high_scale)), half ? rounded : square, high, 1.0F, out));
	FP_TRY(be->linear->mirror(be, out));
cleanup:
	fp_matrix_free(be, &square);
	fp_matrix_free(be, &high);
	fp_matrix_free(be, &rounded);
	return status;
}

fp_status fp_gram_keeps_inverses(const fp_gram *gram, bool *out)
{
	int64_t available;
	int64_t total;
	fp_dtype type = fp_backend_operand(gram->be, FP_USE_ITERATION);
	int64_t wanted = LEVELS_KEPT * fp_matrix_size(gram->A) * fp_dtype_size(type);
	*out = false;
	if (!gram->shared || gram->be->frugal)
		return FP_OK;
	fp_status status = gram->be->memory->available(gram->be, &available, &total);
	*out = wanted < available / 4;
	return status;
}

/* out ← the inverse at *level or, if Cholesky fails there, at the first tried above it where it succeeds. */
static fp_status start(fp_gram *gram, int64_t *level, fp_matrix out)
{
	int64_t refused = 1;
	fp_status status = FP_OK;
	while (*level < FP_PENALTY_LEVELS) {
		FP_TRY(fp_gram_invert(gram, fp_penalty(*level), out, &refused));
		if (!refused)
			return FP_OK;
		*level += LEVELS_SKIPPED; /* A is rank-deficient beyond rounding: a larger ρ helps */
	}
	status = fp_fail(gram->be->ctx, FP_ERROR_NUMERIC, "the Gram matrix is not positive semidefinite");
cleanup:
	return status;
}

static bool holds_newest(const fp_gram *gram)
{
	return !fp_matrix_is_absent(gram->newest) && gram->inverses[gram->newest_level].buffer == gram->newest.buffer;
}

void fp_gram_free_inverses(fp_gram *gram)
{
	if (!gram->inverses)
		return;
	if (!holds_newest(gram))
		fp_matrix_free(gram->be, &gram->newest);
	for (int64_t i = 0; i < FP_PENALTY_LEVELS; i++)
		fp_matrix_free(gram->be, &gram->inverses[i]);
	fp_free(gram->inverses);
}

/* gram->newest ← the inverse at *level; overwrites the last one unless that is kept. */
static fp_status compute_newest(fp_gram *gram, int64_t *level)
{
	fp_backend *be = gram->be;
	fp_matrix below = gram->newest;
	int64_t from = gram->newest_level;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(below) || holds_newest(gram))
		FP_TRY(fp_matrix_new(be, &gram->newest, gram->A.rows, gram->A.cols, FP_F32));
	gram->newest_level = *level;
	if (be->asynchronous && !fp_matrix_is_absent(below) && from == *level - 1)
		FP_TRY(raise_penalty(be, fp_penalty(from), below, gram->newest));
	else
		FP_TRY(start(gram, level, gram->newest));
	gram->newest_level = *level;
cleanup:
	return status;
}

/* gram->inverses[level] ← gram->newest itself or, if products take another type, a copy in that type. all: the inverses
 * of other levels are kept; otherwise the copy overwrites the one that was kept. */
static fp_status keep_newest(fp_gram *gram, fp_dtype type, bool all)
{
	fp_backend *be = gram->be;
	fp_matrix *held = &gram->inverses[gram->newest_level];
	if (type == FP_F32) {
		fp_matrix_free(be, held); /* present if Cholesky failed again at a lower level */
		*held = gram->newest;
		return FP_OK;
	}
	for (int64_t i = 0; i < FP_PENALTY_LEVELS && !all && fp_matrix_is_absent(*held); i++) {
		*held = gram->inverses[i];
		if (i != gram->newest_level)
			gram->inverses[i] = (fp_matrix){0};
	}
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(*held))
		status = fp_matrix_new(be, held, gram->A.rows, gram->A.cols, type);
	return status == FP_OK ? be->memory->copy(be, *held, gram->newest) : status;
}

/* gram->newest ← the inverse at this member's level of those that a team computes at the same time. */
static fp_status compute_own(fp_gram *gram, int64_t level)
{
	const fp_solve_team *team = gram->team;
	int64_t own = level / team->members * team->members + team->member;
	bool done = !fp_matrix_is_absent(gram->newest) && gram->newest_level == own;
	fp_status status = FP_OK;
	if (done || own >= FP_PENALTY_LEVELS)
		return FP_OK;
	if (fp_matrix_is_absent(gram->newest))
		FP_TRY(fp_matrix_new(gram->be, &gram->newest, gram->A.rows, gram->A.cols, FP_F32));
	FP_TRY(fp_gram_invert(gram, fp_penalty(own), gram->newest, &gram->newest_refused));
	gram->newest_level = own;
cleanup:
	return status;
}

/* *out ← a matrix for an inverse: that of another level, which is not kept, or a new one */
static fp_status take_space(fp_gram *gram, fp_matrix *out)
{
	for (int64_t i = 0; i < FP_PENALTY_LEVELS && !gram->team->keeps; i++)
		if (!fp_matrix_is_absent(gram->inverses[i])) {
			*out = gram->inverses[i];
			gram->inverses[i] = (fp_matrix){0};
			return FP_OK;
		}
	return fp_matrix_new(gram->be, out, gram->A.rows, gram->A.cols, FP_F32);
}

/* gram->inverses[*level] ← from the member of the team that computes it */
static fp_status share_inverse(fp_gram *gram, int64_t *level)
{
	const fp_solve_team *team = gram->team;
	fp_matrix space = {0};
	int64_t refused = 1;
	fp_status status;
	FP_TRY(take_space(gram, &space));
	for (; *level < FP_PENALTY_LEVELS; *level += LEVELS_SKIPPED) { /* as in start() */
		int from = (int)(*level % team->members);
		FP_TRY(compute_own(gram, *level));
		refused = gram->newest_refused;
		if (from == team->member)
			FP_TRY(gram->be->memory->copy(gram->be, space, gram->newest));
		FP_TRY(team->give(team->data, from, space, &refused));
		if (!refused)
			break;
	}
	if (refused)
		FP_TRY(fp_fail(gram->be->ctx, FP_ERROR_NUMERIC, "the Gram matrix is not positive semidefinite"));
	gram->inverses[*level] = space;
	space = (fp_matrix){0};
cleanup:
	fp_matrix_free(gram->be, &space);
	return status;
}

fp_status fp_gram_inverse(fp_gram *gram, int64_t *level, fp_matrix *out)
{
	fp_backend *be = gram->be;
	fp_dtype type = fp_backend_operand(be, FP_USE_ITERATION);
	bool keep;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_status status = FP_OK;
	FP_REQUIRE(be, *level >= 0 && *level < FP_PENALTY_LEVELS);
	if (!gram->inverses)
		FP_TRY(FP_NEW(be->ctx, &gram->inverses, FP_PENALTY_LEVELS));
	if (fp_matrix_is_absent(gram->inverses[*level]) && gram->team) {
		FP_TRY(share_inverse(gram, level));
	} else if (fp_matrix_is_absent(gram->inverses[*level])) {
		FP_TRY(fp_gram_keeps_inverses(gram, &keep));
		if (!keep && holds_newest(gram)) /* only one is kept: compute_newest() overwrites it */
			gram->inverses[gram->newest_level] = (fp_matrix){0};
		FP_TRY(compute_newest(gram, level));
		FP_TRY(keep_newest(gram, type, keep));
	}
	*out = gram->inverses[*level];
cleanup:
	return status;
}

fp_solve_memory fp_inverse_cache_memory(const fp_backend *be, const fp_solve_size *size)
{
	enum { USUAL_LEVELS = 10 }; /* visited by a search */
	int64_t entries = size->inputs * size->inputs;
	double square = (double)entries, inverses = size->operators > 1 && !size->frugal ? USUAL_LEVELS : 1;
	bool half = fp_backend_operand(be, FP_USE_ITERATION) == FP_F16;
	if (half)
		inverses = 0.5 * inverses + 1; /* copies in F16, and the newest in F32 */
	/* raise_penalty(): X² and, in F16, both operands of the last product; otherwise first the split operands of X², 8 bytes
	 * an entry, then those of the last one */
	double product = (double)fp_product_bytes(be, FP_USE_ITERATION, entries, entries) / sizeof(float);
	double raise = fmax((!half && fp_operand_bytes(be, FP_USE_REFINEMENT) > 0 ? 3 : 1) * square, 2 * square + product);
	double first = (double)fp_inverse_bytes(be, size->inputs) / sizeof(float);
	return (fp_solve_memory){.kept = inverses * square, .peak = be->asynchronous ? fmax(raise, first) : 0};
}
