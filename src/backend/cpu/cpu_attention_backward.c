/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_attention_backward.c: gradients of causal softmax attention, one block of scores at a time.
 *
 *     P  = softmax(scale·QKᵀ)
 *     dV = PᵀdO
 *     dP = dO Vᵀ
 *     dS = P∘(dP − rowsum(dO∘O))
 *     dQ = scale·dS K
 *     dK = scale·dSᵀQ
 *
 * A work item is one sequence and one head of K and V with all heads of Q that share it, so that one thread writes dK
 * and dV and the order of their sums does not depend on the number of threads. The item loops over blocks of queries
 * and makes two passes over the blocks of keys for each: the first finds the maximum and the sum of each row's
 * exponentials, the second the gradients. The second pass computes the scores again, unless all keys fit into one
 * block. As in cpu_attention.c, products use the calling thread only, and may be rounded.
 *
 * A soft cap multiplies dS by its derivative; the keys' bias changes P only.
 */
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/cpu_blas.h"
#include "base/memory.h"
#include "base/numbers.h"
#include <math.h>
#include <string.h>

enum {
	KEY_BLOCK = 512,  /* keys in one block of scores */
	ROW_TARGET = 128, /* rows of stacked queries in one block */
};

typedef struct backward_plan {
	const fp_attention_shape *shape;
	fp_matrix Q, K, V, out, dout, dQ, dK, dV;
	int64_t group;                    /* heads of Q that share one of K and V */
	int64_t queries;                  /* positions in one block of queries */
	int64_t rows;                     /* group × queries */
	const fp_cpu_bf16_engine *engine; /* of products that are rounded; NULL: in float */
	bool split;
} backward_plan;

/* Memory of one thread. Rows are stacked head by head: row h·count + i is query first + i of head h of the group. */
typedef struct backward_scratch {
	float *queries, *dout, *dqueries; /* rows × head_dim; the queries already scaled */
	float *weights, *dscores;         /* rows × KEY_BLOCK */
	float *slopes;                    /* rows × KEY_BLOCK: of the soft cap; NULL without */
	float *maximum;                   /* rows */
	float *centre;                    /* rows: rowsum(dO∘O) */
	double *sum;                      /* rows */
	uint8_t *space;                   /* of the engine's products */
} backward_scratch;

/* The current block of queries and block of keys. */
typedef struct backward_block {
	int64_t start;        /* the sequence's first token */
	int64_t kv_head;      /* of K and V */
	int64_t first, count; /* queries */
	int64_t rows;         /* group × count */
	int64_t begin, end;   /* keys */
} backward_block;

static float *head_at(fp_matrix m, const backward_block *block, int64_t token, int64_t head, int64_t d)
{
	return fp_cpu_floats(m) + (block->start + token) * m.stride + head * d;
}

static void gather(const backward_plan *plan, const fp_cpu_loops *loops, const backward_block *block,
				   backward_scratch *scratch)
{
	int64_t d = plan->shape->head_dim;
	for (int64_t r = 0; r < block->rows; r++) {
		int64_t head = block->kv_head * plan->group + r / block->count, token = block->first + r % block->count;
		const float *dout = head_at(plan->dout, block, token, head, d);
		loops->scale(scratch->queries + r * d, head_at(plan->Q, block, token, head, d), d, plan->shape->scale);
		loops->scale(scratch->dout + r * d, dout, d, 1.0f);
		scratch->centre[r] = (float)loops->dot(dout, head_at(plan->out, block, token, head, d), d);
		scratch->maximum[r] = -INFINITY;
		scratch->sum[r] = 0;
	}
	memset(scratch->dqueries, 0, (size_t)(block->rows * d) * sizeof *scratch->dqueries);
}

static void multiply(const backward_plan *plan, const backward_scratch *scratch, fp_cpu_product product)
{
	product.split = plan->split;
	product.threads = 1;
	fp_cpu_multiply_alone(plan->engine, &product, scratch->space);
}

