/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_descent.c: weights on a grid whose output is nearest to that of weights without one.
 *
 *     min ‖(V' − V)X*‖² over V' on the grid, V' = 0 where V is, and over the grid's scales
 *
 * V is the solution of an operator's problem. Aiming at that problem's target again would undo the ridge that the solve
 * had, and was measured to be worse by divergence.
 *
 * The scales start as those whose rounding errors are smallest, weighted by diag(A), and the weights as the nearest ones
 * on the grid. Then passes over the columns: with half the gradient G = (V' − V)A, a weight moves to the point of the grid
 * that is nearest to its best value while all others stand still,
 *
 *     v ← nearest(v − G[i,j]/A[j,j])
 *     G[i,:] ← G[i,:] + (change of v)·A[j,:]
 *
 * and behind each group its scale moves to its best value for the codes that it has now. No step raises the error. Rows
 * are independent. A block of columns needs its own part of A only; one product then brings all of G up to date.
 *
 * GPTQ's sweep sees each column once and needs a factor of the inverse of A, which is not that of a row with zeros in it.
 * From the nearest weights the passes reach what they reach from the result of that sweep: docs/research/quantised.md.
 */
#include "base/numbers.h"
#include "solver/grid.h"

enum { CANDIDATES = 16 };
static const float CANDIDATE_STEP = 0.03F;

typedef struct descent {
	fp_backend *be;
	fp_matrix A, V, X, G; /* X: V as it was */
	fp_matrix D, P;       /* m × columns of a group */
} descent;

static void descent_free(descent *d)
{
	fp_matrix *all[] = {&d->X, &d->G, &d->D, &d->P};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(d->be, all[i]);
}

static fp_grid column_of(const fp_grid *grid, int64_t group)
{
	fp_grid out = *grid;
	out.scale = fp_matrix_cols(grid->scale, group, 1);
	if (!fp_matrix_is_absent(grid->zero))
		out.zero = fp_matrix_cols(grid->zero, group, 1);
	return out;
}

/* G ← G + D A for a change D of `count` columns from `first` on. */
static fp_status follow(const descent *d, fp_matrix D, int64_t first, int64_t count)
{
	return d->be->linear->gemm(d->be, 1.0F, D, FP_PLAIN, fp_matrix_rows(d->A, first, count), FP_PLAIN, 1.0F, d->G);
}

static fp_matrix square_of(const descent *d, int64_t first, int64_t count)
{
	return fp_matrix_cols(fp_matrix_rows(d->A, first, count), first, count);
}

/* One pass over a group's weights, and a step on its scales. */
static fp_status improve_group(descent *d, const fp_grid *grid, int64_t group)
{
	fp_backend *be = d->be;
	const int64_t size = d->V.cols / grid->scale.cols, first = group * size;
	const fp_grid column = column_of(grid, group);
	const fp_matrix V = fp_matrix_cols(d->V, first, size);
	fp_status status = FP_OK;
	for (int64_t at = first; at < first + size; at += FP_GRID_BLOCK) {
		const int64_t count = fp_smaller(FP_GRID_BLOCK, first + size - at);
		const fp_matrix D = fp_matrix_cols(d->D, 0, count);
		FP_TRY(be->grid->descend(be, &column, square_of(d, at, count), fp_matrix_cols(d->X, at, count),
								 fp_matrix_cols(d->G, at, count), fp_matrix_cols(d->V, at, count), D));
		FP_TRY(follow(d, D, at, count));
	}
	FP_TRY(be->linear->gemm(be, 1.0F, V, FP_PLAIN, square_of(d, first, size), FP_PLAIN, 0.0F, d->P));
	FP_TRY(be->grid->rescale(be, &column, d->P, fp_matrix_cols(d->G, first, size), V, d->D));
	FP_TRY(follow(d, d->D, first, size));
cleanup:
	return status;
}

fp_status fp_quantise_by_energy(fp_backend *be, fp_matrix energy, fp_matrix V, const fp_grid *grid)
{
	fp_status status = be->grid->fit(be, energy, CANDIDATES, CANDIDATE_STEP, V, grid);
	return status == FP_OK ? be->grid->round(be, grid, V, V) : status;
}

fp_status fp_quantise_by_descent(const fp_gram *gram, const fp_settings *settings, fp_matrix V, const fp_grid *grid)
{
	fp_backend *be = gram->be;
	const int64_t size = V.cols / grid->scale.cols;
	descent d = {.be = be, .A = gram->A, .V = V};
	fp_matrix change = {0};
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	fp_status status;
	FP_TRY(fp_matrix_new(be, &d.X, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &d.G, V.rows, V.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &change, V.rows, V.cols, FP_F32));
	FP_TRY(be->memory->copy(be, d.X, V));
	FP_TRY(be->memory->copy(be, change, V));
	FP_TRY(fp_quantise_by_energy(be, gram->diagonal, V, grid));
	FP_TRY(be->linear->axpby(be, 1.0F, V, -1.0F, change));
	FP_TRY(be->linear->gemm(be, 1.0F, change, FP_PLAIN, gram->A, FP_TRANSPOSED, 0.0F, d.G));
	fp_matrix_free(be, &change);
	FP_TRY(fp_matrix_new(be, &d.D, V.rows, size, FP_F32));
	FP_TRY(fp_matrix_new(be, &d.P, V.rows, size, FP_F32));
	for (int64_t pass = 0; pass < settings->quantizer_passes; pass++)
		for (int64_t group = 0; group < grid->scale.cols; group++)
			FP_TRY(improve_group(&d, grid, group));
cleanup:
	fp_matrix_free(be, &change);
	descent_free(&d);
	return status;
}

double fp_quantise_floats(double entries)
{
	return 4 * entries; /* V as it was, G, and two groups as long as a row */
}
