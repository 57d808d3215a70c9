/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract.h: checks the promises of backend.h for one backend against plain loops in double.
 *
 * A sample is a matrix on the device with the same numbers on the host in double. Its view lies at a random place in a
 * larger buffer full of a sentinel, so that most views are strided and writes outside the view are detected.
 */
#ifndef FP_TESTS_CONTRACT_H
#define FP_TESTS_CONTRACT_H

#include "backend/backend.h"
#include "support.h"

/* The relative error of one operation in float. */
#define FLOAT_EPSILON 1.1920929e-7

/* Of plain attention: sequences, length, heads, kv_heads, head_dim, window, scale. */
#define SHAPE(s, l, h, k, d, w, x)                                                                                     \
	{                                                                                                                  \
		.sequences = (s), .length = (l), .heads = (h), .kv_heads = (k), .head_dim = (d), .window = (w), .scale = (x)   \
	}

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

/* Shapes that find mistakes: empty, one entry, odd, more than one vector register, more than one tile. */
typedef struct contract_shape {
	int64_t rows, cols;
} contract_shape;
extern const contract_shape contract_shapes[];
extern const int contract_shape_count;

/* An F32 matrix of normal numbers, or of one value. Freed by sample_free(). */
sample sample_normal(contract *c, int64_t rows, int64_t cols);
sample sample_filled(contract *c, int64_t rows, int64_t cols, double value);
/* An F32 matrix of the given numbers, rounded to float. */
sample sample_from(contract *c, int64_t rows, int64_t cols, const double *value);
/* Normal numbers times `scale`; one in ten is a special one. */
sample sample_mixed(contract *c, int64_t rows, int64_t cols, double scale, const double *special, size_t count);
/* A U8 matrix of 0 and 1 with equal probability. */
sample sample_mask(contract *c, int64_t rows, int64_t cols);
void sample_free(contract *c, sample *s);

/* The numbers on the device; the caller frees them with free(). Fails if anything outside the view has changed. */
double *sample_read(contract *c, const sample *s);
/* Fails unless the device holds `want` within absolute + relative·|want|, NaN for NaN. */
void sample_expect(contract *c, const sample *s, const double *want, double absolute, double relative,
				   const char *what);
/* The same with a bound for each entry. */
void sample_expect_within(contract *c, const sample *s, const double *want, const double *bound, const char *what);

/* An integer in [low, high]. */
int64_t contract_random(contract *c, int64_t low, int64_t high);
double *new_doubles(int64_t count);
/* The activation by its definition. */
double plain_activation(fp_activation kind, double x);

/* A named list of tests; test_contract.c has the table of them. */
typedef struct contract_group {
	const char *name;
	const struct CMUnitTest *tests;
	size_t count;
} contract_group;
#define CONTRACT_TESTS(group, ...)                                                                                     \
	static const struct CMUnitTest group##_tests[] = {__VA_ARGS__};                                                    \
	const contract_group contract_##group = {#group, group##_tests, sizeof group##_tests / sizeof group##_tests[0]}
extern const contract_group contract_memory, contract_linear, contract_factor, contract_transformer, contract_attention,
	contract_pruning, contract_sweep, contract_grid, contract_decode, contract_precision;
/* Tests of optional operations. */
extern const contract_group contract_upload, contract_output, contract_delta, contract_gradients;
extern const contract_group contract_relaxed_gradients, contract_bf16;

#endif
