/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers with many ties, zeros of both signs, subnormal and huge ones. */
static sample sample_tied(contract *c, int64_t rows, int64_t cols)
{
	double *values = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++) {
		int64_t kind = contract_random(c, 0, 9);
		values[k] = (double)random_normal(&c->seed);
		if (kind < 4)
			values[k] = (double)contract_random(c, -3, 3) / 2;
		if (kind == 4)
			values[k] = contract_random(c, 0, 1) ? -0.0 : 1e-42;
		if (kind == 5)
			values[k] *= 1e30;
	}
	sample s = sample_from(c, rows, cols, values);
	free(values);
	return s;
}

static void check_fista(contract *c, int64_t rows, int64_t cols, fp_momentum rule, float step, float threshold,
						float momentum)
{
	sample G = sample_normal(c, rows, cols), Y = sample_normal(c, rows, cols), P = sample_normal(c, rows, cols);
	double *y = new_doubles(rows * cols), *p = new_doubles(rows * cols), *bound = new_doubles(rows * cols);
	double want = 0, got = -1, slack = 1e-12;
	for (int64_t k = 0; k < rows * cols; k++) {
		double z = Y.value[k] - (double)step * G.value[k], size = fabs(z) - (double)threshold;
		p[k] = size > 0 ? copysign(size, z) : 0;
		y[k] = p[k] + (double)momentum * (p[k] - (rule == FP_MOMENTUM_STANDARD ? P.value[k] : Y.value[k]));
		want += (p[k] - P.value[k]) * (p[k] - P.value[k]);
		/* five operations in float on numbers of this size */
		double reach = fabs(Y.value[k]) + fabs((double)step * G.value[k]) + (double)threshold + fabs(P.value[k]);
		bound[k] = FLOAT_EPSILON * 4 * reach * (1 + fabs((double)momentum));
		slack += 4 * bound[k] * reach;
	}
	assert_ok(c->ctx, c->be->pruning->fista_step(c->be, rule, step, threshold, momentum, G.view, Y.view, P.view, &got));
	sample_expect_within(c, &P, p, bound, "fista_step, P");
	sample_expect_within(c, &Y, y, bound, "fista_step, Y");
	assert_true(fabs(got - want) <= slack);
	double *now = sample_read(c, &P);
	for (int64_t k = 0; k < rows * cols; k++)
		assert_false(now[k] == 0 && signbit(now[k])); /* never −0.0 */
	assert_ok(c->ctx, c->be->pruning->fista_step(c->be, rule, step, threshold, momentum, G.view, Y.view, P.view, NULL));
	free(now);
	free(y);
	free(p);
	free(bound);
	sample_free(c, &G);
	sample_free(c, &Y);
	sample_free(c, &P);
}

static void test_fista_step(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		for (int rule = 0; rule < 2; rule++) {
			check_fista(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, 0.3f, 0.5f, 0.7f);
			check_fista(c, contract_shapes[i].rows, contract_shapes[i].cols, (fp_momentum)rule, 0.01f, 0, 0);
		}
	}
	/* entries within the threshold become +0.0, from both sides and with threshold 0; NaN stays NaN */
	const double y[] = {0.25, -0.25, -0.0, 0, NAN};
	for (int k = 0; k < 2; k++) {
		sample G = sample_filled(c, 1, 5, 0), Y = sample_from(c, 1, 5, y), P = sample_filled(c, 1, 5, 0);
		assert_ok(c->ctx, c->be->pruning->fista_step(c->be, FP_MOMENTUM_STANDARD, 1, k ? 0.0f : 0.25f, 0, G.view,
													 Y.view, P.view, NULL));
		double *p = sample_read(c, &P);
		assert_true(isnan(p[4]));
		for (int i = k ? 2 : 0; i < 4; i++)
			assert_true(p[i] == 0 && !signbit(p[i]));
		free(p);
		sample_free(c, &G);
		sample_free(c, &Y);
		sample_free(c, &P);
	}
}

typedef struct ranked {
	double size;
	int64_t index;
} ranked;