/* Bytes of work space for the largest products: rows × keys, and keys × d or rows × d over the other one. */
static int64_t space_of(const backward_plan *plan)
{
	int64_t d = plan->shape->head_dim, rows = plan->rows, most = 0;
	fp_cpu_product all[] = {
		{.m = rows, .n = KEY_BLOCK, .k = d}, {.m = KEY_BLOCK, .n = d, .k = rows}, {.m = rows, .n = d, .k = KEY_BLOCK}};
	for (int i = 0; i < 3 && plan->engine; i++) {
		all[i].split = plan->split;
		most = fp_larger(most, plan->engine->space(plan->engine, &all[i]));
	}
	return (most + 127) / 64 * 64;
}

/* out ← left Kᵀ or left Vᵀ for the keys of the block */
static void against_keys(const backward_plan *plan, const backward_block *block, const backward_scratch *scratch,
						 const float *left, fp_matrix keys, float *out)
{
	int64_t d = plan->shape->head_dim;
	multiply(plan, scratch,
			 (fp_cpu_product){.m = block->rows,
							  .n = block->end - block->begin,
							  .k = d,
							  .A = left,
							  .lda = d,
							  .B = head_at(keys, block, block->begin, block->kv_head, d),
							  .ldb = keys.stride,
							  .tb = true,
							  .C = out,
							  .ldc = KEY_BLOCK,
							  .alpha = 1});
}

/* gradient ← gradient + weightsᵀ·left for the keys of the block */
static void add_to_keys(const backward_plan *plan, const backward_block *block, const backward_scratch *scratch,
						const float *weights, const float *left, fp_matrix gradient)
{
	int64_t d = plan->shape->head_dim;
	multiply(plan, scratch,
			 (fp_cpu_product){.m = block->end - block->begin,
							  .n = d,
							  .k = block->rows,
							  .A = weights,
							  .lda = KEY_BLOCK,
							  .ta = true,
							  .B = left,
							  .ldb = d,
							  .C = head_at(gradient, block, block->begin, block->kv_head, d),
							  .ldc = gradient.stride,
							  .alpha = 1,
							  .beta = 1});
}

/* weights ← the scores */
static void score_keys(const backward_plan *plan, const backward_block *block, backward_scratch *scratch)
{
	const fp_attention_shape *shape = plan->shape;
	fp_matrix bias = shape->key_bias;
	against_keys(plan, block, scratch, scratch->queries, plan->K, scratch->weights);
	if (fp_attention_is_plain(shape))
		return;
	for (int64_t r = 0; r < block->rows; r++) {
		int64_t head = block->kv_head * plan->group + r / block->count;
		fp_cpu_shape_scores(scratch->weights + r * KEY_BLOCK, block->end - block->begin, shape->soft_cap,
							fp_matrix_is_absent(bias) ? NULL : fp_cpu_floats(bias) + head * bias.stride + block->begin,
							scratch->slopes ? scratch->slopes + r * KEY_BLOCK : NULL);
	}
}

/* The keys of the block that a row attends to, counted from block->begin; false if there are none. */
static bool visible_keys(const backward_plan *plan, const backward_block *block, int64_t row, int64_t *from,
						 int64_t *to)
{
	int64_t query = block->first + row % block->count, window = plan->shape->window;
	*from = window > 0 ? fp_larger(block->begin, query - window + 1) - block->begin : 0;
	*to = fp_smaller(block->end, query + 1) - block->begin;
	return *from < *to;
}

/* First pass: each row's maximum and sum of exponentials. */
static void gather_sums(const backward_plan *plan, const fp_cpu_loops *loops, const backward_block *block,
						backward_scratch *scratch)
{
	score_keys(plan, block, scratch);
	for (int64_t r = 0; r < block->rows; r++) {
		int64_t from, to;
		if (!visible_keys(plan, block, r, &from, &to))
			continue;
		const float *scores = scratch->weights + r * KEY_BLOCK + from;
		float before = scratch->maximum[r], here = loops->maximum(scores, to - from);
		float now = here > before || isnan(here) ? here : before;
		scratch->maximum[r] = now;
		scratch->sum[r] = scratch->sum[r] * exp((double)before - (double)now) + loops->exp_sum(scores, to - from, now);
	}
}

