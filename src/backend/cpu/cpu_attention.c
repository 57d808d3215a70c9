/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_attention.c: causal softmax attention, one block of scores at a time.
 *
 *     out[i] = Σⱼ softmax(f(scale · Q[i] Kᵀ))[j] V[j]    over j ≤ i, and j > i − window if there is a window
 *
 * where f caps the scores and adds the keys' bias, if the shape has them. i and j are positions: with `past`, the first
 * query is behind keys that have none.
 *
 * A work item is one block of queries of one sequence, for all heads that share a head of K and V. Their rows are
 * stacked, so that grouped heads give one larger product. The item loops over blocks of keys and keeps for each row the
 * running maximum, the running sum of exponentials and the running output, which are rescaled whenever the maximum
 * grows (Milakov and Gimelshein, 2018). A thread therefore holds rows × KEY_BLOCK scores, whatever the length is.
 *
 * Items run in parallel and each calls sgemm, or where products are rounded the engine for BF16 (cpu_bf16.h). BLAS is
 * called inside a parallel region here and in cpu_linear.c only. It is safe because the build requires the OpenMP form of
 * OpenBLAS (cmake/Dependencies.cmake), which asks omp_in_parallel() and then uses the calling thread only. The products
 * are too small to share between threads.
 */
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/cpu_blas.h"
#include "base/memory.h"
#include "base/numbers.h"
#include <math.h>
#include <string.h>

enum {
	/* Measured for heads of 48 to 128 and lengths of 256 to 8192. More rows make the products faster. But a block of
	 * queries is multiplied with all keys up to its last query, so a long block of a short sequence computes many
	 * scores that are masked. */
	KEY_BLOCK = 256,  /* keys in one block of scores */
	ROWS_SHORT = 128, /* rows of stacked queries in one block */
	ROWS_LONG = 256,  /* the same if such a block is at most 1/LONG_BLOCKS of the sequence */
	LONG_BLOCKS = 8,
};

typedef struct attention_plan {
	const fp_attention_shape *shape;
	fp_matrix Q, K, V, out;
	int64_t group;                    /* heads of Q that share one of K and V */
	int64_t queries;                  /* positions in one block of queries */
	int64_t blocks;                   /* of queries in a sequence */
	int64_t rows;                     /* group × queries, the rows of a full block */
	const fp_cpu_bf16_engine *engine; /* of products that are rounded; NULL: in float */
	bool split;
} attention_plan;

/* Memory of one thread. */
typedef struct attention_scratch {
	float *queries; /* rows × head_dim, already scaled */
	float *scores;  /* rows × KEY_BLOCK */
	float *output;  /* rows × head_dim */
	float *maximum; /* rows */
	double *sum;    /* rows */
	uint8_t *space; /* of the engine's products */
} attention_scratch;

/* Rows are stacked head by head: row h·count + i is query first + i of head h of the group. */
static void gather_queries(const attention_plan *plan, const fp_cpu_loops *loops, int64_t first_row, int64_t count,
						   int64_t kv_head, float *packed)
{
	int64_t d = plan->shape->head_dim;
	for (int64_t h = 0; h < plan->group; h++) {
		const float *q = fp_cpu_floats(plan->Q) + first_row * plan->Q.stride + (kv_head * plan->group + h) * d;
		for (int64_t i = 0; i < count; i++)
			loops->scale(packed + (h * count + i) * d, q + i * plan->Q.stride, d, plan->shape->scale);
	}
}

void fp_cpu_shape_scores(float *scores, int64_t count, float cap, const float *bias, float *slopes)
{
	for (int64_t j = 0; j < count && cap > 0; j++) {
		float share = tanhf(scores[j] / cap);
		scores[j] = cap * share;
		if (slopes)
			slopes[j] = 1.0f - share * share;
	}
	for (int64_t j = 0; j < count && bias; j++)
		scores[j] += bias[j];
}

/* The biases of a head's keys from position `begin` on, or NULL. */
static const float *key_bias(const fp_attention_shape *shape, int64_t head, int64_t begin)
{
	fp_matrix bias = shape->key_bias;
	return fp_matrix_is_absent(bias) ? NULL : fp_cpu_floats(bias) + head * bias.stride + begin;
}

