/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract.h: what backend.h promises, checked for one backend against plain loops in double.
 *
 * A sample is a matrix on the device together with the same numbers on the host in double. Its view is placed at random
 * inside a larger buffer full of a sentinel, so that strided views are the rule and a write outside the view is seen.
 */
#ifndef FP_TESTS_CONTRACT_H
#define FP_TESTS_CONTRACT_H

#include "backend/backend.h"
#include "support.h"

/* What float arithmetic loses in one operation. */
#define FLOAT_EPSILON 1.1920929e-7

typedef struct contract {
	fp_context *ctx;
	fp_backend *be;
	uint64_t seed;
} contract;

typedef struct sample {
	fp_matrix whole; /* the buffer, one row */
	fp_matrix view;
	double *value; /* view.rows × view.cols */
} sample;

/* Shapes that find mistakes: nothing, one, odd, more than one vector register, more than one tile. */
typedef struct contract_shape {
	int64_t rows, cols;
} contract_shape;
extern const contract_shape contract_shapes[];
extern const int contract_shape_count;

/* An F32 matrix of about normal numbers, or of one value. Freed by sample_free(). */
sample sample_normal(contract *c, int64_t rows, int64_t cols);
sample sample_filled(contract *c, int64_t rows, int64_t cols, double value);
/* From given numbers, which are rounded to float. */
sample sample_from(contract *c, int64_t rows, int64_t cols, const double *value);
/* Normal numbers times `scale`, and one in ten of the special ones. */
sample sample_mixed(contract *c, int64_t rows, int64_t cols, double scale, const double *special, size_t count);
/* A U8 matrix, 0 or 1 with even chance. */
sample sample_mask(contract *c, int64_t rows, int64_t cols);
void sample_free(contract *c, sample *s);

/* What is on the device now; the caller frees it with free(). Fails when anything outside the view has changed. */
double *sample_read(contract *c, const sample *s);
/* The device must hold `want`, each within absolute + relative·|want|, NaN for NaN. */
void sample_expect(contract *c, const sample *s, const double *want, double absolute, double relative,
				   const char *what);
/* The same with a bound for each entry. */
void sample_expect_within(contract *c, const sample *s, const double *want, const double *bound, const char *what);

/* An integer in [low, high]. */
int64_t contract_random(contract *c, int64_t low, int64_t high);
double *new_doubles(int64_t count);
/* By the definition. */
double plain_activation(fp_activation kind, double x);

/* One list of tests per file. */
extern const struct CMUnitTest contract_memory_tests[], contract_linear_tests[], contract_factor_tests[],
	contract_transformer_tests[], contract_attention_tests[], contract_pruning_tests[], contract_delta_tests[],
	contract_sweep_tests[], contract_gradients_tests[], contract_precision_tests[];
extern const size_t contract_memory_test_count, contract_linear_test_count, contract_factor_test_count,
	contract_transformer_test_count, contract_attention_test_count, contract_pruning_test_count,
	contract_delta_test_count, contract_sweep_test_count, contract_gradients_test_count, contract_precision_test_count;

#define CONTRACT_TESTS(name, ...)                                                                                      \
	const struct CMUnitTest contract_##name##_tests[] = {__VA_ARGS__};                                                 \
	const size_t contract_##name##_test_count = sizeof contract_##name##_tests / sizeof *contract_##name##_tests

#endif
