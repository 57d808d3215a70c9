/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_decode.c: products with held weights: which loops, rows of X in their order, and blocks shared among threads. */
#include "backend/cpu/cpu_backend.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "tensor/dtype_convert.h"
#include <string.h>

#if defined(__x86_64__)
static bool has_avx2(void)
{
	return fp_dtype_simd_works() && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2");
}
#endif

const fp_cpu_decode_loops *fp_cpu_decode_loops_best(void)
{
#if defined(__x86_64__)
	if (has_avx512())
		return &fp_cpu_decode_avx512;
	if (has_avx2())
		return &fp_cpu_decode_avx2;
#endif
	return &fp_cpu_decode_plain;
}

const fp_cpu_decode_loops *fp_cpu_decode_loops_named(const char *name)
{
	if (strcmp(name, fp_cpu_decode_plain.name) == 0)
		return &fp_cpu_decode_plain;
#if defined(__x86_64__)
	if (strcmp(name, fp_cpu_decode_avx2.name) == 0 && has_avx2())
		return &fp_cpu_decode_avx2;
	if (strcmp(name, fp_cpu_decode_avx512.name) == 0 && has_avx512())
		return &fp_cpu_decode_avx512;
#endif
	return NULL;
}

/* A row of X, padded with zeros to whole pieces, in the order in which the loops read it. */
static void arrange(float *out, const float *x, int64_t cols, bool even_odd)
{
	if (!even_odd) {
		memcpy(out, x, (size_t)cols * sizeof *x);
		return;
	}
	for (int64_t j = 0; j < cols; j++) {
		int64_t in_piece = j % FP_CPU_PIECE;
		out[j - in_piece + in_piece / 2 + in_piece % 2 * (FP_CPU_PIECE / 2)] = x[j];
	}
}

static fp_cpu_block block_at(const fp_held *W, int64_t block)
{
	int64_t size = fp_dtype_size(W->dtype), pieces = fp_cpu_pieces(W->cols);
	int64_t entries = block * FP_CPU_BLOCK * pieces * FP_CPU_PIECE;
	fp_cpu_block b = {.values = W->values.buffer->data, .pieces = pieces, .stride = pieces * FP_CPU_PIECE * size};
	if (W->form == FP_HELD_DENSE)
		b.values += entries * size;
	else
		b.positions = fp_cpu_bytes(W->positions) + entries / 8;
	if (W->form == FP_HELD_MASK)
		b.values += ((const int64_t *)W->offsets.buffer->data)[block] * size;
	if (W->form == FP_HELD_TWO_OF_FOUR)
		b.values += entries / 2 * size;
	return b;
}

/* The four outputs of a block for all rows of X. */
static void multiply_block(fp_cpu_block_loop loop, const fp_held *W, int64_t block, const float *x, int64_t x_stride,
						   int64_t batch, bool add, fp_matrix Y)
{
	fp_cpu_block b = block_at(W, block);
	int64_t first = block * FP_CPU_BLOCK, rows = fp_smaller(FP_CPU_BLOCK, W->rows - first);
	for (int64_t i = 0; i < batch; i += FP_CPU_TOGETHER) {
		float y[FP_CPU_TOGETHER][FP_CPU_BLOCK];
		int together = (int)fp_smaller(FP_CPU_TOGETHER, batch - i);
		loop(&b, x + i * x_stride, x_stride, together, y);
		for (int k = 0; k < together; k++) {
			float *out = fp_cpu_floats(Y) + (i + k) * Y.stride + first;
			for (int64_t r = 0; r < rows; r++)
				out[r] = add ? out[r] + y[k][r] : y[k][r];
		}
	}
}

/* Threads take runs of blocks: of enough bytes for streams, but a few for each thread, to share evenly. */
enum { LEAST_RUN = 256 << 10, MOST_RUN = 2 << 20, RUNS_OF_THREAD = 4 };

typedef struct held_runs {
	int64_t blocks;     /* of a matrix */
	int64_t run, count; /* blocks of a run, and runs */
} held_runs;

static held_runs cut(const fp_held *W, int threads)
{
	held_runs r = {.blocks = fp_cpu_block_count(W->rows)};
	int64_t bytes = fp_larger(W->bytes, 1);
	int64_t wanted = fp_smaller(MOST_RUN, fp_larger(LEAST_RUN, bytes / (RUNS_OF_THREAD * threads)));
	r.run = fp_larger(1, (int64_t)((double)r.blocks * (double)wanted / (double)bytes));
	r.count = (r.blocks + r.run - 1) / r.run;
	return r;
}

/* X in the orders that the loops want: as it is, and even_odd. */
typedef struct arranged_rows {
	float *x[2];
	int64_t stride, count;
} arranged_rows;