/* Replaces the scores of one row for keys [begin, end) by exponentials and rescales the row's running sums. */
static void softmax_row(const attention_plan *plan, const fp_cpu_loops *loops, attention_scratch *scratch, int64_t row,
						int64_t query, int64_t begin, int64_t end)
{
	int64_t window = plan->shape->window, d = plan->shape->head_dim;
	int64_t from = window > 0 ? fp_larger(begin, query - window + 1) : begin;
	int64_t to = fp_smaller(end, query + 1);
	float *scores = scratch->scores + row * KEY_BLOCK;
	if (from >= to) {
		memset(scores, 0, (size_t)(end - begin) * sizeof *scores);
		return;
	}
	float before = scratch->maximum[row];
	float block = loops->maximum(scores + (from - begin), to - from);
	float now = block > before || isnan(block) ? block : before;
	if (now != before) {
		float factor = expf(before - now); /* 0 at the first block: exp(−inf) */
		scratch->maximum[row] = now;
		scratch->sum[row] *= (double)factor;
		loops->scale(scratch->output + row * d, scratch->output + row * d, d, factor);
	}
	if (from > begin)
		memset(scores, 0, (size_t)(from - begin) * sizeof *scores);
	scratch->sum[row] += loops->exp_store(scores + (from - begin), to - from, now);
	if (to < end)
		memset(scores + (to - begin), 0, (size_t)(end - to) * sizeof *scores);
}

static void multiply(const attention_plan *plan, const attention_scratch *scratch, fp_cpu_product product)
{
	fp_cpu_multiply_alone(plan->engine, &product, scratch->space);
}

/* scores ← queries·keysᵀ, for `rows` rows and `count` keys */
static fp_cpu_product scores_product(const attention_plan *plan, const attention_scratch *scratch, int64_t rows,
									 const float *keys, int64_t count)
{
	int64_t d = plan->shape->head_dim;
	return (fp_cpu_product){.m = rows,
							.n = count,
							.k = d,
							.A = scratch->queries,
							.lda = d,
							.B = keys,
							.ldb = plan->K.stride,
							.tb = true,
							.C = scratch->scores,
							.ldc = KEY_BLOCK,
							.alpha = 1,
							.split = plan->split,
							.threads = 1};
}

/* output ← output + scores·values */
static fp_cpu_product output_product(const attention_plan *plan, const attention_scratch *scratch, int64_t rows,
									 const float *values, int64_t count)
{
	int64_t d = plan->shape->head_dim;
	return (fp_cpu_product){.m = rows,
							.n = d,
							.k = count,
							.A = scratch->scores,
							.lda = KEY_BLOCK,
							.B = values,
							.ldb = plan->V.stride,
							.C = scratch->output,
							.ldc = d,
							.alpha = 1,
							.beta = 1,
							.split = plan->split,
							.threads = 1};
}

/* Bytes of work space of a thread's products, whole cache lines. */
static int64_t space_of(const attention_plan *plan)
{
	attention_scratch none = {0};
	if (!plan->engine)
		return 0;
	fp_cpu_product scores = scores_product(plan, &none, plan->rows, NULL, KEY_BLOCK);
	fp_cpu_product output = output_product(plan, &none, plan->rows, NULL, KEY_BLOCK);
	return (fp_larger(plan->engine->space(plan->engine, &scores), plan->engine->space(plan->engine, &output)) + 127) /
		   64 * 64;
}

/* `first`: the block's first query, counted from the sequence's first one. */
static void attend_block(const attention_plan *plan, const fp_cpu_loops *loops, attention_scratch *scratch,
						 int64_t sequence, int64_t kv_head, int64_t first)
{
	const fp_attention_shape *shape = plan->shape;
	int64_t d = shape->head_dim, start = sequence * fp_attention_key_rows(shape);
	int64_t count = fp_smaller(plan->queries, shape->length - first);
	int64_t rows = plan->group * count, row = sequence * shape->length + first;
	gather_queries(plan, loops, row, count, kv_head, scratch->queries);
	first += shape->past;
	memset(scratch->output, 0, (size_t)(rows * d) * sizeof *scratch->output);
	for (int64_t r = 0; r < rows; r++) {
		scratch->maximum[r] = -INFINITY;
		scratch->sum[r] = 0;
	}
	int64_t last = first + count;
	int64_t begin = shape->window > 0 ? fp_larger(0, first - shape->window + 1) : 0;
	for (; begin < last; begin += KEY_BLOCK) {
		int64_t end = fp_smaller(begin + KEY_BLOCK, last);
		const float *k = fp_cpu_floats(plan->K) + (start + begin) * plan->K.stride + kv_head * d;
		const float *v = fp_cpu_floats(plan->V) + (start + begin) * plan->V.stride + kv_head * d;
		bool masked = plan->group == 1 && end > first; /* rows of several heads are not in the order of their queries */
		fp_cpu_product scores = scores_product(plan, scratch, rows, k, end - begin);
		fp_cpu_product output = output_product(plan, scratch, rows, v, end - begin);
		scores.lower_C = output.lower_A = masked;
		scores.reach = output.reach = first - begin;
		multiply(plan, scratch, scores);
		for (int64_t r = 0; r < rows && !fp_attention_is_plain(shape); r++)
			fp_cpu_shape_scores(scratch->scores + r * KEY_BLOCK, end - begin, shape->soft_cap,
								key_bias(shape, kv_head * plan->group + r / count, begin), NULL);
		for (int64_t r = 0; r < rows; r++)
			softmax_row(plan, loops, scratch, r, first + r % count, begin, end);
		multiply(plan, scratch, output);
	}
	for (int64_t h = 0; h < plan->group; h++) {
		float *out = fp_cpu_floats(plan->out) + row * plan->out.stride + (kv_head * plan->group + h) * d;
		for (int64_t i = 0; i < count; i++) {
			int64_t r = h * count + i;
			loops->scale(out + i * plan->out.stride, scratch->output + r * d, d, (float)(1 / scratch->sum[r]));
		}
	}
}

