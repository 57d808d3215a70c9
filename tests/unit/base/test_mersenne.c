/* SPDX-License-Identifier: Apache-2.0 */
/* The Mersenne Twister draws what CPython's random module draws (mersenne_fixture.h, made by make_mersenne.py). */
#include "support.h"

#include "base/mersenne.h"
#include "mersenne_fixture.h"

enum { SEEDS = sizeof drawn_numbers / sizeof drawn_numbers[0], LIMITS = sizeof below_limits / sizeof below_limits[0] };

static void test_against_cpython(void **state)
{
	(void)state;
	for (int i = 0; i < SEEDS; i++) {
		const struct drawn *wanted = &drawn_numbers[i];
		fp_mersenne random;
		fp_mersenne_seed(&random, wanted->seed);
		for (int j = 0; j < 4; j++)
			assert_int_equal(fp_mersenne_bits(&random, 32), wanted->words[j]);
		assert_int_equal(fp_mersenne_bits(&random, 5), wanted->few_bits);
		for (int j = 0; j < 1000; j++)
			fp_mersenne_bits(&random, 32);
		assert_int_equal(fp_mersenne_bits(&random, 32), wanted->word_1000);
		for (int j = 0; j < 3; j++)
			assert_true(fp_mersenne_unit(&random) == wanted->units[j]);
		for (int j = 0; j < LIMITS; j++)
			assert_int_equal(fp_mersenne_below(&random, below_limits[j]), wanted->below[j]);
		for (int j = 0; j < 5; j++)
			assert_int_equal(fp_mersenne_between(&random, -3, 12), wanted->between[j]);
	}
}

static void test_same_seed_same_numbers(void **state)
{
	(void)state;
	fp_mersenne one, other;
	fp_mersenne_seed(&one, 7);
	fp_mersenne_seed(&other, 7);
	for (int i = 0; i < 2000; i++)
		assert_int_equal(fp_mersenne_bits(&one, 32), fp_mersenne_bits(&other, 32));
	fp_mersenne_seed(&other, 8);
	assert_int_not_equal(fp_mersenne_bits(&one, 32), fp_mersenne_bits(&other, 32));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_cpython),
		cmocka_unit_test(test_same_seed_same_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