static int by_size(const void *a, const void *b)
{
	const ranked *x = a, *y = b;
	if (x->size != y->size)
		return x->size < y->size ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

/* mask ← 0 at the `zeros` smallest of count; among equals the first is pruned first. */
static void reference_smallest(const double *score, int64_t count, int64_t zeros, double *mask)
{
	ranked *all = malloc((size_t)(count + 1) * sizeof *all);
	for (int64_t k = 0; k < count; k++) {
		all[k] = (ranked){fabs(score[k]), k};
		mask[k] = 1;
	}
	qsort(all, (size_t)count, sizeof *all, by_size);
	for (int64_t k = 0; k < zeros; k++)
		mask[all[k].index] = 0;
	free(all);
}

static void test_mask_unstructured(void **state)
{
	contract *c = *state;
	static const double sparsities[] = {0, 0.1, 0.5, 0.7, 0.9, 0.999, 1};
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		for (size_t s = 0; s < sizeof sparsities / sizeof *sparsities; s++) {
			fp_pattern pattern = {.sparsity = sparsities[s]};
			sample score = s % 2 ? sample_tied(c, rows, cols) : sample_normal(c, rows, cols),
				   mask = sample_mask(c, rows, cols);
			double *want = new_doubles(rows * cols);
			reference_smallest(score.value, rows * cols, (int64_t)floor(sparsities[s] * (double)(rows * cols)), want);
			assert_ok(c->ctx, c->be->pruning->mask_smallest(c->be, score.view, &pattern, mask.view));
			sample_expect(c, &mask, want, 0, 0, "mask_smallest"); /* exact */
			for (int64_t r = 0; r < rows; r++)
				reference_smallest(score.value + r * cols, cols, (int64_t)floor(sparsities[s] * (double)cols),
								   want + r * cols);
			assert_ok(c->ctx, c->be->pruning->mask_rows(c->be, score.view, &pattern, mask.view));
			sample_expect(c, &mask, want, 0, 0, "mask_rows");
			free(want);
			sample_free(c, &score);
			sample_free(c, &mask);
		}
	}
}

/* mask ← 1 at the `kept` largest of each group; among equals the first is kept. */
static void reference_groups(const double *score, int64_t cols, int64_t kept, int64_t group, double *mask)
{
	for (int64_t begin = 0; begin < cols; begin += group) {
		int64_t size = cols - begin < group ? cols - begin : group;
		int64_t keep = (int64_t)ceil((double)(kept * size) / (double)group);
		for (int64_t k = 0; k < size; k++)
			mask[begin + k] = 0;
		for (int64_t n = 0; n < keep; n++) {
			int64_t best = -1;
			for (int64_t k = begin; k < begin + size; k++) {
				if (mask[k] == 0 && (best < 0 || fabs(score[k]) > fabs(score[best])))
					best = k;
			}
			mask[best] = 1;
		}
	}
}

static void test_mask_groups(void **state)
{
	contract *c = *state;
	static const int64_t patterns[][2] = {{2, 4}, {1, 4}, {4, 8}, {3, 8}, {0, 4}, {4, 4}, {1, 1}, {5, 16}, {1, 3}};
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
			fp_pattern pattern = {patterns[p][0], patterns[p][1], 1 - (double)patterns[p][0] / (double)patterns[p][1]};
			sample score = sample_tied(c, rows, cols), mask = sample_mask(c, rows, cols);
			double *want = new_doubles(rows * cols);
			for (int64_t r = 0; r < rows; r++)
				reference_groups(score.value + r * cols, cols, patterns[p][0], patterns[p][1], want + r * cols);
			assert_ok(c->ctx, c->be->pruning->mask_smallest(c->be, score.view, &pattern, mask.view));
			sample_expect(c, &mask, want, 0, 0, "mask_smallest by groups");
			free(want);
			sample_free(c, &score);
			sample_free(c, &mask);
		}
	}
}

/* Callers check for NaN. The number of zeros must be right even if they do not. */
static void test_mask_with_nan(void **state)
{
	contract *c = *state;
	double *values = new_doubles(35);
	for (int k = 0; k < 35; k++)
		values[k] = k % 5 == 0 ? NAN : k % 5 == 1 ? INFINITY : (double)k;
	sample score = sample_from(c, 5, 7, values), mask = sample_mask(c, 5, 7);
	const fp_pattern patterns[] = {{.sparsity = 0.5}, {2, 4, 0.5}};
	for (int p = 0; p < 2; p++) {
		assert_ok(c->ctx, c->be->pruning->mask_smallest(c->be, score.view, &patterns[p], mask.view));
		double *got = sample_read(c, &mask), kept = 0;
		for (int k = 0; k < 35; k++)
			kept += got[k];
		assert_true(kept == (p == 0 ? 18 : 5 * 4));
		free(got);
	}
	free(values);
	sample_free(c, &score);
	sample_free(c, &mask);
}

