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
static fp_status may_keep(const fp_gram *gram, bool *out)
{
	int64_t available;
	int64_t total;
	int64_t wanted = RUNGS_KEPT * fp_matrix_size(gram->A) * (int64_t)sizeof(float);
	*out = false;
	if (!gram->shared || gram->be->frugal)
		return FP_OK;
	fp_status status = gram->be->ops->memory(gram->be, &available, &total);
	*out = wanted < available / 4;
	return status;
}

/* Makes room for the inverse of a rung: a new one beside the others, or in the place of the one that is held. *from ←
 * the rung whose inverse lies in *out, −1: none. */
static fp_status take_place(fp_gram *gram, bool keep, fp_matrix *out, int64_t *from)
{
	*from = -1;
	for (int64_t i = 0; i < gram->rungs && !keep; i++) {
		if (fp_matrix_is_absent(gram->inverses[i]))
			continue;
		fp_matrix_free(gram->be, out);
		*out = gram->inverses[i];
		*from = i;
		gram->inverses[i] = (fp_matrix){0};
	}
	return fp_matrix_is_absent(*out) ? fp_matrix_new(gram->be, out, gram->A.rows, gram->A.cols, FP_F32) : FP_OK;
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

fp_status fp_gram_inverse(fp_gram *gram, int64_t *rung, fp_matrix *out)
{
	fp_backend *be = gram->be;
	fp_matrix inverse = {0};
	int64_t from;
	bool keep;
	fp_status status = FP_OK;
	FP_REQUIRE(be, *rung >= 0 && *rung < FP_LADDER_RUNGS);
	if (!gram->inverses) {
		FP_TRY(FP_NEW(be->ctx, &gram->inverses, FP_LADDER_RUNGS));
		gram->rungs = FP_LADDER_RUNGS;
	}
	if (!fp_matrix_is_absent(gram->inverses[*rung])) {
		*out = gram->inverses[*rung];
		return FP_OK;
	}
	FP_TRY(may_keep(gram, &keep));
	FP_TRY(take_place(gram, keep, &inverse, &from));
	fp_matrix below = inverse;
	if (keep && *rung > 0 && !fp_matrix_is_absent(gram->inverses[*rung - 1])) {
		below = gram->inverses[*rung - 1];
		from = *rung - 1;
	}
	if (be->asynchronous && from >= 0 && from == *rung - 1)
		FP_TRY(climb(be, fp_ladder_rho(from), below, inverse));
	else
		FP_TRY(start(gram, rung, inverse));
	fp_matrix_free(be, &gram->inverses[*rung]); /* where a rung below was refused again */
	*out = gram->inverses[*rung] = inverse;
	inverse = (fp_matrix){0};
cleanup:
	fp_matrix_free(be, &inverse);
	return status;
}
