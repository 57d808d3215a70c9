/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder.c: inverses of A + ρI for a ladder of penalties ρ, which all operators of a Gram matrix share.
 *
 * On a CPU an inverse costs little more than a product, so each is made anew. On a device it costs many: there a rung's
 * inverse X' follows from the one below it, X, since A + ρ'I = X⁻¹ + δI:
 *     X' = X(I + δX)⁻¹ = X p(δX) + …,   the eigenvalues of δX in (0, r − 1] for ρ' = rρ
 * with p of degree 3 such that 1 − (1 + y)p(y) is Chebyshev's polynomial on that interval: at most 2·10⁻⁵ of each
 * eigenvalue is lost on a rung, and errors of the rungs below do not grow. That is two products.
 */
#include "base/memory.h"
#include "solver/problem.h"

#include <math.h>

enum { RUNGS_KEPT = 16, RUNGS_PER_REFUSAL = 3 };
static const double FIRST_RHO = 0.1; /* of a diagonal of ones */
static const double RATIO = 1.25;

double fp_ladder_rho(int64_t rung)
{
	return FIRST_RHO * pow(RATIO, (double)rung);
}

static fp_status invert(fp_gram *gram, double rho, fp_matrix out, int64_t *refused)
{
	fp_backend *be = gram->be;
	fp_matrix diagonal = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &diagonal, 1, gram->A.rows, FP_F32));
	FP_TRY(be->ops->fill(be, diagonal, (float)rho));
	FP_TRY(be->ops->copy(be, out, gram->A));
	FP_TRY(be->ops->add_diagonal(be, out, diagonal));
	FP_TRY(be->ops->inverse(be, out, refused));
cleanup:
	fp_matrix_free(be, &diagonal);
	return status;
}

/* out ← the inverse one rung above X, which is at ρ. out may be X. */
static fp_status climb(fp_backend *be, double rho, fp_matrix X, fp_matrix out)
{
	/* p(y) = (51840 − 51712y + 49152y² − 32768y³)/51841 for r = 1.25: (1 + y)p(y) = 1 − T₄(8y − 1)/T₄(−9) */
	const double delta = (RATIO - 1) * rho;
	const float a1 = (float)(51840.0 / 51841.0);
	const float a2 = (float)(-51712.0 / 51841.0 * delta);
	const float a3 = (float)(49152.0 / 51841.0 * delta * delta);
	const float a4 = (float)(-32768.0 / 51841.0 * delta * delta * delta);
	fp_matrix square = {0};
	fp_matrix high = {0};
	fp_use use = fp_backend_use(be, FP_USE_REFINEMENT);
	fp_status status;
	FP_TRY(fp_matrix_new(be, &square, X.rows, X.cols, FP_F32));
	FP_TRY(be->ops->gram(be, X, 0.0F, square)); /* X is symmetric: XᵀX = X² */
	FP_TRY(be->ops->mirror(be, square));
	FP_TRY(fp_matrix_new(be, &high, X.rows, X.cols, FP_F32)); /* not before: the product takes room of its own */
	FP_TRY(be->ops->copy(be, high, square));
	FP_TRY(be->ops->axpby(be, a3, X, a4, high));
	if (out.buffer != X.buffer)
		FP_TRY(be->ops->copy(be, out, X));
	FP_TRY(be->ops->axpby(be, a2, square, a1, out));
	fp_backend_use(be, FP_USE_ITERATION); /* the last two terms are small beside the first */
	FP_TRY(be->ops->gemm(be, 1.0F, square, FP_PLAIN, high, FP_TRANSPOSED, 1.0F, out));
	FP_TRY(be->ops->mirror(be, out));
cleanup:
	fp_backend_use(be, use);
	fp_matrix_free(be, &square);
	fp_matrix_free(be, &high);
	return status;
}

/* Whether all rungs that a search climbs find room beside everything else. */
static fp_status may_keep(const fp_gram *gram, fp_dtype type, bool *out)
{
	int64_t available;
	int64_t total;
	int64_t wanted = RUNGS_KEPT * fp_matrix_size(gram->A) * fp_dtype_size(type);
	*out = false;
	if (!gram->shared || gram->be->frugal)
		return FP_OK;
	fp_status status = gram->be->ops->memory(gram->be, &available, &total);
	*out = wanted < available / 4;
	return status;
}