static void test_mask_nonzero(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols;
		double *values = new_doubles(rows * cols), *want = new_doubles(rows * cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			values[k] = k % 3 == 0 ? 0.0 : k % 7 == 0 ? -0.0 : k % 5 == 0 ? -1e-44 : (double)random_normal(&c->seed);
			want[k] = values[k] != 0;
		}
		sample X = sample_from(c, rows, cols, values), mask = sample_mask(c, rows, cols);
		assert_ok(c->ctx, c->be->pruning->mask_nonzero(c->be, X.view, mask.view));
		sample_expect(c, &mask, want, 0, 0, "mask_nonzero");
		free(values);
		free(want);
		sample_free(c, &X);
		sample_free(c, &mask);
	}
}

static void test_apply_and_distance(void **state)
{
	contract *c = *state;
	for (int i = 0; i < contract_shape_count; i++) {
		int64_t rows = contract_shapes[i].rows, cols = contract_shapes[i].cols, want = 0, got = -1;
		sample X = sample_normal(c, rows, cols), a = sample_mask(c, rows, cols), b = sample_mask(c, rows, cols);
		for (int64_t k = 0; k < rows * cols; k++) {
			want += a.value[k] != b.value[k];
			X.value[k] = a.value[k] != 0 ? X.value[k] : 0;
		}
		assert_ok(c->ctx, c->be->pruning->mask_distance(c->be, a.view, b.view, &got));
		assert_int_equal(got, want);
		assert_ok(c->ctx, c->be->pruning->apply_mask(c->be, a.view, X.view));
		sample_expect(c, &X, X.value, 0, 0, "apply_mask");
		double *now = sample_read(c, &X);
		for (int64_t k = 0; k < rows * cols; k++)
			assert_false(a.value[k] == 0 && signbit(now[k]));
		free(now);
		sample_free(c, &X);
		sample_free(c, &a);
		sample_free(c, &b);
	}
}

/* Small integers, with which the step is exact, so that the mask must equal the reference. */
static sample sample_whole(contract *c, int64_t rows, int64_t cols)
{
	double *values = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++)
		values[k] = (double)contract_random(c, -9, 9);
	sample s = sample_from(c, rows, cols, values);
	free(values);
	return s;
}