/* Scores to softmax weights and dP to dS, with zeros where a query does not attend to a key. */
static void softmax_block(const backward_plan *plan, const fp_cpu_loops *loops, const backward_block *block,
						  backward_scratch *scratch)
{
	int64_t keys = block->end - block->begin;
	for (int64_t r = 0; r < block->rows; r++) {
		int64_t from, to;
		float *weights = scratch->weights + r * KEY_BLOCK, *dscores = scratch->dscores + r * KEY_BLOCK;
		if (!visible_keys(plan, block, r, &from, &to))
			from = to = keys;
		memset(weights, 0, (size_t)from * sizeof *weights);
		memset(dscores, 0, (size_t)from * sizeof *dscores);
		memset(weights + to, 0, (size_t)(keys - to) * sizeof *weights);
		memset(dscores + to, 0, (size_t)(keys - to) * sizeof *dscores);
		loops->exp_store(weights + from, to - from, scratch->maximum[r]);
		loops->scale(weights + from, weights + from, to - from, (float)(1 / scratch->sum[r]));
		loops->softmax_backward(dscores + from, weights + from, to - from, scratch->centre[r]);
		for (int64_t j = from; j < to && scratch->slopes; j++)
			dscores[j] *= scratch->slopes[r * KEY_BLOCK + j];
	}
}

/* Second pass: adds the block's part of all three gradients. */
static void add_gradients(const backward_plan *plan, const fp_cpu_loops *loops, const backward_block *block,
						  backward_scratch *scratch, bool scores_are_ready)
{
	int64_t d = plan->shape->head_dim;
	if (!scores_are_ready)
		score_keys(plan, block, scratch);
	against_keys(plan, block, scratch, scratch->dout, plan->V, scratch->dscores);
	softmax_block(plan, loops, block, scratch);
	add_to_keys(plan, block, scratch, scratch->weights, scratch->dout, plan->dV);
	add_to_keys(plan, block, scratch, scratch->dscores, scratch->queries, plan->dK);
	multiply(plan, scratch,
			 (fp_cpu_product){.m = block->rows,
							  .n = d,
							  .k = block->end - block->begin,
							  .A = scratch->dscores,
							  .lda = KEY_BLOCK,
							  .B = head_at(plan->K, block, block->begin, block->kv_head, d),
							  .ldb = plan->K.stride,
							  .C = scratch->dqueries,
							  .ldc = d,
							  .alpha = plan->shape->scale,
							  .beta = 1});
}

static void backward_item(const backward_plan *plan, const fp_cpu_loops *loops, backward_scratch *scratch, int64_t item)
{
	const fp_attention_shape *shape = plan->shape;
	int64_t d = shape->head_dim;
	backward_block block = {.start = item / shape->kv_heads * shape->length, .kv_head = item % shape->kv_heads};
	for (int64_t t = 0; t < shape->length; t++) {
		memset(head_at(plan->dK, &block, t, block.kv_head, d), 0, (size_t)d * sizeof(float));
		memset(head_at(plan->dV, &block, t, block.kv_head, d), 0, (size_t)d * sizeof(float));
	}
	for (block.first = 0; block.first < shape->length; block.first += plan->queries) {
		block.count = fp_smaller(plan->queries, shape->length - block.first);
		block.rows = plan->group * block.count;
		gather(plan, loops, &block, scratch);
		int64_t last = block.first + block.count;
		int64_t begin = shape->window > 0 ? fp_larger(0, block.first - shape->window + 1) : 0;
		for (int pass = 0; pass < 2; pass++) {
			for (block.begin = begin; block.begin < last; block.begin += KEY_BLOCK) {
				block.end = fp_smaller(block.begin + KEY_BLOCK, last);
				if (pass == 0)
					gather_sums(plan, loops, &block, scratch);
				else
					add_gradients(plan, loops, &block, scratch, last - begin <= KEY_BLOCK);
			}
		}
		for (int64_t r = 0; r < block.rows; r++) {
			int64_t head = block.kv_head * plan->group + r / block.count, token = block.first + r % block.count;
			loops->scale(head_at(plan->dQ, &block, token, head, d), scratch->dqueries + r * d, d, 1.0f);
		}
	}
}

