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
 * are independent. G is brought up to date in the columns of a strip at once, by small products, and in all others behind
 * the strip by one product with all of its changes.
 *
 * GPTQ's sweep sees each column once and needs a factor of the inverse of A, which is not that of a row with zeros in it.
 * From the nearest weights the passes reach what they reach from the result of that sweep: docs/research/quantised.md.
 */
#include "base/numbers.h"
#include "solver/grid.h"

enum { CANDIDATES = 16, STRIP = 512 };
static const float CANDIDATE_STEP = 0.03F;

typedef struct range {
	int64_t first, count;
} range;

typedef struct descent {
	fp_backend *be;
	fp_matrix A, V, X, G; /* X: V as it was */
	fp_matrix S;          /* V at the start of a strip, in its columns */
	fp_matrix D, P;       /* m × columns of a group */
} descent;

static void descent_free(descent *d)
{
	fp_matrix *all[] = {&d->X, &d->G, &d->S, &d->D, &d->P};
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

static fp_matrix columns(fp_matrix M, range of)
{
	return fp_matrix_cols(M, of.first, of.count);
}

static fp_matrix part_of_gram(const descent *d, range rows, range cols)
{
	return columns(fp_matrix_rows(d->A, rows.first, rows.count), cols);
}

/* G ← G + D A in the columns `where`, for a change D of the columns `changed`. */
static fp_status follow(const descent *d, fp_matrix D, range changed, range where)
{
	if (where.count == 0)
		return FP_OK;
	return d->be->linear->gemm(d->be, 1.0F, D, FP_PLAIN, part_of_gram(d, changed, where), FP_PLAIN, 1.0F,
							   columns(d->G, where));
}

/* A step on the scales of a group. */
static fp_status improve_scales(const descent *d, const fp_grid *column, range group, range where)
{
	fp_backend *be = d->be;
	const fp_matrix V = columns(d->V, group);
	fp_status status;
	FP_TRY(be->linear->gemm(be, 1.0F, V, FP_PLAIN, part_of_gram(d, group, group), FP_PLAIN, 0.0F, d->P));
	FP_TRY(be->grid->rescale(be, column, d->P, columns(d->G, group), V, d->D));
	FP_TRY(follow(d, d->D, group, where));
cleanup:
	return status;
}

/* A pass over a group's weights in a strip, or over the strip's part of a longer group. */
static fp_status improve_weights(const descent *d, const fp_grid *column, range part, range strip)
{
	const int64_t end = part.first + part.count;
	fp_status status = FP_OK;
	for (int64_t at = part.first; at < end; at += FP_GRID_BLOCK) {
		const range block = {at, fp_smaller(FP_GRID_BLOCK, end - at)};
		const fp_matrix D = fp_matrix_cols(d->D, 0, block.count);
		FP_TRY(d->be->grid->descend(d->be, column, part_of_gram(d, block, block), columns(d->X, block),
									columns(d->G, block), columns(d->V, block), D));
		FP_TRY(follow(d, D, block, strip));
	}
cleanup:
	return status;
}

/* A pass over the columns of a strip: whole groups with their scales, or a part of one group. */
static fp_status improve_strip(const descent *d, const fp_grid *grid, range strip)
{
	fp_backend *be = d->be;
	const int64_t n = d->V.cols, size = n / grid->scale.cols, end = strip.first + strip.count;
	const fp_matrix V = columns(d->V, strip), S = fp_matrix_cols(d->S, 0, strip.count);
	fp_status status;
	FP_TRY(be->memory->copy(be, S, V));
	for (int64_t at = strip.first; at < end; at += size) {
		const range part = {at, fp_smaller(size, end - at)};
		const fp_grid column = column_of(grid, at / size);
		FP_TRY(improve_weights(d, &column, part, strip));
		if (part.count == size)
			FP_TRY(improve_scales(d, &column, part, strip));
	}
	FP_TRY(be->linear->axpby(be, 1.0F, V, -1.0F, S)); /* S: what the strip's weights have moved by */
	FP_TRY(follow(d, S, strip, (range){0, strip.first}));
	FP_TRY(follow(d, S, strip, (range){end, n - end}));
cleanup:
	return status;
}

/* Strips are whole groups; a group that is longer than a strip is divided, and its scales move at its end. */
static fp_status pass(const descent *d, const fp_grid *grid)
{
	const int64_t n = d->V.cols, size = n / grid->scale.cols;
	const bool divided = size > STRIP;
	const int64_t width = divided ? STRIP : STRIP / size * size, span = divided ? size : n;
	fp_status status = FP_OK;
	for (int64_t start = 0; start < n; start += span) {
		for (int64_t first = start; first < start + span; first += width)
			FP_TRY(improve_strip(d, grid, (range){first, fp_smaller(width, start + span - first)}));
		if (divided) {
			const fp_grid column = column_of(grid, start / size);
			FP_TRY(improve_scales(d, &column, (range){start, size}, (range){0, n}));
		}
	}
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
	FP_TRY(fp_matrix_new(be, &d.S, V.rows, fp_smaller(STRIP, V.cols), FP_F32));
	FP_TRY(fp_matrix_new(be, &d.D, V.rows, size, FP_F32));
	FP_TRY(fp_matrix_new(be, &d.P, V.rows, size, FP_F32));
	for (int64_t i = 0; i < settings->quantizer_passes; i++)
		FP_TRY(pass(&d, grid));
cleanup:
	fp_matrix_free(be, &change);
	descent_free(&d);
	return status;
}

double fp_quantise_floats(double entries)
{
	return 5 * entries; /* V as it was, G, a strip, and two groups, each at most as long as a row */
}
