/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/divergence.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "evaluation/chunk_memory.h"
#include "evaluation/text_pass.h"

#include <math.h>
#include <stdlib.h>

/* Hidden states of the dense model up to this size are kept between measurements. */
#define MOST_KEPT_BYTES ((int64_t)256 << 20)

struct fp_divergence {
	fp_backend *be;
	const fp_windows *windows;
	int64_t memory;
	fp_text_pass dense;
	bool kept; /* dense.hidden has all windows */
};

/* One measurement. */
typedef struct measurement {
	fp_divergence *divergence;
	fp_text_pass pruned;
	fp_evaluation_progress progress;
	int32_t *targets;      /* batch·length */
	fp_divergence_rows at; /* batch·length each */
	float *kl;             /* of all predicted tokens */
	int64_t tokens, agreed;
	double loss, dense_loss; /* sums */
} measurement;

fp_status fp_divergence_new(fp_divergence **out, fp_model *dense, const fp_windows *windows, int64_t memory)
{
	fp_status status;
	fp_divergence *d = NULL;
	fp_backend *be = fp_model_backend(dense);
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &d, 1));
	d->be = be;
	d->windows = windows;
	FP_TRY(fp_evaluation_memory(be, memory, &d->memory));
	FP_TRY(fp_text_pass_plan(&d->dense, dense, windows, d->memory / 2, d->memory));
	*out = d;
	d = NULL;
cleanup:
	fp_divergence_free(d);
	return status;
}

void fp_divergence_free(fp_divergence *divergence)
{
	if (!divergence)
		return;
	fp_text_pass_free(&divergence->dense);
	fp_free(divergence);
}

static fp_status check_vocabularies(const fp_model *model, const fp_model *dense)
{
	int64_t here = fp_model_get_config(model)->vocabulary, there = fp_model_get_config(dense)->vocabulary;
	if (here == there)
		return FP_OK;
	return fp_fail(fp_model_backend(model)->ctx, FP_ERROR_INPUT,
				   "%s has a vocabulary of %lld tokens and the reference %s one of %lld: the reference must be the "
				   "dense model that was pruned",
				   fp_checkpoint_directory(fp_model_checkpoint(model)), (long long)here,
				   fp_checkpoint_directory(fp_model_checkpoint(dense)), (long long)there);
}

static void measurement_free(measurement *m)
{
	fp_text_pass_free(&m->pruned);
	fp_free(m->targets);
	fp_free(m->at.kl);
	for (int i = 0; i < 2; i++) {
		fp_free(m->at.losses[i]);
		fp_free(m->at.argmax[i]);
	}
	fp_free(m->kl);
}

static fp_status measurement_new(measurement *m, fp_divergence *d, fp_model *model)
{
	fp_status status;
	fp_context *ctx = d->be->ctx;
	int64_t layers = fp_model_get_config(model)->layers;
	m->divergence = d;
	FP_TRY(check_vocabularies(model, d->dense.model));
	FP_TRY(fp_text_pass_plan(&m->pruned, model, d->windows, d->memory / 2, d->memory));
	int64_t rows = m->pruned.batch * d->windows->length;
	FP_TRY(FP_NEW(ctx, &m->targets, rows));
	FP_TRY(FP_NEW(ctx, &m->at.kl, rows));
	for (int i = 0; i < 2; i++) {
		FP_TRY(FP_NEW(ctx, &m->at.losses[i], rows));
		FP_TRY(FP_NEW(ctx, &m->at.argmax[i], rows));
	}
	FP_TRY(FP_NEW(ctx, &m->kl, d->windows->count * (d->windows->length - 1)));
	d->kept = d->kept && m->pruned.chunk == d->windows->count; /* else the chunks differ */
	if (!d->kept)
		layers += fp_model_get_config(d->dense.model)->layers;
	m->progress.total = d->windows->count * (layers + 1);
	m->pruned.progress = &m->progress;
	d->dense.progress = &m->progress;
cleanup:
	return status;
}

