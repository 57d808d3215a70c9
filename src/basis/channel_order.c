/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/channel_order.h"

#include "base/memory.h"
#include "base/mersenne.h"
#include "base/numbers.h"

#include <string.h>

enum { ROUNDS = 100, MOST_ROWS = 256, MOST_GROUP = 16 };

typedef struct order_search {
	fp_backend *be;
	int64_t rows, channels; /* rows of `down` that are looked at, evenly spaced */
	int64_t kept, group;    /* N:M */
	float *scores;          /* channels × rows: w²E[x²] */
	int32_t *order;
} order_search;

/* scores ← from the layer's down operator */
static fp_status read_scores(order_search *s, fp_matrix down, fp_matrix inner)
{
	fp_backend *be = s->be;
	int64_t n = s->channels, all = down.rows, some = all % s->rows == 0 ? s->rows : 1; /* rows in a download */
	float *rows = NULL, *squares = NULL;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &rows, some * n));
	FP_TRY(FP_NEW(be->ctx, &squares, n));
	FP_TRY(FP_NEW(be->ctx, &s->scores, n * s->rows));
	FP_TRY(be->memory->download(be, squares, FP_F32, n, inner));
	for (int64_t i = 0; i < s->rows; i++) {
		const float *row = rows + i % some * n;
		if (i % some == 0) {
			fp_matrix part = fp_matrix_rows(down, i * all / s->rows, some);
			part.stride *= some > 1 ? all / s->rows : 1;
			FP_TRY(be->memory->download(be, rows, FP_F32, n, part));
			FP_TRY(be->memory->synchronize(be));
		}
		for (int64_t j = 0; j < n; j++)
			s->scores[j * s->rows + i] = row[j] * row[j] * squares[j];
	}
cleanup:
	fp_free(rows);
	fp_free(squares);
	return status;
}

static float smaller(float a, float b)
{
	return a < b ? a : b;
}

static float larger(float a, float b)
{
	return a > b ? a : b;
}

/* A group of M channels of which N:M removes the r = M − N smallest of each row. If channel k is replaced by another one, y,
 * it removes Σ rest + Σ min(y, limit): the r − 1 smallest of the other channels, and y or the r-th of them. */
typedef struct channel_group {
	const float *c[MOST_GROUP]; /* the scores of its channels */
	double removed;
	double rest[MOST_GROUP];            /* of each channel, summed over all rows */
	float limit[MOST_GROUP][MOST_ROWS]; /* of each channel and row */
} channel_group;

/* smallest[0 … count − 1] ← the smallest scores of each row, in order */
static void find_smallest(const order_search *s, const channel_group *g, int64_t count,
						  float smallest[MOST_GROUP][MOST_ROWS])
{
	float held[MOST_ROWS];
	for (int64_t k = 0; k < s->group; k++) {
		memcpy(held, g->c[k], (size_t)s->rows * sizeof *held);
		for (int64_t place = 0; place < fp_smaller(k, count); place++) {
			float *at = smallest[place];
#pragma omp simd
			for (int64_t i = 0; i < s->rows; i++) {
				float low = smaller(at[i], held[i]);
				held[i] = larger(at[i], held[i]);
				at[i] = low;
			}
		}
		if (k < count)
			memcpy(smallest[k], held, (size_t)s->rows * sizeof *held);
	}
}

static void measure_group(const order_search *s, const int32_t *channels, channel_group *g)
{
	int64_t r = s->group - s->kept;
	float smallest[MOST_GROUP][MOST_ROWS], sum[MOST_ROWS] = {0};
	float all = 0;
	for (int64_t k = 0; k < s->group; k++)
		g->c[k] = s->scores + channels[k] * s->rows;
	find_smallest(s, g, r + 1, smallest);
	for (int64_t k = 0; k < r; k++)
		for (int64_t i = 0; i < s->rows; i++)
			sum[i] += smallest[k][i];
	const float *last = smallest[r - 1], *next = smallest[r];
#pragma omp simd reduction(+ : all)
	for (int64_t i = 0; i < s->rows; i++)
		all += sum[i];
	g->removed = (double)all;
	for (int64_t k = 0; k < s->group; k++) {
		const float *x = g->c[k];
		float *limit = g->limit[k], rest = 0;
#pragma omp simd reduction(+ : rest)
		for (int64_t i = 0; i < s->rows; i++) {
			bool removed = x[i] <= last[i];
			rest += sum[i] - (removed ? x[i] : last[i]);
			limit[i] = removed ? next[i] : last[i];
		}
		g->rest[k] = (double)rest;
	}
}

