/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista_batched_steps.c: k FISTA steps in one product, for a λ below the rounding error of the weights.
 *
 * Without shrinkage the step with momentum "literal" is linear. With D = Y − W and the gradient DA − R:
 *
 *     D₊ = D(I − cA) + cR
 *     c  = (1 + (t − 1)/t₊)/L
 *
 * The k values of c are the same in every round of a λ search, so k steps are
 *
 *     D ← D(I − S) + RQ
 *     I − S = (I − c₁A) ⋯ (I − cₖA)
 *     S = QA
 *
 * where S and Q depend on the Gram matrix only. They grow by pairs of steps. For the steps a and b
 *
 *     T = (a + b)A − abA²                  S of the pair
 *     S ← S + T − ST
 *     Q ← Q + (I − S)((a + b)I − abA)      with S before the pair
 *
 * S itself is stored rather than I − S: in directions of small eigenvalues S is small, and adding I would round it away.
 */
#include "solver/steps.h"

#include <math.h>

/* Matrices n × n. Those that products read are in the type that products take, multiplied by a power of two. */
typedef struct steps_space {
	fp_backend *be;
	fp_matrix square, S, Q; /* A², S, Q; Q is absent unless wanted */
	fp_matrix A, left, T;   /* operands: A, S and T; A may be the Gram matrix itself */
	double A_scale;         /* of the operand A */
	double scale;           /* of the others */
	fp_matrix diagonal;     /* 1 × n */
} steps_space;

static void space_free(steps_space *space, const fp_gram *gram)
{
	fp_matrix *all[] = {&space->square, &space->S, &space->Q, &space->left, &space->T, &space->diagonal};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
	if (space->A.buffer != gram->A.buffer)
		fp_matrix_free(space->be, &space->A);
}

static fp_status space_new(steps_space *space, const fp_gram *gram, bool with_Q)
{
	fp_backend *be = space->be;
	fp_dtype type = fp_backend_operand(be, FP_USE_ITERATION);
	int64_t n = gram->A.rows;
	int exponent;
	fp_status status;
	space->A = gram->A;
	space->A_scale = space->scale = 1;
	FP_TRY(fp_matrix_new(be, &space->square, n, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->S, n, n, FP_F32));
	if (with_Q)
		FP_TRY(fp_matrix_new(be, &space->Q, n, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->left, n, n, type));
	FP_TRY(fp_matrix_new(be, &space->T, n, n, type));
	FP_TRY(fp_matrix_new(be, &space->diagonal, 1, n, FP_F32));
	if (type == FP_F32)
		return FP_OK;
	/* in F16: no entry of A exceeds L, and none of S and T exceeds 2 */
	(void)frexp(gram->largest, &exponent);
	space->A_scale = ldexp(1, 14 - exponent);
	space->scale = ldexp(1, 13);
	space->A = (fp_matrix){0};
	FP_TRY(fp_matrix_new(be, &space->A, n, n, type));
	FP_TRY(be->linear->combine(be, (float)space->A_scale, gram->A, 0.0F, gram->A, space->A));
cleanup:
	return status;
}

/* Q ← Q + (I − S)((a + b)I − abA); upper triangle */
static fp_status extend_Q(const steps_space *space, const fp_gram *gram, double a, double b)
{
	fp_backend *be = space->be;
	double sum = a + b, product = a * b;
	fp_status status;
	FP_TRY(be->memory->fill(be, space->diagonal, (float)sum));
	FP_TRY(be->linear->add_diagonal(be, space->Q, space->diagonal));
	FP_TRY(be->linear->axpby(be, (float)-sum, space->S, 1.0F, space->Q));
	FP_TRY(be->linear->axpby(be, (float)-product, gram->A, 1.0F, space->Q));
	FP_TRY(fp_multiply_symmetric(be, (float)(product / (space->scale * space->A_scale)), space->left, space->A, 1.0F,
								 space->Q));
cleanup:
	return status;
}