/* The last queries have the most keys. They go first, so that no long item is left for the end. */
static void attend(const attention_plan *plan, const fp_cpu_loops *loops, attention_scratch *scratch, int64_t item)
{
	int64_t heads = plan->shape->kv_heads;
	int64_t pair = item % (plan->shape->sequences * heads);
	int64_t block = plan->blocks - 1 - item / (plan->shape->sequences * heads);
	attend_block(plan, loops, scratch, pair / heads, pair % heads, block * plan->queries);
}

static attention_plan plan_of(const fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
							  fp_matrix V, fp_matrix out)
{
	fp_cpu_arithmetic how = fp_cpu_arithmetic_wanted(be);
	attention_plan plan = {.shape = shape, .Q = Q, .K = K, .V = V, .out = out};
	plan.group = shape->heads / shape->kv_heads;
	bool is_long = ROWS_LONG / plan.group * LONG_BLOCKS <= shape->length;
	plan.queries = fp_larger(1, fp_smaller((is_long ? ROWS_LONG : ROWS_SHORT) / plan.group, shape->length));
	plan.blocks = (shape->length + plan.queries - 1) / plan.queries;
	plan.rows = plan.group * plan.queries;
	if (how != FP_CPU_FLOAT && plan.rows >= FP_CPU_NARROWEST && shape->head_dim >= FP_CPU_NARROWEST)
		plan.engine = ((const fp_cpu_state *)be->state)->bf16.engine;
	plan.split = how == FP_CPU_SPLIT;
	return plan;
}

fp_status fp_cpu_attention(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
						   fp_matrix out)
{
	FP_REQUIRE(be, fp_cpu_is_f32(Q) && fp_cpu_is_f32(K) && fp_cpu_is_f32(V) && fp_cpu_is_f32(out));
	FP_REQUIRE(be, shape->head_dim > 0 && shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0);
	int64_t tokens = shape->sequences * shape->length, keys = shape->sequences * fp_attention_key_rows(shape);
	FP_REQUIRE(be, Q.rows == tokens && K.rows == keys && V.rows == keys && out.rows == tokens);
	FP_REQUIRE(be, shape->past >= 0 && fp_attention_key_rows(shape) >= fp_attention_keys(shape));
	FP_REQUIRE(be, Q.cols == shape->heads * shape->head_dim && out.cols == Q.cols);
	FP_REQUIRE(be, K.cols == shape->kv_heads * shape->head_dim && V.cols == K.cols);
	FP_REQUIRE(be, K.stride <= INT32_MAX && V.stride <= INT32_MAX && shape->window >= 0);
	FP_REQUIRE(be, fp_cpu_is_key_bias(shape));
	if (tokens == 0 || shape->heads == 0)
		return FP_OK;
	attention_plan plan = plan_of(be, shape, Q, K, V, out);
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	int64_t items = shape->sequences * shape->kv_heads * plan.blocks;
	int threads = (int)fp_smaller(be->threads, items);
	int64_t floats = plan.rows * (2 * shape->head_dim + KEY_BLOCK + 1);
	floats = (floats + 31) / 16 * 16; /* the next thread's share starts on another cache line */
	fp_status status;
	float *memory = NULL;
	double *sums = NULL;
	uint8_t *spaces = NULL;
	int64_t space = space_of(&plan);
	FP_TRY(FP_NEW(be->ctx, &spaces, space * threads));
	FP_TRY(FP_NEW(be->ctx, &memory, floats * threads));
	FP_TRY(FP_NEW(be->ctx, &sums, plan.rows * threads));
	int before = fp_cpu_blas_begin(threads);
#pragma omp parallel num_threads(threads)
	{
		float *own = memory + floats * omp_get_thread_num();
		attention_scratch scratch = {.queries = own};
		scratch.output = scratch.queries + plan.rows * shape->head_dim;
		scratch.scores = scratch.output + plan.rows * shape->head_dim;
		scratch.maximum = scratch.scores + plan.rows * KEY_BLOCK;
		scratch.sum = sums + plan.rows * omp_get_thread_num();
		scratch.space = spaces + space * omp_get_thread_num();
#pragma omp for schedule(dynamic)
		for (int64_t item = 0; item < items; item++)
			attend(&plan, loops, &scratch, item);
	}
	fp_cpu_blas_end(before);

cleanup:
	fp_free(spaces);
	fp_free(sums);
	fp_free(memory);
	return status;
}