static void multiply_all(fp_backend *be, const arranged_rows *rows, int count, const fp_held *const *W, bool add,
						 const fp_matrix *Y)
{
	const fp_cpu_decode_loops *loops = ((const fp_cpu_state *)be->state)->decode;
	held_runs runs[FP_DECODE_PARTS];
	int64_t total = 0, entries = 0;
	for (int i = 0; i < count; i++) {
		runs[i] = cut(W[i], be->threads);
		total += runs[i].count;
		entries += W[i]->rows * W[i]->cols;
	}
	(void)entries; /* a build without OpenMP, as of the fuzz targets, has no use for it */
#pragma omp parallel for num_threads(be->threads) schedule(dynamic, 1) if (entries >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < total; t++) {
		int part = 0;
		int64_t at = t;
		for (; at >= runs[part].count; part++)
			at -= runs[part].count;
		const fp_held *w = W[part];
		const float *x = rows->x[loops->even_odd && w->dtype == FP_BF16];
		int64_t end = fp_smaller(runs[part].blocks, (at + 1) * runs[part].run);
		for (int64_t block = at * runs[part].run; block < end; block++)
			multiply_block(loops->multiply[w->form][w->dtype], w, block, x, rows->stride, rows->count, add, Y[part]);
	}
}

fp_status fp_cpu_multiply_held(fp_backend *be, fp_matrix X, int count, const fp_held *const *W, bool add,
							   const fp_matrix *Y)
{
	fp_status status = FP_OK;
	const fp_cpu_decode_loops *loops = ((const fp_cpu_state *)be->state)->decode;
	arranged_rows rows = {.stride = fp_cpu_pieces(X.cols) * FP_CPU_PIECE, .count = X.rows};
	FP_REQUIRE(be, fp_cpu_is_f32(X) && X.rows >= 1 && X.rows <= FP_DECODE_BATCH);
	FP_REQUIRE(be, count >= 1 && count <= FP_DECODE_PARTS);
	for (int i = 0; i < count; i++)
		FP_REQUIRE(be, W[i]->cols == X.cols && fp_cpu_is_f32(Y[i]) && Y[i].rows == X.rows && Y[i].cols == W[i]->rows);
	for (int i = 0; i < count; i++) {
		bool even_odd = loops->even_odd && W[i]->dtype == FP_BF16;
		if (rows.x[even_odd])
			continue;
		FP_TRY(FP_NEW(be->ctx, &rows.x[even_odd], X.rows * rows.stride));
		for (int64_t b = 0; b < X.rows; b++)
			arrange(rows.x[even_odd] + b * rows.stride, fp_cpu_floats(X) + b * X.stride, X.cols, even_odd);
	}
	multiply_all(be, &rows, count, W, add, Y);

cleanup:
	fp_free(rows.x[0]);
	fp_free(rows.x[1]);
	return status;
}

/* --- the memory's speed ----------------------------------------------------------------------------------------- */

/* Four streams, which keep more of the memory's channels busy than one. */
static uint64_t read_all(const uint64_t *words, int64_t count)
{
	uint64_t sum[4] = {0, 0, 0, 0};
	const uint64_t *b = words + count / 4, *c = words + count / 2, *d = words + count / 4 * 3;
	for (int64_t i = 0; i + 8 <= count / 4; i += 8)
		for (int64_t j = i; j < i + 8; j++) {
			sum[0] ^= words[j];
			sum[1] ^= b[j];
			sum[2] ^= c[j];
			sum[3] ^= d[j];
		}
	return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

fp_status fp_cpu_read_time(fp_backend *be, int64_t bytes, double *seconds)
{
	enum { REPEATS = 7 };
	fp_status status;
	uint64_t *words = NULL;
	int64_t share = bytes / (int64_t)sizeof *words / be->threads / 64 * 64;
	volatile uint64_t keep = 0;
	*seconds = 0;
	FP_TRY(FP_NEW(be->ctx, &words, share * be->threads));
	for (int r = 0; r < REPEATS; r++) {
		uint64_t sum = 0;
		double started = fp_clock();
#pragma omp parallel for num_threads(be->threads) schedule(static, 1) reduction(^ : sum)
		for (int64_t t = 0; t < be->threads; t++)
			sum ^= read_all(words + t * share, share);
		double took = fp_clock() - started;
		keep = keep ^ sum;
		*seconds = r == 0 || took < *seconds ? took : *seconds;
	}
	/* of the bytes asked for, not of those rounded to whole streams */
	*seconds *= (double)bytes / (double)fp_larger(share * be->threads * (int64_t)sizeof *words, 1);

cleanup:
	fp_free(words);
	return status;
}
