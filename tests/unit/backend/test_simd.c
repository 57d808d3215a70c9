/* SPDX-License-Identifier: Apache-2.0 */
/* test_simd.c: checks the loops for every instruction set of this processor. The contract suite runs only the best
 * one. */
#include "backend/cpu/cpu_simd.h"
#include "support.h"

#include <math.h>
#include <string.h>

static const int64_t sizes[] = {0, 1, 2, 7, 8, 15, 16, 17, 33, 100, 513, 4096};

enum { MOST = 4096 };

static float x[MOST + 1], y[MOST + 1], z[MOST + 1], w[MOST + 1];

static void fill(uint64_t seed)
{
	for (int i = 0; i <= MOST; i++) {
		x[i] = 3 * random_normal(&seed);
		y[i] = random_normal(&seed);
		z[i] = random_normal(&seed);
		w[i] = random_normal(&seed);
	}
}

/* exp within 2.5 ulp over the range where it is a normal float, in steps that reach every exponent; and the ends. */
static void check_exponential(const fp_cpu_loops *loops)
{
	double worst = 0;
	for (double v = -87.2; v < 88.6; v += 0.00137) {
		float value = (float)v, got = value;
		double sum = loops->exp_store(&got, 1, 0), want = exp((double)value);
		worst = fmax(worst, fabs((double)got - want) / want);
		assert_true(sum == (double)got);
	}
	assert_true(worst < 2.5 * 1.1920929e-7);
	float ends[] = {0, -INFINITY, -1000, NAN, 88.7f, 1000};
	loops->exp_store(ends, 6, 0);
	assert_true(ends[0] == 1 && ends[1] == 0 && ends[2] == 0 && isnan(ends[3]));
	assert_true(ends[4] > 3e38f && isfinite(ends[4]) && isfinite(ends[5]));
}

static void check_softmax_parts(const fp_cpu_loops *loops, int64_t n)
{
	float largest = -INFINITY;
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		largest = fmaxf(largest, x[i]);
	assert_true(loops->maximum(x, n) == largest);
	for (int64_t i = 0; i < n; i++)
		sum += exp((double)x[i] - (double)largest);
	assert_true(fabs(loops->exp_sum(x, n, largest) - sum) <= 1e-6 * sum);
	memcpy(w, x, sizeof w);
	assert_true(fabs(loops->exp_store(w, n, largest) - sum) <= 1e-6 * sum);
	double product = 0, again;
	for (int64_t i = 0; i < n; i++)
		product += exp((double)x[i] - (double)largest) * ((double)x[i] - (double)y[i]);
	assert_true(fabs(loops->exp_dot(x, y, n, largest, &again) - product) <= 1e-6 * (sum + fabs(product)));
	assert_true(fabs(again - sum) <= 1e-6 * sum);
	assert_true(w[n] == x[n]); /* nothing is written past the end */
	float negative[] = {-3, -1.5f, -2, -INFINITY, -1e-42f};
	assert_true(loops->maximum(negative, 4) == -1.5f && loops->maximum(negative, 5) == -1e-42f);
}

static void check_sums(const fp_cpu_loops *loops, int64_t n)
{
	double sum = 0, squares = 0, dot = 0, size = 1e-300;
	for (int64_t i = 0; i < n; i++) {
		sum += (double)x[i];
		squares += ((double)x[i] - 0.25) * ((double)x[i] - 0.25);
		dot += (double)x[i] * (double)y[i];
		size += fabs((double)x[i]) * (1 + fabs((double)y[i]));
	}
	assert_true(fabs(loops->sum(x, n) - sum) <= 1e-14 * size);
	assert_true(fabs(loops->squares(x, n, 0.25) - squares) <= 1e-14 * (squares + size));
	assert_true(fabs(loops->dot(x, y, n) - dot) <= 1e-14 * size);
	assert_true(loops->finite(x, n));
	if (n > 0) {
		float kept = x[n - 1];
		x[n - 1] = NAN;
		assert_false(loops->finite(x, n));
		x[n - 1] = kept;
	}
}

static void check_pruning(const fp_cpu_loops *loops, int64_t n)
{
	float p[MOST + 1], q[MOST + 1];
	uint8_t a[MOST], b[MOST];
	memcpy(p, y, sizeof p);
	memcpy(q, z, sizeof q);
	double change = loops->fista(FP_MOMENTUM_STANDARD, 0.5f, 0.4f, 0.3f, x, q, p, n), want = 0;
	int64_t distance = 0;
	for (int64_t i = 0; i < n; i++) {
		double v = (double)z[i] - 0.5 * (double)x[i], size = fabs(v) - (double)0.4f,
			   next = size > 0 ? copysign(size, v) : 0;
		assert_true(fabs((double)p[i] - next) <= 1e-6 && !(p[i] == 0 && signbit(p[i])));
		assert_true(fabs((double)q[i] - (next + (double)0.3f * (next - (double)y[i]))) <= 3e-6);
		want += (next - (double)y[i]) * (next - (double)y[i]);
		a[i] = x[i] > 0;
		b[i] = y[i] > 0;
		distance += a[i] != b[i];
	}
	assert_true(fabs(change - want) <= 1e-5 * want + 1e-12);
	assert_true(p[n] == y[n] && q[n] == z[n]);
	assert_int_equal(loops->mask_distance(a, b, n), distance);
	memcpy(p, z, sizeof p);
	loops->apply_mask(p, a, n);
	for (int64_t i = 0; i < n; i++)
		assert_true(a[i] ? p[i] == z[i] : p[i] == 0 && !signbit(p[i]));
	assert_true(p[n] == z[n]);
}

static void test_instruction_set(void **state)
{
	const char *name = *state;
	const fp_cpu_loops *loops = fp_cpu_loops_named(name);
	if (!loops)
		skip_because("this processor has no %s", name);
	assert_string_equal(loops->name, name);
	check_exponential(loops);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		fill(i + 1);
		check_softmax_parts(loops, sizes[i]);
		check_sums(loops, sizes[i]);
		check_pruning(loops, sizes[i]);
	}
}

static void test_choice(void **state)
{
	(void)state;
	assert_null(fp_cpu_loops_named("neon-next"));
	assert_non_null(fp_cpu_loops_best());
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(test_instruction_set, (void *)"scalar"),
		cmocka_unit_test(test_choice),
	};
	const struct CMUnitTest avx2[] = {cmocka_unit_test_prestate(test_instruction_set, (void *)"avx2")};
	const struct CMUnitTest avx512[] = {cmocka_unit_test_prestate(test_instruction_set, (void *)"avx512")};
	TEST_PART(avx2);
	TEST_PART(avx512);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
