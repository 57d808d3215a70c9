/* SPDX-License-Identifier: Apache-2.0 */
/* The divergence of two models: zero for a model and itself, equal to a computation in double from probabilities, in
 * any chunking, and errors for models that cannot be compared. */
#include "model_fixture.h"

#include "evaluation/divergence.h"
#include "evaluation/perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COPIES = 37 }; /* windows: several batches, the last one partial */

static fp_windows repeat_windows(const char *name)
{
	fp_windows one = read_windows(name), all = one;
	size_t size = (size_t)(one.count * one.length) * sizeof *one.ids;
	all.count *= COPIES;
	all.ids = malloc(size * COPIES);
	for (size_t i = 0; i < COPIES; i++)
		memcpy((char *)all.ids + i * size, one.ids, size);
	free(one.ids);
	return all;
}

/* *out ← an overlay in which every other weight of each layer's last operator is zero */
static void thin_out(model_fixture *f, fp_overlay **out)
{
	assert_ok(f->ctx, fp_overlay_new(out, f->ctx));
	for (int64_t layer = 0; layer < fp_model_get_config(f->model)->layers; layer++) {
		const fp_tensor_info *tensor = fp_model_operator(f->model, layer, FP_DOWN);
		int64_t entries = tensor->elements, size = tensor->bytes / entries;
		char *bytes = malloc((size_t)tensor->bytes);
		memcpy(bytes, fp_checkpoint_data(f->checkpoint, tensor), (size_t)tensor->bytes);
		for (int64_t i = 0; i < entries; i += 2)
			memset(bytes + i * size, 0, (size_t)size);
		assert_ok(f->ctx, fp_overlay_replace(*out, tensor, bytes));
		free(bytes);
	}
}

