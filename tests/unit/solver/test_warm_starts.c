/* SPDX-License-Identifier: Apache-2.0 */
/* Magnitude, Wanda and SparseGPT against plain loops in double, and against a transcription in torch. */
#include "model_fixture.h"
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* mask ← 1 for the `keep` largest of `count` scores; of equal scores the first is dropped first if `first_goes`. */
static void keep_largest(const double *score, unsigned char *mask, int64_t count, int64_t keep, int first_goes)
{
	for (int64_t i = 0; i < count; i++) {
		int64_t ahead = 0;
		for (int64_t j = 0; j < count; j++)
			ahead += score[j] > score[i] || (score[j] == score[i] && (first_goes ? j > i : j < i));
		mask[i] = ahead < keep;
	}
}

static void keep_groups(const double *score, unsigned char *mask, int64_t count, const fp_pattern *pattern)
{
	for (int64_t first = 0; first < count; first += pattern->group) {
		int64_t size = count - first < pattern->group ? count - first : pattern->group;
		keep_largest(score + first, mask + first, size, (pattern->kept * size + pattern->group - 1) / pattern->group,
					 0);
	}
}

/* The inverse by elimination, then U upper with UᵀU = H⁻¹ by Cholesky–Banachiewicz. */
static double *inverse_factor(const double *H, int64_t n)
{
	double *inverse = malloc((size_t)(n * n) * sizeof *inverse);
	double *copy = malloc((size_t)(n * n) * sizeof *copy);
	double *unit = malloc((size_t)n * sizeof *unit);
	double *x = malloc((size_t)n * sizeof *x);
	double *U = calloc((size_t)(n * n), sizeof *U);
	for (int64_t j = 0; j < n; j++) {
		memcpy(copy, H, (size_t)(n * n) * sizeof *copy);
		memset(unit, 0, (size_t)n * sizeof *unit);
		unit[j] = 1;
		verify_solve(copy, unit, x, n);
		for (int64_t i = 0; i < n; i++)
			inverse[i * n + j] = x[i];
	}
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = i; j < n; j++) {
			double sum = inverse[i * n + j];
			for (int64_t k = 0; k < i; k++)
				sum -= U[k * n + i] * U[k * n + j];
			U[i * n + j] = i == j ? sqrt(sum) : sum / U[i * n + i];
		}
	free(inverse);
	free(copy);
	free(unit);
	free(x);
	return U;
}

/* The published sweep, which updates all columns to the right after each column: blocks only save work. At the end of
 * each block the columns so far have their share of zeros, so that the matrix has the exact count. */
static void reference_sparsegpt(const solver_fixture *f, int64_t block, double *V, unsigned char *mask)
{
	int64_t m = f->m, n = f->n;
	const fp_pattern *pattern = &f->problem.pattern;
	double *H = malloc((size_t)(n * n) * sizeof *H);
	double *score = malloc((size_t)(m * n) * sizeof *score);
	unsigned char *chosen = malloc((size_t)(m * n));
	double mean = 0;
	memcpy(H, f->A, (size_t)(n * n) * sizeof *H);
	memcpy(V, f->W, (size_t)(m * n) * sizeof *V);
	for (int64_t j = 0; j < n; j++)
		mean += f->A[j * n + j] / (double)n;
	for (int64_t j = 0; j < n; j++) {
		if (f->A[j * n + j] == 0) {
			H[j * n + j] += 1;
			for (int64_t i = 0; i < m; i++)
				V[i * n + j] = 0;
		}
		H[j * n + j] += 0.01 * mean;
	}
	double *U = inverse_factor(H, n);
	for (int64_t j = 0; j < n; j++) {
		if (pattern->group == 0 && j % block == 0) {
			int64_t end = n - j < block ? n : j + block;
			int64_t width = end - j;
			int64_t zeros = (int64_t)floor(pattern->sparsity * (double)(m * end)) -
							(int64_t)floor(pattern->sparsity * (double)(m * j));
			for (int64_t i = 0; i < m; i++)
				for (int64_t k = 0; k < width; k++)
					score[i * width + k] = pow(V[i * n + j + k] / U[(j + k) * n + j + k], 2);
			keep_largest(score, chosen, m * width, m * width - zeros, 1);
			for (int64_t i = 0; i < m; i++)
				for (int64_t k = 0; k < width; k++)
					mask[i * n + j + k] = chosen[i * width + k];
		}
		for (int64_t i = 0; i < m; i++) {
			if (pattern->group > 0 && j % pattern->group == 0) {
				int64_t size = n - j < pattern->group ? n - j : pattern->group;
				for (int64_t k = 0; k < size; k++)
					score[k] = pow(V[i * n + j + k] / U[(j + k) * n + j + k], 2);
				keep_groups(score, mask + i * n + j, size, pattern);
			}
			if (mask[i * n + j])
				continue;
			double error = V[i * n + j] / U[j * n + j];
			V[i * n + j] = 0;
			for (int64_t k = j + 1; k < n; k++)
				V[i * n + k] -= error * U[j * n + k];
		}
	}
	free(H);
	free(U);
	free(score);
	free(chosen);
}

