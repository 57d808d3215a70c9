/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/sampling.h"
#include "support.h"

#include <math.h>

enum { WORDS = 6, DRAWS = 40000 };

static const float logits[WORDS] = {1.0F, 3.0F, -2.0F, 3.0F, 2.0F, 0.0F};

static void draw(const fp_sampling *how, int counts[WORDS])
{
	fp_mersenne random;
	fp_candidate space[WORDS];
	fp_sampler_seed(&random, 1, 0);
	memset(counts, 0, WORDS * sizeof *counts);
	for (int i = 0; i < DRAWS; i++) {
		int32_t id = fp_sample(&random, how, logits, WORDS, space, NULL);
		assert_true(id >= 0 && id < WORDS);
		counts[id]++;
	}
}

/* The shares of the draws against probabilities, zeros exactly; others within 5 standard errors. */
static void expect_shares(fp_sampling how, const double weights[WORDS])
{
	int counts[WORDS];
	double sum = 0;
	draw(&how, counts);
	for (int i = 0; i < WORDS; i++)
		sum += weights[i];
	for (int i = 0; i < WORDS; i++) {
		double p = weights[i] / sum;
		if (!(fabs(counts[i] / (double)DRAWS - p) <= 5 * sqrt(p * (1 - p) / DRAWS)))
			fail_msg("temperature %g, top_k %d, top_p %g: token %d has a share of %g, expected %g", how.temperature,
					 (int)how.top_k, how.top_p, i, counts[i] / (double)DRAWS, p);
	}
}

static void test_shares(void **state)
{
	(void)state;
	const double e = exp(1), all[WORDS] = {e, e * e * e, exp(-2), e * e * e, e * e, 1};
	const double hot[WORDS] = {exp(0.5), exp(1.5), exp(-1), exp(1.5), e, 1};
	expect_shares((fp_sampling){1, 0, 1}, all);
	expect_shares((fp_sampling){2, 0, 1}, hot);
	expect_shares((fp_sampling){1, 100, 1}, all);
	/* equally likely tokens count in the order of their ids */
	expect_shares((fp_sampling){1, 2, 1}, (double[WORDS]){0, 1, 0, 1, 0, 0});
	expect_shares((fp_sampling){1, 1, 1}, (double[WORDS]){0, 1, 0, 0, 0, 0});
	expect_shares((fp_sampling){1, 3, 1}, (double[WORDS]){0, e, 0, e, 1, 0});
	/* 1 and 3 have 0.775 together, with 4 0.918, with 0 0.970 */
	expect_shares((fp_sampling){1, 0, 0.77}, (double[WORDS]){0, 1, 0, 1, 0, 0});
	expect_shares((fp_sampling){1, 0, 0.8}, (double[WORDS]){0, e, 0, e, 1, 0});
	expect_shares((fp_sampling){1, 0, 0.95}, (double[WORDS]){e, e * e * e, 0, e * e * e, e * e, 0});
	expect_shares((fp_sampling){1, 0, 0}, (double[WORDS]){0, 1, 0, 0, 0, 0});
	/* top_p counts from what top_k leaves: 1, 3 and 4 are 0.42, 0.42 and 0.16 there */
	expect_shares((fp_sampling){1, 3, 0.83}, (double[WORDS]){0, 1, 0, 1, 0, 0});
}

static void test_greedy(void **state)
{
	(void)state;
	fp_mersenne random;
	fp_sampler_seed(&random, 1, 0);
	const fp_sampling how = {.top_p = 1};
	assert_int_equal(fp_sample(&random, &how, logits, WORDS, NULL, NULL), 1); /* the first of the two largest */
	const float low[3] = {-INFINITY, -5, -INFINITY};
	assert_int_equal(fp_sample(&random, &how, low, 3, NULL, NULL), 1);
}

static void test_overflow(void **state)
{
	(void)state;
	fp_mersenne random;
	fp_candidate space[3];
	fp_sampler_seed(&random, 1, 0);
	const fp_sampling warm = {.temperature = 1, .top_p = 1}, greedy = {.top_p = 1};
	const float bad[][3] = {{1, INFINITY, 0}, {-INFINITY, -INFINITY, -INFINITY}, {0, 1, NAN}};
	for (int i = 0; i < 3; i++) {
		assert_int_equal(fp_sample(&random, &warm, bad[i], 3, space, NULL), -1);
		assert_int_equal(fp_sample(&random, &greedy, bad[i], 3, space, NULL), -1);
	}
	const float masked[3] = {-INFINITY, -5, -INFINITY};
	assert_int_equal(fp_sample(&random, &warm, masked, 3, space, NULL), 1);
}

static void test_rows(void **state)
{
	fp_context *ctx = *state;
	enum { ROWS = 37 };
	static float many[ROWS * WORDS];
	fp_mersenne random[ROWS], again;
	fp_mersenne *streams[ROWS];
	fp_candidate space[WORDS];
	int32_t ids[ROWS];
	fp_sampling how[ROWS];
	double losses[ROWS], loss;
	for (int i = 0; i < ROWS * WORDS; i++)
		many[i] = sinf((float)i);
	for (int i = 0; i < ROWS; i++) {
		fp_sampler_seed(&random[i], 5, i);
		streams[i] = &random[i];
		how[i] = (fp_sampling){.temperature = i % 2 ? 1.5 : 1, .top_k = i % 5, .top_p = i % 3 ? 0.9 : 1};
	}
	assert_ok(ctx, fp_sample_rows(ctx, 3, streams, how, many, ROWS, WORDS, ids, losses));
	for (int i = 0; i < ROWS; i++) {
		fp_sampler_seed(&again, 5, i);
		assert_int_equal(ids[i], fp_sample(&again, &how[i], many + i * WORDS, WORDS, space, &loss));
		assert_true(losses[i] == loss);
		if (i == 0) { /* all tokens at temperature 1: the loss by the model */
			double sum = 0;
			for (int j = 0; j < WORDS; j++)
				sum += exp((double)many[j] - (double)many[ids[0]]);
			assert_true(fabs(loss - log(sum)) < 1e-9);
		}
	}
	many[20] = NAN;
	assert_fails(ctx, FP_ERROR_NUMERIC, "not a number",
				 fp_sample_rows(ctx, 3, streams, how, many, ROWS, WORDS, ids, losses));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_greedy),
									   cmocka_unit_test(test_overflow),
									   cmocka_unit_test_setup_teardown(test_rows, context_set_up, context_tear_down)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