/* log p of every token of the vocabulary: −loss of each as the target */
static double *log_probabilities(model_fixture *f, const fp_overlay *overlay, const fp_windows *windows)
{
	int64_t rows = windows->count * windows->length, vocabulary = fp_model_get_config(f->model)->vocabulary;
	double *out = malloc((size_t)(rows * vocabulary) * sizeof *out);
	int32_t *targets = malloc((size_t)rows * sizeof *targets);
	float *losses = malloc((size_t)rows * sizeof *losses);
	fp_matrix hidden;
	fp_model_set_overlay(f->model, overlay);
	run_model(f, windows->ids, windows->count, windows->length, &hidden);
	fp_model_set_overlay(f->model, NULL);
	for (int32_t token = 0; token < vocabulary; token++) {
		for (int64_t i = 0; i < rows; i++)
			targets[i] = token;
		assert_ok(f->ctx, fp_model_loss(f->model, hidden, targets, losses, NULL));
		for (int64_t i = 0; i < rows; i++)
			out[i * vocabulary + token] = -(double)losses[i];
	}
	fp_matrix_free(f->be, &hidden);
	free(losses);
	free(targets);
	return out;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int64_t largest(const double *x, int64_t count)
{
	int64_t best = 0;
	for (int64_t i = 1; i < count; i++)
		best = x[i] > x[best] ? i : best;
	return best;
}

/* By the definitions, over all predicted tokens. */
static fp_divergence_result by_definition(model_fixture *f, const fp_overlay *overlay, const fp_windows *windows)
{
	int64_t rows = windows->count * windows->length, vocabulary = fp_model_get_config(f->model)->vocabulary, n = 0;
	double *p = log_probabilities(f, NULL, windows), *q = log_probabilities(f, overlay, windows);
	double *kl = calloc((size_t)rows, sizeof *kl), loss[2] = {0}, squares = 0;
	fp_divergence_result r = {.windows = windows->count};
	for (int64_t i = 0; i < rows; i++) {
		const double *x = p + i * vocabulary, *y = q + i * vocabulary;
		if ((i + 1) % windows->length == 0)
			continue;
		for (int64_t k = 0; k < vocabulary; k++)
			kl[n] += exp(x[k]) * (x[k] - y[k]);
		loss[0] -= x[windows->ids[i + 1]];
		loss[1] -= y[windows->ids[i + 1]];
		r.top1 += largest(x, vocabulary) == largest(y, vocabulary);
		r.kl += kl[n++];
	}
	r.tokens = n;
	r.kl /= (double)n;
	r.top1 /= (double)n;
	r.perplexity = exp(loss[1] / (double)n);
	r.perplexity_ratio = r.perplexity / exp(loss[0] / (double)n);
	for (int64_t i = 0; i < n; i++)
		squares += pow(kl[i] - r.kl, 2);
	r.kl_stderr = sqrt(squares / (double)(n - 1)) / sqrt((double)n);
	qsort(kl, (size_t)n, sizeof *kl, by_value);
	r.kl_median = (kl[(n - 1) / 2] + kl[n / 2]) / 2;
	double position = 0.99 * (double)(n - 1), rest = position - floor(position);
	r.kl_p99 = kl[(int64_t)position] * (1 - rest) + kl[(int64_t)ceil(position)] * rest;
	free(kl);
	free(p);
	free(q);
	return r;
}

static void expect_near(double got, double want, const char *what)
{
	if (fabs(got - want) > 2e-6 + 1e-4 * fabs(want))
		fail_msg("%s: %.9g instead of %.9g", what, got, want);
}

static void a_model_equals_itself(void **unused)
{
	(void)unused;
	static const char *const cases[] = {"opt-plain", "opt-350m", "llama-gqa"};
	for (int i = 0; i < 3; i++) {
		model_fixture f;
		fp_divergence *d;
		fp_divergence_result r;
		fp_perplexity_result plain;
		open_fixture(&f, cases[i]);
		fp_windows windows = repeat_windows(cases[i]);
		assert_ok(f.ctx, fp_divergence_new(&d, f.model, &windows, 0));
		assert_ok(f.ctx, fp_perplexity(&plain, f.model, &windows, 0));
		for (int again = 0; again < 2; again++) { /* also from the kept hidden states */
			assert_ok(f.ctx, fp_divergence_measure(&r, d, f.model, NULL));
			assert_true(r.kl == 0 && r.kl_stderr == 0 && r.kl_median == 0 && r.kl_p99 == 0);
			assert_true(r.top1 == 1 && r.perplexity_ratio == 1);
			assert_true(r.perplexity == plain.perplexity && r.dense_perplexity == plain.perplexity);
			assert_int_equal(r.tokens, plain.tokens);
		}
		fp_divergence_free(d);
		free(windows.ids);
		close_fixture(&f);
	}
}

static void equals_the_definition_in_any_chunking(void **unused)
{
	(void)unused;
	static const int64_t memories[] = {0, 1, 1 << 20};
	static const char *const cases[] = {"llama-gqa", "opt-plain"};
	for (int i = 0; i < 2; i++) {
		model_fixture f;
		fp_overlay *overlay;
		open_fixture(&f, cases[i]);
		fp_windows windows = repeat_windows(cases[i]);
		thin_out(&f, &overlay);
		fp_divergence_result want = by_definition(&f, overlay, &windows);
		assert_true(want.kl > 1e-4 && want.kl_p99 > want.kl_median);
		for (int m = 0; m < 3; m++) {
			fp_divergence *d;
			fp_divergence_result r;
			assert_ok(f.ctx, fp_divergence_new(&d, f.model, &windows, memories[m]));
			for (int again = 0; again < 2; again++) {
				assert_ok(f.ctx, fp_divergence_measure(&r, d, f.model, overlay));
				assert_int_equal(r.tokens, want.tokens);
				expect_near(r.kl, want.kl, "kl");
				expect_near(r.kl_stderr, want.kl_stderr, "kl_stderr");
				expect_near(r.kl_median, want.kl_median, "kl_median");
				expect_near(r.kl_p99, want.kl_p99, "kl_p99");
				expect_near(r.top1, want.top1, "top1");
				expect_near(r.perplexity, want.perplexity, "perplexity");
				expect_near(r.perplexity_ratio, want.perplexity_ratio, "perplexity_ratio");
			}
			fp_divergence_free(d);
		}
		fp_overlay_free(overlay);
		free(windows.ids);
		close_fixture(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_model_equals_itself),
									   cmocka_unit_test(equals_the_definition_in_any_chunking)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
