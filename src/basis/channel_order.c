/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/channel_order.h"

#include "base/memory.h"
#include "base/mersenne.h"
#include "base/numbers.h"

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

/* The sum of the two smallest of four, over all rows. */
static double removed_of_four(const float *const c[4], int64_t rows)
{
	float sum = 0;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < rows; i++) {
		float low = smaller(c[0][i], c[1][i]), high = larger(c[0][i], c[1][i]);
		float low2 = smaller(c[2][i], c[3][i]), high2 = larger(c[2][i], c[3][i]);
		sum += smaller(low, low2) + smaller(larger(low, low2), smaller(high, high2));
	}
	return (double)sum;
}

/* What N:M removes of a group with these channels, over all rows. */
static double removed(const order_search *s, const float *const *c)
{
	double sum = 0;
	if (s->group == 4 && s->kept == 2)
		return removed_of_four(c, s->rows);
	for (int64_t i = 0; i < s->rows; i++) {
		float sorted[MOST_GROUP] = {0};
		for (int64_t k = 0; k < s->group; k++) {
			int64_t place = k;
			for (; place > 0 && sorted[place - 1] > c[k][i]; place--)
				sorted[place] = sorted[place - 1];
			sorted[place] = c[k][i];
		}
		for (int64_t k = 0; k < s->group - s->kept; k++)
			sum += (double)sorted[k];
	}
	return sum;
}

/* Makes the best exchange between two groups, if one helps. */
static void exchange(order_search *s, int32_t *a, int32_t *b)
{
	const float *c[2][MOST_GROUP];
	for (int64_t k = 0; k < s->group; k++) {
		c[0][k] = s->scores + a[k] * s->rows;
		c[1][k] = s->scores + b[k] * s->rows;
	}
	double least = removed(s, c[0]) + removed(s, c[1]), now = least;
	int64_t best[2] = {-1, -1};
	for (int64_t i = 0; i < s->group; i++)
		for (int64_t j = 0; j < s->group; j++) {
			const float *x = c[0][i], *y = c[1][j];
			c[0][i] = y;
			c[1][j] = x;
			double mass = removed(s, c[0]) + removed(s, c[1]);
			c[0][i] = x;
			c[1][j] = y;
			if (mass < least && mass < now * (1 - 1e-6)) { /* not for rounding alone */
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
	if (group == 0 || group > MOST_GROUP)
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