static void check(solver_fixture *f, const char *name, const double *want, const unsigned char *want_mask,
				  double tolerance)
{
	assert_ok(f->ctx, fp_warm_start(&f->problem, name, f->settings, f->V, f->mask));
	float *got = fixture_floats(f, f->V);
	unsigned char *mask = fixture_bytes(f, f->mask);
	for (int64_t i = 0; i < f->m * f->n; i++) {
		if (mask[i] != want_mask[i])
			fail_msg("%s: entry %lld is %s", name, (long long)i, mask[i] ? "kept" : "pruned");
		if (!(fabs((double)got[i] - want[i]) <= tolerance))
			fail_msg("%s: entry %lld is %g, not %g", name, (long long)i, (double)got[i], want[i]);
		if (!mask[i])
			assert_true(got[i] == 0.0F && !signbit(got[i]));
	}
	free(got);
	free(mask);
}

static const char *const patterns[] = {"50%", "25%", "90%", "0%", "2:4", "1:4", "3:8"};
enum { PATTERN_COUNT = 7 };

static void magnitude_and_wanda_equal_plain_loops(void **unused)
{
	(void)unused;
	for (int i = 0; i < PATTERN_COUNT; i++) {
		solver_fixture f;
		make_fixture(&f, 8, 40, 90, 0, 21, patterns[i]);
		const fp_pattern *pattern = &f.problem.pattern;
		int64_t size = f.m * f.n;
		double *score = malloc((size_t)size * sizeof *score);
		double *want = malloc((size_t)size * sizeof *want);
		unsigned char *mask = malloc((size_t)size);
		for (int wanda = 0; wanda < 2; wanda++) {
			for (int64_t j = 0; j < size; j++)
				score[j] = fabs(f.W[j]) * (wanda ? sqrt(f.A[j % f.n * f.n + j % f.n]) : 1);
			int64_t rows = wanda || pattern->group ? f.m : 1;
			int64_t cols = size / rows;
			for (int64_t r = 0; r < rows; r++)
				if (pattern->group)
					keep_groups(score + r * cols, mask + r * cols, cols, pattern);
				else
					keep_largest(score + r * cols, mask + r * cols, cols,
								 cols - (int64_t)floor(pattern->sparsity * (double)cols), 1);
			for (int64_t j = 0; j < size; j++)
				want[j] = mask[j] ? f.W[j] : 0;
			check(&f, wanda ? "wanda" : "magnitude", want, mask, 0);
		}
		free(score);
		free(want);
		free(mask);
		free_fixture(&f);
	}
}

/* If s·n is not an integer, ⌊s·n⌋ per row is less than ⌊s·m·n⌋ in total; the smallest remaining scores make up the
 * difference. */
static void wanda_as_a_start_has_the_exact_count_of_the_matrix(void **unused)
{
	(void)unused;
	solver_fixture f;
	make_fixture(&f, 9, 13, 50, 0, 2, "50%");
	assert_ok(f.ctx, fp_warm_start(&f.problem, "wanda", f.settings, f.V, f.mask));
	float *got = fixture_floats(&f, f.V);
	assert_int_equal(verify_zeros(got, 9 * 13), 58);
	for (int r = 0; r < 9; r++)
		assert_true(verify_zeros(got + (ptrdiff_t)r * 13, 13) >= 6);
	free(got);
	free_fixture(&f);
}

