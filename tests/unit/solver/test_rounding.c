/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding: the exact pattern, the smallest magnitudes, the rule for ties, no −0.0. */
#include "solver_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const patterns[] = {"0%",  "10%", "50%", "90%", "33.3%", "2:4", "1:4",
									   "4:8", "3:8", "1:2", "0:4", "4:4",   "5:7"};
enum { PATTERN_COUNT = sizeof patterns / sizeof patterns[0] };

/* True if entry i of `x` is kept when the `zeros` smallest magnitudes are pruned; of equal entries the first is pruned
 * first. */
static int stays(const float *x, int64_t count, int64_t zeros, int64_t i)
{
	int64_t before = 0;
	for (int64_t j = 0; j < count; j++)
		before += fabsf(x[j]) < fabsf(x[i]) || (fabsf(x[j]) == fabsf(x[i]) && j < i);
	return before >= zeros;
}

/* The same for an N:M group, where the first of equal entries is kept. */
static int stays_in_group(const float *x, int64_t size, int64_t keep, int64_t i)
{
	int64_t ahead = 0;
	for (int64_t j = 0; j < size; j++)
		ahead += fabsf(x[j]) > fabsf(x[i]) || (fabsf(x[j]) == fabsf(x[i]) && j < i);
	return ahead < keep;
}

static int wanted(const float *x, int64_t m, int64_t n, const fp_pattern *pattern, int64_t row, int64_t col)
{
	if (pattern->group == 0)
		return stays(x, m * n, (int64_t)floor(pattern->sparsity * (double)(m * n)), row * n + col);
	int64_t first = col / pattern->group * pattern->group;
	int64_t size = n - first < pattern->group ? n - first : pattern->group;
	int64_t keep = (pattern->kept * size + pattern->group - 1) / pattern->group;
	return stays_in_group(x + row * n + first, size, keep, col - first);
}

static void check(solver_fixture *f, const float *values, const char *pattern)
{
	fixture_pattern(f, pattern);
	assert_ok(f->ctx, f->be->memory->upload(f->be, f->V, values, FP_F32, f->n));
	assert_ok(f->ctx, fp_round(&f->problem, f->V, f->mask));
	float *got = fixture_floats(f, f->V);
	unsigned char *mask = fixture_bytes(f, f->mask);
	for (int64_t i = 0; i < f->m * f->n; i++) {
		int stay = wanted(values, f->m, f->n, &f->problem.pattern, i / f->n, i % f->n);
		float want = stay ? values[i] : 0.0F;
		if (mask[i] != stay || memcmp(&got[i], &want, sizeof want) != 0)
			fail_msg("%s: entry %lld of %lld × %lld is %g (mask %d), not %g", pattern, (long long)i, (long long)f->m,
					 (long long)f->n, (double)got[i], mask[i], (double)want);
	}
	assert_true(verify_pattern(got, f->m, f->n, &f->problem.pattern));
	free(got);
	free(mask);
}

static void every_pattern_holds_exactly(void **unused)
{
	(void)unused;
	static const int64_t shapes[][2] = {{1, 1}, {3, 8}, {5, 13}, {16, 40}, {7, 172}, {1, 30}};
	for (int s = 0; s < 6; s++) {
		solver_fixture f;
		uint64_t seed = 17;
		make_fixture(&f, shapes[s][0], shapes[s][1], 4, 0, 1, "50%");
		float *values = malloc((size_t)(f.m * f.n) * sizeof *values);
		for (int i = 0; i < PATTERN_COUNT; i++) {
			for (int64_t j = 0; j < f.m * f.n; j++)
				values[j] = random_normal(&seed);
			check(&f, values, patterns[i]);
			for (int64_t j = 0; j < f.m * f.n; j++) /* many ties, of both signs */
				values[j] = (float)((j * 7) % 3 + 1) * (j % 2 ? -1.0F : 1.0F);
			check(&f, values, patterns[i]);
			for (int64_t j = 0; j < f.m * f.n; j++)
				values[j] = -1.0F;
			check(&f, values, patterns[i]);
		}
		free(values);
		free_fixture(&f);
	}
}

static void extreme_magnitudes_are_ordered(void **unused)
{
	(void)unused;
	static const float odd[16] = {1e-45F, -1e-40F, 1e-38F, -1e-20F, 1.0F, -1.0F,  3e38F,     -3e38F,
								  1e-45F, 2e-45F,  0.5F,   -0.25F,  8.0F, -16.0F, 0.999999F, 1.000001F};
	solver_fixture f;
	make_fixture(&f, 2, 8, 4, 0, 1, "50%");
	for (int i = 0; i < PATTERN_COUNT; i++)
		check(&f, odd, patterns[i]);
	free_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_pattern_holds_exactly),
		cmocka_unit_test(extreme_magnitudes_are_ordered),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