/* What is removed of a group if `y` replaces its channel k. */
static double removed_with(const order_search *s, const channel_group *g, int64_t k, const float *y)
{
	const float *limit = g->limit[k];
	float sum = 0;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < s->rows; i++)
		sum += smaller(y[i], limit[i]);
	return g->rest[k] + (double)sum;
}

/* Makes the best exchange between two groups, if one helps. */
static void exchange(order_search *s, int32_t *a, int32_t *b)
{
	channel_group A, B;
	int64_t best[2] = {-1, -1};
	measure_group(s, a, &A);
	measure_group(s, b, &B);
	double least = (A.removed + B.removed) * (1 - 1e-6); /* not for rounding alone */
	for (int64_t i = 0; i < s->group; i++)
		for (int64_t j = 0; j < s->group; j++) {
			double mass = removed_with(s, &A, i, B.c[j]) + removed_with(s, &B, j, A.c[i]);
			if (mass < least) {
				least = mass;
				best[0] = i;
				best[1] = j;
			}
		}
	if (best[0] >= 0) {
		int32_t channel = a[best[0]];
		a[best[0]] = b[best[1]];
		b[best[1]] = channel;
	}
}

static fp_status search(order_search *s, uint64_t seed)
{
	int64_t groups = s->channels / s->group;
	int64_t *shuffled = NULL;
	fp_mersenne random;
	fp_status status;
	FP_TRY(FP_NEW(s->be->ctx, &shuffled, groups));
	for (int64_t i = 0; i < groups; i++)
		shuffled[i] = i;
	fp_mersenne_seed(&random, seed);
	for (int round = 0; round < ROUNDS; round++) {
		FP_TRY(fp_check_interrupt(s->be->ctx));
		for (int64_t i = groups - 1; i > 0; i--) {
			int64_t other = fp_mersenne_below(&random, i + 1), group = shuffled[other];
			shuffled[other] = shuffled[i];
			shuffled[i] = group;
		}
#pragma omp parallel for num_threads(s->be->threads) schedule(static)
		for (int64_t pair = 0; pair < groups / 2; pair++)
			exchange(s, s->order + shuffled[2 * pair] * s->group, s->order + shuffled[2 * pair + 1] * s->group);
	}
cleanup:
	fp_free(shuffled);
	return status;
}

/* The order of the channels of one block: the columns of `down`, whose inputs have the mean squares `inner`. */
static fp_status order_block(int32_t *order, const fp_basis_task *task, fp_matrix down, fp_matrix inner, uint64_t seed)
{
	const fp_pattern *pattern = &task->pattern;
	order_search s = {.be = task->be,
					  .rows = fp_smaller(down.rows, MOST_ROWS),
					  .channels = down.cols,
					  .kept = pattern->kept,
					  .group = pattern->group,
					  .order = order};
	fp_status status = FP_OK;
	for (int64_t i = 0; i < s.channels; i++)
		order[i] = (int32_t)i;
	if (s.channels % s.group != 0)
		return FP_OK;
	FP_TRY(read_scores(&s, down, inner));
	FP_TRY(search(&s, seed));
cleanup:
	fp_free(s.scores);
	return status;
}

/* Whether the groups divide the channels of some block. */
static bool helps(const fp_basis_task *task, const fp_layer *layer)
{
	int64_t group = task->pattern.group, experts = fp_model_get_config(task->model)->experts.inner;
	fp_matrix own = layer->weight[FP_DOWN];
	if (group == 0 || group > MOST_GROUP || task->pattern.kept < 1 || task->pattern.kept >= group)
		return false;
	return (!fp_matrix_is_absent(own) && own.cols % group == 0) ||
		   (fp_layer_has_experts(layer) && experts % group == 0);
}

fp_status fp_order_channels(int32_t **out, const fp_basis_task *task, const fp_layer *layer, fp_matrix inner)
{
	const fp_model *model = task->model;
	int64_t experts = fp_layer_has_experts(layer) ? layer->router.rows : 0;
	int32_t *order = NULL;
	fp_status status = FP_OK;
	*out = NULL;
	if (!helps(task, layer))
		return FP_OK;
	FP_TRY(FP_NEW(task->ctx, &order, inner.cols));
	for (int64_t e = -1; e < experts; e++) {
		fp_matrix down = layer->weight[e < 0 ? (int)FP_DOWN : fp_expert_operator(e, FP_DOWN)];
		int64_t first = fp_first_channel(model, layer->index, e);
		if (!fp_matrix_is_absent(down))
			FP_TRY(order_block(order + first, task, down, fp_matrix_cols(inner, first, down.cols),
							   (uint64_t)layer->index));
	}
	*out = order;
	order = NULL;
cleanup:
	fp_free(order);
	return status;
}