static fp_status check_shapes(fp_backend *be, const fp_attention_shape *shape, const backward_plan *plan)
{
	const fp_matrix *all[] = {&plan->Q, &plan->out, &plan->dout, &plan->dQ, &plan->K, &plan->V, &plan->dK, &plan->dV};
	FP_REQUIRE(be, shape->head_dim > 0 && shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0);
	FP_REQUIRE(be, shape->window >= 0 && shape->past == 0 && shape->key_rows == 0 && fp_cpu_is_key_bias(shape));
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		FP_REQUIRE(be, fp_cpu_is_f32(*all[i]) && all[i]->rows == shape->sequences * shape->length);
		FP_REQUIRE(be, all[i]->cols == (i < 4 ? shape->heads : shape->kv_heads) * shape->head_dim);
		FP_REQUIRE(be, all[i]->stride <= INT32_MAX);
	}
	return FP_OK;
}

fp_status fp_cpu_attention_backward(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									fp_matrix V, fp_matrix out, fp_matrix dout, fp_matrix dQ, fp_matrix dK,
									fp_matrix dV)
{
	backward_plan plan = {
		.shape = shape, .Q = Q, .K = K, .V = V, .out = out, .dout = dout, .dQ = dQ, .dK = dK, .dV = dV};
	fp_status status;
	float *memory = NULL;
	double *sums = NULL;
	uint8_t *spaces = NULL;
	FP_TRY(check_shapes(be, shape, &plan));
	if (Q.rows == 0 || shape->heads == 0)
		return FP_OK;
	plan.group = shape->heads / shape->kv_heads;
	plan.queries = fp_smaller(fp_larger(1, ROW_TARGET / plan.group), shape->length);
	plan.rows = plan.group * plan.queries;
	fp_cpu_arithmetic how = fp_cpu_arithmetic_wanted(be);
	if (how != FP_CPU_FLOAT && plan.rows >= FP_CPU_NARROWEST && shape->head_dim >= FP_CPU_NARROWEST)
		plan.engine = ((const fp_cpu_state *)be->state)->bf16.engine;
	plan.split = how == FP_CPU_SPLIT;
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	int64_t items = shape->sequences * shape->kv_heads, d = shape->head_dim;
	int threads = (int)fp_smaller(be->threads, items);
	bool capped = shape->soft_cap > 0;
	int64_t floats = plan.rows * (3 * d + (capped ? 3 : 2) * KEY_BLOCK + 2);
	floats = (floats + 31) / 16 * 16; /* the next thread's share starts on another cache line */
	int64_t space = space_of(&plan);
	FP_TRY(FP_NEW(be->ctx, &spaces, space * threads));
	FP_TRY(FP_NEW(be->ctx, &memory, floats * threads));
	FP_TRY(FP_NEW(be->ctx, &sums, plan.rows * threads));
	int before = fp_cpu_blas_begin(threads);
#pragma omp parallel num_threads(threads)
	{
		float *own = memory + floats * omp_get_thread_num();
		backward_scratch scratch = {.queries = own, .sum = sums + plan.rows * omp_get_thread_num()};
		scratch.space = spaces + space * omp_get_thread_num();
		scratch.dout = scratch.queries + plan.rows * d;
		scratch.dqueries = scratch.dout + plan.rows * d;
		scratch.weights = scratch.dqueries + plan.rows * d;
		scratch.dscores = scratch.weights + plan.rows * KEY_BLOCK;
		scratch.maximum = scratch.dscores + plan.rows * KEY_BLOCK;
		scratch.centre = scratch.maximum + plan.rows;
		scratch.slopes = capped ? scratch.centre + plan.rows : NULL;
#pragma omp for schedule(dynamic)
		for (int64_t item = 0; item < items; item++)
			backward_item(&plan, loops, &scratch, item);
	}
	fp_cpu_blas_end(before);

cleanup:
	fp_free(spaces);
	fp_free(sums);
	fp_free(memory);
	return status;
}