/* Both heads on a chunk of windows. */
static fp_status score(measurement *m, const int32_t *ids, int64_t count)
{
	fp_status status = FP_OK;
	const fp_text_pass *pruned = &m->pruned, *dense = &m->divergence->dense;
	int64_t length = pruned->windows->length;
	FP_PRODUCTS_FOR(m->divergence->be, fp_head_use(m->divergence->be));
	for (int64_t first = 0; first < count; first += pruned->batch) {
		int64_t sequences = fp_smaller(pruned->batch, count - first);
		fp_next_tokens(m->targets, ids + first * length, sequences, length);
		FP_TRY(fp_model_divergence(dense->model, fp_text_pass_hidden(dense, first, sequences), pruned->model,
								   fp_text_pass_hidden(pruned, first, sequences), m->targets, &m->at));
		for (int64_t i = 0; i < sequences * length; i++) {
			if (m->targets[i] < 0)
				continue;
			m->kl[m->tokens++] = m->at.kl[i];
			m->dense_loss += m->at.losses[0][i];
			m->loss += m->at.losses[1][i];
			m->agreed += m->at.argmax[0][i] == m->at.argmax[1][i];
		}
		FP_TRY(fp_evaluation_step(m->divergence->be->ctx, &m->progress, sequences));
	}
cleanup:
	return status;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Of sorted values; between two of them by linear interpolation. */
static double quantile(const float *sorted, int64_t count, double share)
{
	double position = share * (double)(count - 1);
	int64_t below = (int64_t)position;
	int64_t above = fp_smaller(below + 1, count - 1);
	double weight = position - (double)below;
	return (1 - weight) * (double)sorted[below] + weight * (double)sorted[above];
}

static void summarise(fp_divergence_result *out, measurement *m)
{
	double sum = 0, squares = 0, count = (double)m->tokens;
	for (int64_t i = 0; i < m->tokens; i++)
		sum += m->kl[i];
	double mean = sum / count;
	for (int64_t i = 0; i < m->tokens; i++)
		squares += ((double)m->kl[i] - mean) * ((double)m->kl[i] - mean);
	qsort(m->kl, (size_t)m->tokens, sizeof *m->kl, by_value);
	*out = (fp_divergence_result){
		.windows = m->pruned.windows->count,
		.tokens = m->tokens,
		.mean_loss = m->loss / count,
		.perplexity = exp(m->loss / count),
		.dense_perplexity = exp(m->dense_loss / count),
		.kl = mean,
		.kl_stderr = m->tokens > 1 ? sqrt(squares / (count - 1) / count) : 0,
		.kl_median = quantile(m->kl, m->tokens, 0.5),
		.kl_p99 = quantile(m->kl, m->tokens, 0.99),
		.top1 = (double)m->agreed / count,
		.perplexity_ratio = exp(m->loss / count - m->dense_loss / count),
	};
}

/* The hidden states of both models for `count` windows from `first` on. */
static fp_status run_both(measurement *m, const fp_overlay *overlay, int64_t first, int64_t count)
{
	fp_divergence *d = m->divergence;
	fp_status status = d->kept ? FP_OK : fp_text_pass_run(&d->dense, first, count);
	if (status != FP_OK)
		return status;
	fp_model_set_overlay(m->pruned.model, overlay);
	status = fp_text_pass_run(&m->pruned, first, count);
	fp_model_set_overlay(m->pruned.model, NULL);
	return status;
}

fp_status fp_divergence_measure(fp_divergence_result *out, fp_divergence *divergence, fp_model *model,
								const fp_overlay *overlay)
{
	fp_status status;
	measurement m = {0};
	const fp_windows *windows = divergence->windows;
	int64_t all = windows->count;
	*out = (fp_divergence_result){0};
	FP_TRY(measurement_new(&m, divergence, model));
	int64_t chunk = fp_smaller(m.pruned.chunk, divergence->dense.chunk);
	for (int64_t first = 0; first < all; first += chunk) {
		int64_t count = fp_smaller(chunk, all - first);
		FP_TRY(run_both(&m, overlay, first, count));
		divergence->kept = divergence->kept || count == all;
		FP_TRY(score(&m, windows->ids + first * windows->length, count));
	}
	summarise(out, &m);
cleanup:
	if (fp_matrix_size(divergence->dense.hidden) * (int64_t)sizeof(float) > MOST_KEPT_BYTES) {
		fp_text_pass_free(&divergence->dense);
		divergence->kept = false;
	}
	measurement_free(&m);
	return status;
}
