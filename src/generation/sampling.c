/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampling.c: with weights wᵢ = exp((logitᵢ − largest)/T), first the top_k largest weights are kept, then the fewest of
 * the largest that have top_p of the sum of what is left, and one of these is drawn in proportion to its weight.
 */
#include "generation/sampling.h"

#include "base/memory.h"
#include "base/numbers.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

void fp_sampler_seed(fp_mersenne *random, uint64_t seed, int64_t stream)
{
	fp_mersenne_seed(random, seed ^ (uint64_t)stream * 0x9e3779b97f4a7c15ULL);
}

static int by_falling_weight(const void *a, const void *b)
{
	const fp_candidate *x = a, *y = b;
	if (x->weight != y->weight)
		return x->weight < y->weight ? 1 : -1;
	return (x->id > y->id) - (x->id < y->id);
}

/* Keeps candidates of at least this weight, in their order. */
static int64_t keep_from(fp_candidate *candidates, int64_t count, double least)
{
	int64_t kept = 0;
	for (int64_t i = 0; i < count; i++)
		if (candidates[i].weight >= least)
			candidates[kept++] = candidates[i];
	return kept;
}

static double sum_of(const fp_candidate *candidates, int64_t count)
{
	double sum = 0;
	for (int64_t i = 0; i < count; i++)
		sum += candidates[i].weight;
	return sum;
}

/* The candidates that top_k and top_p leave, the most likely ones first. */
static int64_t restrict_to_top(const fp_sampling *how, fp_candidate *candidates, int64_t count)
{
	bool few = how->top_k > 0 && how->top_k < count;
	/* Tokens below this weight have less than 1 − top_p together, so that none of them is needed; few are left to sort */
	double sum = sum_of(candidates, count);
	if (!few && how->top_p < 1)
		count = keep_from(candidates, count, (1 - how->top_p) * sum / (double)count);
	qsort(candidates, (size_t)count, sizeof *candidates, by_falling_weight);
	if (few) {
		count = how->top_k;
		sum = sum_of(candidates, count);
	}
	if (how->top_p >= 1)
		return count;
	double reached = 0;
	for (int64_t i = 0; i < count; i++) {
		reached += candidates[i].weight;
		if (reached >= how->top_p * sum)
			return i + 1;
	}
	return count;
}

int32_t fp_sample(fp_mersenne *random, const fp_sampling *how, const float *logits, int64_t vocabulary,
				  fp_candidate *space, double *loss)
{
	int64_t best = 0, count = vocabulary;
	if (loss)
		*loss = 0;
	for (int64_t i = 0; i < vocabulary; i++) {
		if (isnan(logits[i]))
			return -1;
		if (logits[i] > logits[best])
			best = i;
	}
	if (!isfinite(logits[best])) /* +inf, or −inf for all: such weights would not be numbers */
		return -1;
	if (how->temperature <= 0 || how->top_k == 1)
		return (int32_t)best;
	double largest = (double)logits[best];
	for (int64_t i = 0; i < vocabulary; i++)
		space[i] = (fp_candidate){exp(((double)logits[i] - largest) / how->temperature), (int32_t)i};
	if (how->top_k > 0 || how->top_p < 1)
		count = restrict_to_top(how, space, count);
	double sum = sum_of(space, count), rest = fp_mersenne_unit(random) * sum;
	int64_t drawn = 0;
	while (drawn < count && (rest -= space[drawn].weight) >= 0)
		drawn++;
	if (drawn == count) /* the sum was rounded up; a weight of zero must not be drawn */
		drawn = how->top_k > 0 || how->top_p < 1 ? 0 : best;
	if (loss)
		*loss = log(sum / space[drawn].weight);
	return space[drawn].id;
}

fp_status fp_sample_rows(fp_context *ctx, int threads, fp_mersenne *const *random, const fp_sampling *how,
						 const float *logits, int64_t rows, int64_t vocabulary, int32_t *ids, double *losses)
{
	fp_candidate *space = NULL;
	fp_status status;
	threads = (int)fp_smaller(threads, rows);
	FP_TRY(FP_NEW(ctx, &space, threads * vocabulary));
#pragma omp parallel for num_threads(threads) schedule(static)
	for (int64_t i = 0; i < rows; i++)
		ids[i] = fp_sample(random[i], &how[i], logits + i * vocabulary, vocabulary,
						   space + omp_get_thread_num() * vocabulary, losses ? &losses[i] : NULL);
	for (int64_t i = 0; i < rows; i++)
		if (ids[i] < 0)
			FP_TRY(fp_fail(ctx, FP_ERROR_NUMERIC, "a logit is not a number: the model is damaged, or overflows"));
cleanup:
	fp_free(space);
	return status;
}