/* S and Q of two more steps; b is 0 for a single one */
static fp_status add_pair(const steps_space *space, const fp_gram *gram, double a, double b)
{
	fp_backend *be = space->be;
	double sum = a + b, product = a * b, scale = space->scale;
	fp_status status;
	FP_TRY(be->linear->combine(be, (float)scale, space->S, 0.0F, space->S, space->left));
	FP_TRY(be->linear->combine(be, (float)(scale * sum), gram->A, (float)(-scale * product), space->square, space->T));
	if (!fp_matrix_is_absent(space->Q))
		FP_TRY(extend_Q(space, gram, a, b));
	FP_TRY(be->linear->axpby(be, (float)sum, gram->A, 1.0F, space->S));
	FP_TRY(be->linear->axpby(be, (float)-product, space->square, 1.0F, space->S));
	FP_TRY(fp_multiply_symmetric(be, (float)(-1 / (scale * scale)), space->left, space->T, 1.0F, space->S));
	FP_TRY(be->linear->mirror(be, space->S));
cleanup:
	return status;
}

static fp_status multiply_up(steps_space *space, const fp_gram *gram, int64_t steps)
{
	fp_backend *be = space->be;
	bool with_Q = !fp_matrix_is_absent(space->Q);
	double t = 1;
	fp_status status;
	FP_TRY(fp_multiply_symmetric(be, (float)(1 / (space->A_scale * space->A_scale)), space->A, space->A, 0.0F,
								 space->square));
	FP_TRY(be->linear->mirror(be, space->square));
	for (int64_t k = 0; k < steps; k += 2) {
		double a = (1 + fp_fista_momentum(&t)) / gram->largest;
		double b = k + 1 < steps ? (1 + fp_fista_momentum(&t)) / gram->largest : 0;
		if (k > 0) {
			FP_TRY(add_pair(space, gram, a, b));
			continue;
		}
		FP_TRY(be->linear->combine(be, (float)(a + b), gram->A, (float)(-a * b), space->square, space->S));
		if (with_Q) {
			FP_TRY(be->linear->combine(be, (float)(-a * b), gram->A, 0.0F, gram->A, space->Q));
			FP_TRY(be->memory->fill(be, space->diagonal, (float)(a + b)));
			FP_TRY(be->linear->add_diagonal(be, space->Q, space->diagonal));
		}
	}
	if (with_Q)
		FP_TRY(be->linear->mirror(be, space->Q));
cleanup:
	return status;
}

/* *held ← X in a type */
static fp_status hold(fp_backend *be, fp_matrix X, fp_dtype dtype, fp_matrix *held)
{
	fp_status status;
	fp_matrix_free(be, held);
	FP_TRY(fp_matrix_new(be, held, X.rows, X.cols, dtype));
	FP_TRY(be->memory->copy(be, *held, X));
cleanup:
	return status;
}

fp_status fp_gram_batched_steps(fp_gram *gram, int64_t steps, fp_dtype dtype, fp_matrix *S, fp_matrix *Q)
{
	fp_backend *be = gram->be;
	steps_space space = {.be = be};
	double L;
	/* 11 bits are enough where S and Q are rounded to 8 */
	bool rounds = fp_fista_rounds(be) && fp_backend_operand(be, FP_USE_ITERATION) == FP_F32;
	FP_PRODUCTS_FOR(be, rounds ? FP_USE_REFINEMENT : FP_USE_ITERATION);
	fp_status status = FP_OK;
	bool kept = gram->batched_count == steps && gram->batched.dtype == dtype;
	if (!kept || (Q && fp_matrix_is_absent(gram->batched_Q))) {
		FP_TRY(fp_gram_largest(gram, &L));
		if (L <= 0 || steps < 1)
			FP_TRY(fp_fail(be->ctx, FP_ERROR_INTERNAL, "no FISTA steps to batch"));
		gram->batched_count = 0;
		FP_TRY(space_new(&space, gram, Q != NULL));
		FP_TRY(multiply_up(&space, gram, steps));
		FP_TRY(hold(be, space.S, dtype, &gram->batched));
		if (Q)
			FP_TRY(hold(be, space.Q, dtype, &gram->batched_Q));
		gram->batched_count = steps;
	}
	*S = gram->batched;
	if (Q)
		*Q = gram->batched_Q;
cleanup:
	space_free(&space, gram);
	return status;
}
