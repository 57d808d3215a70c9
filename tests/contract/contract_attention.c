/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One query in double. out and bound have head_dim entries; bias may be NULL. */
static void attend_one(const fp_attention_shape *shape, const sample *Q, const sample *K, const sample *V,
					   const sample *bias, int64_t token, int64_t head, double *out, double *bound)
{
	int64_t d = shape->head_dim, query = shape->past + token % shape->length;
	int64_t start = token / shape->length * fp_attention_key_rows(shape);
	int64_t kv = head / (shape->heads / shape->kv_heads);
	int64_t first = shape->window > 0 && query - shape->window + 1 > 0 ? query - shape->window + 1 : 0;
	double *score = new_doubles(query + 1), largest = -INFINITY, sum = 0, size = 0, reach = 0;
	for (int64_t j = first; j <= query; j++) {
		for (int64_t e = 0; e < d; e++) {
			double term = (double)shape->scale * Q->value[token * shape->heads * d + head * d + e] *
						  K->value[(start + j) * shape->kv_heads * d + kv * d + e];
			score[j] += term;
			size = fmax(size, fabs(term) * (double)d);
		}
		if (shape->soft_cap > 0)
			score[j] = (double)shape->soft_cap * tanh(score[j] / (double)shape->soft_cap);
		if (bias) {
			score[j] += bias->value[head * bias->view.cols + j];
			size = fmax(size, fabs(bias->value[head * bias->view.cols + j]));
		}
		largest = fmax(largest, score[j]);
	}
	for (int64_t j = first; j <= query; j++)
		sum += score[j] = exp(score[j] - largest);
	for (int64_t e = 0; e < d; e++)
		out[e] = 0;
	for (int64_t j = first; j <= query; j++) {
		for (int64_t e = 0; e < d; e++) {
			double v = V->value[(start + j) * shape->kv_heads * d + kv * d + e];
			out[e] += score[j] / sum * v;
			reach = fmax(reach, fabs(v));
		}
	}
	/* A score is a sum of d products in float with an error of order ε·d·max|term|. A weight has that relative error.
	 * The weighted sum of values and the rescaling of the online softmax add a few ε. */
	for (int64_t e = 0; e < d; e++)
		bound[e] = FLOAT_EPSILON * reach * (size + 16 + 2 * sqrt((double)query));
	free(score);
}

static void check_attention(contract *c, fp_attention_shape shape, double spread, bool biased)
{
	int64_t tokens = shape.sequences * shape.length, d = shape.head_dim;
	int64_t keys = shape.sequences * fp_attention_key_rows(&shape);
	sample bias = sample_normal(c, shape.heads, fp_attention_keys(&shape) + 3);
	sample Q = sample_normal(c, tokens, shape.heads * d), K = sample_normal(c, keys, shape.kv_heads * d);
	sample V = sample_normal(c, keys, shape.kv_heads * d), out = sample_filled(c, tokens, shape.heads * d, NAN);
	shape.scale = (float)(spread / sqrt((double)d));
	shape.key_bias = biased ? bias.view : (fp_matrix){0};
	double *want = new_doubles(tokens * shape.heads * d), *bound = new_doubles(tokens * shape.heads * d);
	for (int64_t t = 0; t < tokens; t++) {
		for (int64_t h = 0; h < shape.heads; h++)
			attend_one(&shape, &Q, &K, &V, biased ? &bias : NULL, t, h, want + (t * shape.heads + h) * d,
					   bound + (t * shape.heads + h) * d);
	}
	assert_ok(c->ctx, c->be->transformer->attention(c->be, &shape, Q.view, K.view, V.view, out.view));
	sample_expect_within(c, &out, want, bound, "attention");
	free(want);
	free(bound);
	sample_free(c, &bias);
	sample_free(c, &Q);
	sample_free(c, &K);
	sample_free(c, &V);
	sample_free(c, &out);
}

static void test_attention(void **state)
{
	contract *c = *state;
	/* sequences, length, heads, kv_heads, head_dim, window */
	static const fp_attention_shape shapes[] = {
		SHAPE(0, 5, 2, 1, 4, 0, 0),    SHAPE(2, 0, 2, 2, 4, 0, 0),    SHAPE(1, 1, 1, 1, 1, 0, 0),
		SHAPE(3, 1, 4, 2, 8, 0, 0),    SHAPE(2, 2, 2, 2, 3, 0, 0),    SHAPE(2, 17, 4, 4, 16, 0, 0),
		SHAPE(1, 65, 8, 2, 20, 0, 0),  SHAPE(2, 129, 6, 1, 64, 0, 0), SHAPE(1, 300, 2, 2, 64, 0, 0),
		SHAPE(3, 40, 9, 3, 33, 0, 0),  SHAPE(1, 700, 2, 1, 32, 0, 0), SHAPE(1, 1300, 1, 1, 8, 0, 0),
		SHAPE(1, 40, 300, 2, 2, 0, 0),
	};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		check_attention(c, shapes[i], 1, false);
		check_attention(c, shapes[i], 12,
						false); /* sharp: nearly one-hot weights, maxima that grow from block to block */
	}
}