/* The inverse at *rung, or at the first above it that Cholesky does not refuse. */
static fp_status start(fp_gram *gram, int64_t *rung, fp_matrix out)
{
	int64_t refused = 1;
	fp_status status = FP_OK;
	while (*rung < FP_LADDER_RUNGS) {
		FP_TRY(invert(gram, fp_ladder_rho(*rung), out, &refused));
		if (!refused)
			return FP_OK;
		*rung += RUNGS_PER_REFUSAL; /* rank-deficient beyond rounding: a larger ρ mends it */
	}
	status = fp_fail(gram->be->ctx, FP_ERROR_NUMERIC, "the Gram matrix is not positive semidefinite");
cleanup:
	return status;
}

static bool holds_top(const fp_gram *gram)
{
	return !fp_matrix_is_absent(gram->top) && gram->inverses[gram->top_rung].buffer == gram->top.buffer;
}

void fp_gram_free_ladder(fp_gram *gram)
{
	if (!gram->inverses)
		return;
	if (!holds_top(gram))
		fp_matrix_free(gram->be, &gram->top);
	for (int64_t i = 0; i < FP_LADDER_RUNGS; i++)
		fp_matrix_free(gram->be, &gram->inverses[i]);
	fp_free(gram->inverses);
}

/* gram->top ← the inverse at *rung, in the place of the last one unless that is kept. */
static fp_status climb_to(fp_gram *gram, int64_t *rung)
{
	fp_backend *be = gram->be;
	fp_matrix below = gram->top;
	int64_t from = gram->top_rung;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(below) || holds_top(gram))
		FP_TRY(fp_matrix_new(be, &gram->top, gram->A.rows, gram->A.cols, FP_F32));
	gram->top_rung = *rung;
	if (be->asynchronous && !fp_matrix_is_absent(below) && from == *rung - 1)
		FP_TRY(climb(be, fp_ladder_rho(from), below, gram->top));
	else
		FP_TRY(start(gram, rung, gram->top));
	gram->top_rung = *rung;
cleanup:
	return status;
}

/* gram->inverses[rung] ← gram->top itself or, in the type of products, a copy: beside the others, or in the place of
 * the one there is. */
static fp_status hold_top(fp_gram *gram, fp_dtype type, bool all)
{
	fp_backend *be = gram->be;
	fp_matrix *held = &gram->inverses[gram->top_rung];
	if (type == FP_F32) {
		fp_matrix_free(be, held); /* where a rung below was refused again */
		*held = gram->top;
		return FP_OK;
	}
	for (int64_t i = 0; i < FP_LADDER_RUNGS && !all && fp_matrix_is_absent(*held); i++) {
		*held = gram->inverses[i];
		if (i != gram->top_rung)
			gram->inverses[i] = (fp_matrix){0};
	}
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(*held))
		status = fp_matrix_new(be, held, gram->A.rows, gram->A.cols, type);
	return status == FP_OK ? be->ops->copy(be, *held, gram->top) : status;
}

fp_status fp_gram_inverse(fp_gram *gram, int64_t *rung, fp_matrix *out)
{
	fp_backend *be = gram->be;
	fp_dtype type = fp_backend_operand(be, FP_USE_ITERATION);
	bool keep;
	fp_status status = FP_OK;
	FP_REQUIRE(be, *rung >= 0 && *rung < FP_LADDER_RUNGS);
	if (!gram->inverses)
		FP_TRY(FP_NEW(be->ctx, &gram->inverses, FP_LADDER_RUNGS));
	if (fp_matrix_is_absent(gram->inverses[*rung])) {
		FP_TRY(may_keep(gram, type, &keep));
		if (!keep && holds_top(gram)) /* its place is wanted */
			gram->inverses[gram->top_rung] = (fp_matrix){0};
		FP_TRY(climb_to(gram, rung));
		FP_TRY(hold_top(gram, type, keep));
	}
	*out = gram->inverses[*rung];
cleanup:
	return status;
}
