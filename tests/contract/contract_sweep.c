/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract_sweep.c: repeats SparseGPT's sweep in double with the mask that the backend chose. At every choice it checks
 * that no pruned entry has a higher score than a kept one. (Masks cannot be compared directly, because scores that are
 * equal up to rounding may be chosen differently in float and in double.) With a pattern that prunes nothing the mask is
 * given, and must come back.
 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct replay {
	int64_t rows, cols, block;
	fp_pattern pattern;
	const double *u;              /* cols × cols */
	const double *mask;           /* rows × cols, as the backend chose it */
	double *w;                    /* rows × cols */
	const fp_grid_format *format; /* with one scale for all entries; NULL: no grid */
	float scale;
	const double *got; /* rows × cols: the backend's result */
} replay;

static double score(const replay *r, int64_t row, int64_t col)
{
	double ratio = r->w[row * r->cols + col] / r->u[col * r->cols + col];
	return ratio * ratio;
}

static void check_choice(const replay *r, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int64_t zeros)
{
	double largest_pruned = 0, smallest_kept = INFINITY;
	int64_t count = 0;
	for (int64_t i = row0; i < row1; i++) {
		for (int64_t j = col0; j < col1; j++) {
			if (r->mask[i * r->cols + j] == 0) {
				largest_pruned = fmax(largest_pruned, score(r, i, j));
				count++;
			} else {
				smallest_kept = fmin(smallest_kept, score(r, i, j));
			}
		}
	}
	assert_int_equal(count, zeros);
	/* the backend updates its weights in float: 0.001 is a hundred times the error of that here */
	assert_true(largest_pruned <= smallest_kept * 1.001 + 1e-9);
}

static int64_t zeros_up_to(const replay *r, int64_t col)
{
	return (int64_t)floor(r->pattern.sparsity * (double)(r->rows * col));
}

/* Of an entry: itself, or what the backend rounded it to, which must be the nearest point of the grid or, where float and
 * double differ, nearly so. */
static double kept_value(const replay *r, int64_t at)
{
	if (!r->format)
		return r->w[at];
	double w = r->w[at], point = fp_grid_value(FP_BF16, r->scale, 0, fp_grid_code(r->format, r->scale, 0, (float)w));
	assert_true(r->got[at] ==
				(double)fp_grid_value(FP_BF16, r->scale, 0, fp_grid_code(r->format, r->scale, 0, (float)r->got[at])));
	assert_true(fabs(r->got[at] - w) <= fabs(point - w) + 1e-3);
	return r->got[at];
}

static void replay_sweep(const replay *r)
{
	bool chooses = fp_pattern_prunes(&r->pattern);
	int64_t group = r->pattern.group;
	for (int64_t a = 0; a < r->cols; a += r->block) {
		int64_t b = a + r->block < r->cols ? a + r->block : r->cols;
		if (chooses && group == 0)
			check_choice(r, 0, r->rows, a, b, zeros_up_to(r, b) - zeros_up_to(r, a));
		for (int64_t j = a; j < b; j++) {
			if (chooses && group > 0 && j % group == 0) {
				int64_t end = j + group < r->cols ? j + group : r->cols;
				int64_t keep = (r->pattern.kept * (end - j) + group - 1) / group;
				for (int64_t i = 0; i < r->rows; i++)
					check_choice(r, i, i + 1, j, end, end - j - keep);
			}
			for (int64_t i = 0; i < r->rows; i++) {
				double value = r->mask[i * r->cols + j] != 0 ? kept_value(r, i * r->cols + j) : 0;
				double error = (r->w[i * r->cols + j] - value) / r->u[j * r->cols + j];
				for (int64_t k = j; k < r->cols; k++)
					r->w[i * r->cols + k] -= error * r->u[j * r->cols + k];
				r->w[i * r->cols + j] = value;
			}
		}
	}
}

static void check_sweep(contract *c, int64_t rows, int64_t cols, int64_t block, fp_pattern pattern,
						const fp_grid_format *format)
{
	/* like a result of inverse_factor(): upper triangular with a large positive diagonal */
	double *u = new_doubles(cols * cols);
	for (int64_t i = 0; i < cols; i++) {
		u[i * cols + i] = 0.5 + fabs((double)random_uniform(&c->seed));
		for (int64_t j = i + 1; j < cols; j++)
			u[i * cols + j] = 0.4 * (double)random_normal(&c->seed) / sqrt((double)cols);
	}
	sample U = sample_from(c, cols, cols, u), W = sample_normal(c, rows, cols), mask = sample_mask(c, rows, cols);
	sample scale = sample_filled(c, rows, 1, 0.25);
	const fp_grid grid = {.format = format, .dtype = FP_BF16, .scale = scale.view};
	assert_ok(c->ctx, c->be->pruning->sparsegpt_sweep(c->be, U.view, &pattern, format ? &grid : NULL, block, W.view,
													  mask.view));
	double *chosen = sample_read(c, &mask), *got = sample_read(c, &W);
	replay_sweep(&(replay){rows, cols, block, pattern, U.value, chosen, W.value, format, 0.25F, got});
	/* an entry takes up to cols updates in float on numbers of about 1 */
	sample_expect(c, &W, W.value, FLOAT_EPSILON * (20 + 4 * (double)cols), 0, "sparsegpt_sweep");
	sample_expect(c, &U, U.value, 0, 0, "U after sparsegpt_sweep");
	if (!fp_pattern_prunes(&pattern))
		sample_expect(c, &mask, mask.value, 0, 0, "the mask given to sparsegpt_sweep");
	for (int64_t k = 0; k < rows * cols; k++)
		assert_true(chosen[k] == 1 || (got[k] == 0 && !signbit(got[k])));
	free(chosen);
	free(got);
	free(u);
	sample_free(c, &U);
	sample_free(c, &W);
	sample_free(c, &mask);
	sample_free(c, &scale);
}

static void test_sweep(void **state)
{
	contract *c = *state;
	static const int64_t shapes[][3] = {{0, 8, 8},   {3, 0, 8},     {1, 1, 128},   {1, 9, 4},      {5, 8, 8},
										{7, 30, 16}, {33, 64, 128}, {20, 172, 64}, {130, 300, 128}};
	static const fp_pattern patterns[] = {{.sparsity = 0.5}, {.sparsity = 0}, {.sparsity = 1}, {.sparsity = 0.73},
										  {2, 4, 0.5},       {1, 4, 0.75},    {4, 4, 0}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
			check_sweep(c, shapes[i][0], shapes[i][1], shapes[i][2], patterns[p], NULL);
		for (size_t p = 0; p < sizeof patterns / sizeof *patterns && shapes[i][1] > 0; p++)
			check_sweep(c, shapes[i][0], shapes[i][1], shapes[i][2], patterns[p], fp_grid_format_named("int8"));
	}
	sample U = sample_filled(c, 8, 8, 1), W = sample_normal(c, 2, 8), mask = sample_mask(c, 2, 8);
	fp_pattern crossing = {2, 4, 0.5};
	assert_fails(c->ctx, FP_ERROR_INTERNAL, "does not hold",
				 c->be->pruning->sparsegpt_sweep(c->be, U.view, &crossing, NULL, 6, W.view, mask.view));
	sample_free(c, &U);
	sample_free(c, &W);
	sample_free(c, &mask);
}

CONTRACT_TESTS(sweep, cmocka_unit_test(test_sweep));