static void test_attention_window(void **state)
{
	contract *c = *state;
	static const int64_t windows[] = {1, 2, 7, 64, 129, 500, 5000};
	for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
		check_attention(c, (fp_attention_shape)SHAPE(1, 90, 4, 2, 8, windows[i], 0), 2, false);
		check_attention(c, (fp_attention_shape)SHAPE(2, 650, 1, 1, 16, windows[i], 0), 2, false);
	}
}

/* A soft cap and a bias of the keys, each alone and together, with heads for which a device has kernels of its own. */
static void test_attention_shaped(void **state)
{
	contract *c = *state;
	static const fp_attention_shape shapes[] = {
		SHAPE(2, 17, 4, 4, 16, 0, 0),    SHAPE(1, 65, 8, 2, 20, 0, 0),  SHAPE(2, 129, 6, 1, 64, 0, 0),
		SHAPE(1, 300, 2, 2, 128, 37, 0), SHAPE(1, 700, 2, 1, 32, 0, 0), SHAPE(1, 40, 6, 2, 256, 0, 0),
	};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		fp_attention_shape capped = shapes[i];
		capped.soft_cap = 3;
		check_attention(c, shapes[i], 2, true);
		check_attention(c, capped, 4, false);
		check_attention(c, capped, 4, true);
	}
}

/* New queries behind kept keys: one and a few, for which a device has kernels of its own, and a block of them. */
static void test_attention_past(void **state)
{
	contract *c = *state;
	static const int64_t lengths[] = {1, 3, 8, 70}, pasts[] = {0, 1, 13, 64, 300};
	static const fp_attention_shape shapes[] = {SHAPE(1, 0, 1, 1, 1, 0, 0),    SHAPE(3, 0, 4, 2, 20, 0, 0),
												SHAPE(2, 0, 6, 1, 64, 40, 0),  SHAPE(1, 0, 4, 4, 80, 0, 0),
												SHAPE(2, 0, 4, 2, 128, 17, 0), SHAPE(1, 0, 2, 1, 256, 0, 0),
												SHAPE(1, 0, 2, 2, 300, 5, 0)};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
			for (size_t p = 0; p < sizeof pasts / sizeof *pasts; p++) {
				fp_attention_shape shape = shapes[i];
				shape.length = lengths[l];
				shape.past = pasts[p];
				shape.key_rows = p % 2 ? shape.past + shape.length + 9 : 0; /* the cache has room for more, or not */
				check_attention(c, shape, 2, false);
				shape.soft_cap = 3;
				check_attention(c, shape, 4, p % 2 == 0);
				shape.soft_cap = 0;
				check_attention(c, shape, 2, true);
			}
}

/* A long context must work without memory for all scores; some rows are compared. FP_CONTRACT_TOKENS shortens it for
 * slow tools. */
static void test_attention_long(void **state)
{
	contract *c = *state;
	const char *tokens = getenv("FP_CONTRACT_TOKENS");
	fp_attention_shape shape = SHAPE(1, tokens ? atoll(tokens) : 33000, 1, 1, 4, 0, 0.5f);
	sample Q = sample_normal(c, shape.length, 4), K = sample_normal(c, shape.length, 4),
		   V = sample_normal(c, shape.length, 4);
	sample out = sample_filled(c, shape.length, 4, NAN);
	assert_ok(c->ctx, c->be->transformer->attention(c->be, &shape, Q.view, K.view, V.view, out.view));
	double *got = sample_read(c, &out);
	for (int64_t t = 0; t < shape.length; t += t < 3 ? 1 : 2999) {
		double want[4], bound[4];
		attend_one(&shape, &Q, &K, &V, NULL, t, 0, want, bound);
		for (int e = 0; e < 4; e++)
			assert_true(fabs(got[t * 4 + e] - want[e]) <= bound[e]);
	}
	free(got);
	sample_free(c, &Q);
	sample_free(c, &K);
	sample_free(c, &V);
	sample_free(c, &out);
}

CONTRACT_TESTS(attention, cmocka_unit_test(test_attention), cmocka_unit_test(test_attention_window),
			   cmocka_unit_test(test_attention_shaped), cmocka_unit_test(test_attention_past),
			   cmocka_unit_test(test_attention_long));