/* scale: of G and T in F16; 0: they are in float. */
static void check_support_step(contract *c, int64_t rows, int64_t cols, const fp_pattern *pattern, bool with_r,
							   float scale)
{
	sample G = sample_whole(c, rows, cols), S = sample_whole(c, rows, cols), W = sample_whole(c, rows, cols);
	sample R = sample_whole(c, rows, cols), T = sample_filled(c, rows, cols, NAN), mask = sample_mask(c, rows, cols);
	sample other = sample_mask(c, rows, cols);
	double *s = new_doubles(rows * cols), *t = new_doubles(rows * cols);
	for (int64_t k = 0; k < rows * cols; k++)
		s[k] = G.value[k] + W.value[k] + (mask.value[k] != 0 ? 0 : S.value[k]);
	sample score = sample_from(c, rows, cols, s);
	assert_ok(c->ctx, c->be->pruning->mask_smallest(c->be, score.view, pattern, other.view));
	double *want = sample_read(c, &other);
	for (int64_t k = 0; k < rows * cols; k++) {
		s[k] *= want[k] != 0 ? 1 : 0.5;
		t[k] = 0.25 * ((want[k] != 0 ? s[k] : -s[k]) - W.value[k]) + (with_r ? R.value[k] : 0);
	}
	fp_support_rule rule = {*pattern, 0.25f, 0.5f, scale, W.view, with_r ? R.view : (fp_matrix){0}};
	if (scale > 0) {
		fp_matrix g, u;
		for (int64_t k = 0; k < rows * cols; k++)
			t[k] = fmax(fmin(scale * t[k], 65504), -65504);
		assert_ok(c->ctx, fp_matrix_new(c->be, &g, rows, cols, FP_F16));
		assert_ok(c->ctx, fp_matrix_new(c->be, &u, rows, cols, FP_F16));
		assert_ok(c->ctx, c->be->linear->axpby(c->be, 0, G.view, scale, G.view));
		assert_ok(c->ctx, c->be->memory->copy(c->be, g, G.view));
		assert_ok(c->ctx, c->be->pruning->support_step(c->be, &rule, g, S.view, mask.view, u));
		assert_ok(c->ctx, c->be->memory->copy(c->be, T.view, u));
		fp_matrix_free(c->be, &g);
		fp_matrix_free(c->be, &u);
	} else
		assert_ok(c->ctx, c->be->pruning->support_step(c->be, &rule, G.view, S.view, mask.view, T.view));
	sample_expect(c, &mask, want, 0, 0, "support_step, mask");
	sample_expect(c, &S, s, 0, 0, "support_step, S");
	sample_expect(c, &T, t, 0, 0, "support_step, T");
	free(want);
	free(s);
	free(t);
	sample *all[] = {&G, &S, &W, &R, &T, &mask, &other, &score};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

static void test_support_step(void **state)
{
	contract *c = *state;
	const fp_pattern patterns[] = {{.sparsity = 0.5}, {2, 4, 0.5}, {1, 4, 0.75}, {4, 8, 0.5}};
	for (int i = 0; i < contract_shape_count; i++)
		for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
			for (int half = 0; half < (fp_backend_can(c->be, FP_CAN_MULTIPLY_NARROW) ? 2 : 1); half++)
				check_support_step(c, contract_shapes[i].rows, contract_shapes[i].cols, &patterns[p],
								   (p + (size_t)i) % 2, half ? 8 : 0);
	check_support_step(c, 24, 64, &patterns[1], true, 0); /* whole groups */
	if (fp_backend_can(c->be, FP_CAN_MULTIPLY_NARROW))
		for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
			check_support_step(c, 24, 64, &patterns[p], true, 4096); /* beyond the range of F16 */
}

/* One row of cg_step() in double. */
typedef struct cg_row {
	double *r, *p, *v;       /* read and written */
	double rz, enough, size; /* size: the largest number in the step, for the bound */
} cg_row;

static void cg_reference(cg_row *row, const double *mask, const double *inverse, const double *q, int64_t n,
						 double longest)
{
	double pq = 0, next = 0, step = 0;
	for (int64_t j = 0; q && j < n; j++)
		pq += mask[j] != 0 ? row->p[j] * q[j] : 0;
	if (q && isinf(row->enough))
		return;
	if (q) {
		step = pq > 0 && row->rz > row->enough ? row->rz / pq : 0;
		if (step == 0 || step > longest) {
			row->enough = INFINITY;
			return;
		}
	}
	for (int64_t j = 0; j < n; j++) {
		row->v[j] += q ? step * row->p[j] : 0;
		row->r[j] -= q && mask[j] != 0 ? step * q[j] : 0;
		next += row->r[j] * row->r[j] * inverse[j];
		row->size = fmax(row->size, fmax(fabs(row->v[j]), fabs(step * row->p[j])));
		row->size = fmax(row->size, fmax(fabs(row->r[j]), q ? fabs(step * q[j]) : 0));
	}
	double beta = q && row->rz > 0 ? next / row->rz : 0;
	for (int64_t j = 0; j < n; j++) {
		row->p[j] = row->r[j] * inverse[j] + beta * row->p[j];
		row->size = fmax(row->size, fabs(row->p[j]));
	}
	row->rz = next;
}

/* Rows modulo 5: 0 and 1 continue, 2 is solved, 3 has negative curvature, 4 would take too long a step. With `half` the
 * product is computed from `narrow` and scaled by the rows' factors. */
static void check_cg_step(contract *c, int64_t rows, int64_t cols, bool half)
{
	const double longest = 50;
	sample r = sample_normal(c, rows, cols), p = sample_normal(c, rows, cols), V = sample_normal(c, rows, cols);
	sample mask = sample_mask(c, rows, cols), rz = sample_filled(c, 1, rows, 1), enough = sample_filled(c, 1, rows, 0);
	sample inverse = sample_filled(c, 1, cols, 0.5), factor = sample_filled(c, 1, rows, NAN);
	double *q = new_doubles(rows * cols), *size = new_doubles(rows);
	fp_matrix narrow = {0};
	if (half)
		assert_ok(c->ctx, fp_matrix_new(c->be, &narrow, rows, cols, FP_F16));
	fp_cg cg = {.mask = mask.view,
				.inverse = inverse.view,
				.r = r.view,
				.p = p.view,
				.V = V.view,
				.rz = rz.view,
				.enough = enough.view,
				.longest = (float)longest,
				.narrow = narrow,
				.factor = half ? factor.view : (fp_matrix){0}};
	for (int64_t k = 0; k < rows * cols; k++) /* as in the refit: zero outside the mask */
		r.value[k] *= mask.value[k] != 0;
	assert_ok(c->ctx, c->be->pruning->apply_mask(c->be, mask.view, r.view));
	for (int iteration = 0; iteration < (cols < 8 ? 2 : 3);
		 iteration++) { /* one step solves few columns, up to rounding */
		sample Q = {0};
		double *factors = NULL;
		if (iteration > 0) {
			factors = half ? sample_read(c, &factor) : NULL;
			for (int64_t k = 0; k < rows * cols; k++) {
				int kind = (int)(k / cols % 5);
				q[k] = (kind == 3 ? -1 : kind == 4 ? 1e-3 : 1.5) * p.value[k] * ldexp(1, (int)(k % 3) - 1);
			}
			double *scaled = new_doubles(rows * cols);
			for (int64_t k = 0; k < rows * cols; k++)
				scaled[k] = q[k] * (factors ? factors[k / cols] : 1);
			Q = sample_from(c, rows, cols, scaled);
			free(scaled);
		}
		for (int64_t i = 0; i < rows; i++) {
			cg_row row = {r.value + i * cols, p.value + i * cols, V.value + i * cols, rz.value[i], enough.value[i], 1};
			cg_reference(&row, mask.value + i * cols, inverse.value, iteration > 0 ? q + i * cols : NULL, cols,
						 longest);
			rz.value[i] = row.rz;
			enough.value[i] = row.enough;
			size[i] = row.size;
		}
		assert_ok(c->ctx, c->be->pruning->cg_step(c->be, &cg, iteration > 0 ? Q.view : (fp_matrix){0}));
		double *bound = new_doubles(rows * cols), *sums = new_doubles(rows);
		for (int64_t k = 0; k < rows * cols; k++)
			bound[k] = 64 * FLOAT_EPSILON * size[k / cols];
		for (int64_t i = 0; i < rows; i++)
			sums[i] = 1e-5 * rz.value[i] + FLOAT_EPSILON * size[i] * size[i];
		sample_expect_within(c, &r, r.value, bound, "cg_step, r");
		sample_expect_within(c, &p, p.value, bound, "cg_step, p");
		sample_expect_within(c, &V, V.value, bound, "cg_step, V");
		sample_expect_within(c, &rz, rz.value, sums, "cg_step, rz");
		double *stopped = sample_read(c, &enough);
		for (int64_t i = 0; i < rows; i++)
			assert_int_equal(isinf(stopped[i]), isinf(enough.value[i]));
		free(stopped);
		if (half && fp_matrix_size(r.view) > 0) { /* narrow is p, to 11 bits, times the row's factor */
			double *times = sample_read(c, &factor);
			sample N = sample_filled(c, rows, cols, NAN);
			assert_ok(c->ctx, c->be->memory->copy(c->be, N.view, narrow));
			double *held = sample_read(c, &N);
			for (int64_t k = 0; k < rows * cols; k++)
				assert_true(fabs(held[k] / times[k / cols] - p.value[k]) <= ldexp(fabs(p.value[k]), -11) + bound[k]);
			free(held);
			free(times);
			sample_free(c, &N);
		}
		for (int64_t i = 0; i < rows && iteration == 0; i++)
			enough.value[i] = i % 5 == 2 ? 2 * rz.value[i] : 1e-9 * rz.value[i];
		if (iteration == 0 && rows > 0) {
			sample next = sample_from(c, 1, rows, enough.value);
			assert_ok(c->ctx, c->be->memory->copy(c->be, enough.view, next.view));
			sample_free(c, &next);
		}
		free(bound);
		free(sums);
		free(factors);
		if (iteration > 0)
			sample_free(c, &Q);
	}
	free(q);
	free(size);
	fp_matrix_free(c->be, &narrow);
	sample *all[] = {&r, &p, &V, &mask, &rz, &enough, &inverse, &factor};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		sample_free(c, all[i]);
}

static void test_cg_step(void **state)
{
	contract *c = *state;
	for (int half = 0; half < (fp_backend_can(c->be, FP_CAN_MULTIPLY_NARROW) ? 2 : 1); half++) {
		for (int i = 0; i < contract_shape_count; i++)
			check_cg_step(c, contract_shapes[i].rows, contract_shapes[i].cols, half != 0);
		check_cg_step(c, 600, 64, half != 0);
		check_cg_step(c, 7, 9000, half != 0);
	}
}

CONTRACT_TESTS(pruning, cmocka_unit_test(test_fista_step), cmocka_unit_test(test_mask_unstructured),
			   cmocka_unit_test(test_mask_groups), cmocka_unit_test(test_mask_with_nan),
			   cmocka_unit_test(test_mask_nonzero), cmocka_unit_test(test_apply_and_distance),
			   cmocka_unit_test(test_support_step), cmocka_unit_test(test_cg_step));