static void wanda_alone_has_the_same_count_in_each_row(void **unused)
{
	(void)unused;
	solver_fixture f;
	make_fixture(&f, 9, 13, 50, 0, 2, "50%");
	fixture_set(&f, "method=wanda");
	assert_ok(f.ctx, fp_warm_start(&f.problem, "wanda", f.settings, f.V, f.mask));
	float *got = fixture_floats(&f, f.V);
	for (int r = 0; r < 9; r++)
		assert_int_equal(verify_zeros(got + (ptrdiff_t)r * 13, 13), 6);
	free(got);
	free_fixture(&f);
}

static void sparsegpt_equals_plain_loops(void **unused)
{
	(void)unused;
	static const char *const blocks[] = {"block=128", "block=16", "block=8"};
	static const int64_t block[] = {128, 16, 8};
	for (int i = 0; i < PATTERN_COUNT; i++)
		for (int b = 0; b < 3; b++)
			for (int dead = 0; dead < 2; dead++) {
				solver_fixture f;
				make_fixture(&f, 6, 40, 90, 0, 33, patterns[i]);
				if (dead) { /* inputs that are always zero */
					solver_fixture g;
					for (int64_t t = 0; t < f.p; t++)
						f.Xstar[t * f.n + 3] = f.Xstar[t * f.n + 17] = 0;
					make_fixture_from(&g, f.m, f.n, f.p, f.W, f.Xstar, f.Xstar, patterns[i]);
					free_fixture(&f);
					f = g;
					f.problem.gram = &f.gram;
				}
				fixture_set(&f, blocks[b]);
				double *want = malloc((size_t)(f.m * f.n) * sizeof *want);
				unsigned char *mask = malloc((size_t)(f.m * f.n));
				reference_sparsegpt(&f, block[b], want, mask);
				check(&f, "sparsegpt", want, mask, 2e-4);
				free(want);
				free(mask);
				free_fixture(&f);
			}
}

static void agree_with_a_transcription_in_torch(void **unused)
{
	(void)unused;
	static const char *const names[] = {"magnitude", "wanda", "sparsegpt"};
	static const char *const kinds[] = {"50%", "2:4"};
	size_t size;
	unsigned char *bytes = read_whole(source_path("tests/fixtures/solver/masks.bin"), &size);
	int32_t h[4];
	memcpy(h, bytes, sizeof h);
	int64_t m = h[0], n = h[1], p = h[2];
	assert_int_equal(h[3], 16);
	double *W = to_double((const float *)(bytes + 16), m * n);
	double *X = to_double((const float *)(bytes + 16) + m * n, p * n);
	const float *cursor = (const float *)(bytes + 16) + m * n + p * n;
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 2; k++) {
			solver_fixture f;
			make_fixture_from(&f, m, n, p, W, X, X, kinds[k]);
			fixture_set(&f, "block=16");
			double *want = to_double(cursor, m * n);
			unsigned char *mask = malloc((size_t)(m * n));
			for (int64_t j = 0; j < m * n; j++)
				mask[j] = want[j] != 0;
			check(&f, names[i], want, mask, i < 2 ? 0 : 2e-4);
			cursor += m * n;
			free(want);
			free(mask);
			free_fixture(&f);
		}
	assert_ptr_equal(cursor, bytes + size);
	free(W);
	free(X);
	free(bytes);
}

static void dense_and_unknown_names(void **unused)
{
	(void)unused;
	solver_fixture f;
	make_fixture(&f, 4, 8, 20, 0, 3, "50%");
	unsigned char ones[32];
	memset(ones, 1, sizeof ones);
	check(&f, "dense", f.W, ones, 0);
	assert_fails(f.ctx, FP_ERROR_USAGE, "must be wanda", fp_warm_start(&f.problem, "luck", f.settings, f.V, f.mask));
	free_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(magnitude_and_wanda_equal_plain_loops),
		cmocka_unit_test(wanda_as_a_start_has_the_exact_count_of_the_matrix),
		cmocka_unit_test(wanda_alone_has_the_same_count_in_each_row),
		cmocka_unit_test(sparsegpt_equals_plain_loops),
		cmocka_unit_test(agree_with_a_transcription_in_torch),
		cmocka_unit_test(dense_and_unknown_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
