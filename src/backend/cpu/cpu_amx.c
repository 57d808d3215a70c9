/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_amx.c: products in BF16 by AMX (cpu_amx.h). The kernel keeps 2 × 2 tiles of C in registers. The order of the sums
 * depends on k only, not on the number of threads.
 */
#include "backend/cpu/cpu_amx.h"

#include "backend/cpu/cpu_bf16.h"
#include "base/memory.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SIDE = FP_AMX_SIDE,
	STEP = FP_AMX_STEP,
	TILE = FP_AMX_TILE,
	TASK_ROWS = 16, /* panels of a part of C that one thread computes: it stays in the L2 cache */
	TASK_COLS = 8,
	SQUARE = STEP * STEP, /* entries of C in one row and one column panel */
	TASK = TASK_ROWS * TASK_COLS * SQUARE,
	TASKS = 4,        /* at least so many parts for each thread, if C has them */
	BLOCK = 16 << 20, /* entries of an operand that are packed at once; fp_packed_bytes() knows it */
	LONGEST = 16384,  /* entries of k that are packed at once */
};

typedef struct amx {
	uint16_t *left, *right; /* packed operands: high parts, and low ones behind them */
	int64_t left_size, right_size;
	float *sums; /* of a task, for each thread */
	int threads;
} amx;

/* --- the kernel --------------------------------------------------------------------------------------------------- */

/* Eight tiles of 16 rows of 64 bytes. The compiler believes that _tile_loadconfig() reads eight bytes only, so that the
 * numbers must not be made on the stack. */
static const struct {
	uint8_t palette, start, zero[14];
	uint16_t bytes[16];
	uint8_t rows[16];
} tile_shapes = {
	.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};

FP_AMX static void begin_tiles(void)
{
	_tile_loadconfig(&tile_shapes);
}

FP_AMX static void end_tiles(void)
{
	_tile_release();
}

/* Tiles 0 to 3, 2 × 2 tiles of C, += the product of two panels over `steps` steps. */
FP_AMX static inline void add_rounded(const uint16_t *a, const uint16_t *b, int64_t steps)
{
	for (int64_t s = 0; s < steps; s++, a += 2 * TILE, b += 2 * TILE) {
		_tile_loadd(4, a, 64);
		_tile_loadd(6, b, 64);
		_tile_loadd(7, b + TILE, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
}

/* The same of split operands: high·high + low·high + high·low. */
FP_AMX static inline void add_split(const uint16_t *a, const uint16_t *a_low, const uint16_t *b, const uint16_t *b_low,
									int64_t steps)
{
	for (int64_t at = 0; at < steps * 2 * TILE; at += 2 * TILE) {
		_tile_loadd(6, b + at, 64);
		_tile_loadd(7, b + at + TILE, 64);
		_tile_loadd(4, a_low + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a_low + at + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		_tile_loadd(4, a + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a + at + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		_tile_loadd(6, b_low + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(2, 5, 6);
		_tile_loadd(7, b_low + at + TILE, 64);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(3, 5, 7);
	}
}

static inline __mmask16 first(int64_t count)
{
	return count >= SIDE ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* C ← α sums + β C for rows × cols of a panel's square; sums: its four tiles, one after the other. */
FP_AMX static void store_part(const float *sums, float alpha, float beta, float *C, int64_t ldc, int64_t rows,
							  int64_t cols)
{
	for (int64_t i = 0; i < rows && i < STEP; i++)
		for (int64_t j = 0; j < STEP; j += SIDE) {
			__mmask16 mask = first(cols - j);
			const float *sum = sums + i / SIDE * (SQUARE / 2) + j * SIDE + i % SIDE * SIDE;
			__m512 value = _mm512_mul_ps(_mm512_set1_ps(alpha), _mm512_load_ps(sum));
			if (beta != 0.0f)
				value = _mm512_fmadd_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(mask, C + i * ldc + j), value);
			_mm512_mask_storeu_ps(C + i * ldc + j, mask, value);
		}
}

/* A product of packed operands. */
typedef struct packed {
	const fp_cpu_product *product;
	fp_amx_operand A, B;
	float *C; /* of this piece */
	float beta;
	int64_t skip;       /* with `upper`: column j of this piece is wanted in rows up to j + skip */
	int64_t rows, cols; /* of a task, in panels */
	float *sums;        /* those of a task, for each thread */
} packed;

/* The square of C at row panel i and column panel j, one chunk of it. `sums`, square by square, hold the sums between two
 * chunks: in C itself they would lie in lines that displace each other from the cache. */
FP_AMX static void multiply_square(const packed *t, int64_t i, int64_t j, fp_amx_chunk now, float *sums)
{
	const fp_cpu_product *p = t->product;
	int64_t a = fp_amx_offset(&t->A, i, now), b = fp_amx_offset(&t->B, j, now);
	int64_t rows = t->A.count - i * STEP, cols = t->B.count - j * STEP, line = p->ldc * (int64_t)sizeof(float);
	float *C = t->C + i * STEP * p->ldc + j * STEP;
	bool last = now.from + now.steps == fp_amx_steps(t->A.k);
	if (now.from > 0) {
		_tile_loadd(0, sums, 64);
		_tile_loadd(1, sums + SQUARE / 4, 64);
		_tile_loadd(2, sums + SQUARE / 2, 64);
		_tile_loadd(3, sums + 3 * SQUARE / 4, 64);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	if (p->split)
		add_split(t->A.high + a, t->A.low + a, t->B.high + b, t->B.low + b, now.steps);
	else
		add_rounded(t->A.high + a, t->B.high + b, now.steps);
	if (last && rows >= STEP && cols >= STEP && p->alpha == 1.0f && t->beta == 0.0f) {
		_tile_stored(0, C, line);
		_tile_stored(1, C + SIDE, line);
		_tile_stored(2, C + SIDE * p->ldc, line);
		_tile_stored(3, C + SIDE * p->ldc + SIDE, line);
		return;
	}
	_tile_stored(0, sums, 64);
	_tile_stored(1, sums + SQUARE / 4, 64);
	_tile_stored(2, sums + SQUARE / 2, 64);
	_tile_stored(3, sums + 3 * SQUARE / 4, 64);
	if (last)
		store_part(sums, p->alpha, t->beta, C, p->ldc, rows, cols);
}

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Asks for part `at` of `parts` of a panel's part of a chunk, so that it is on its way to the L2 cache. */
static void fetch_part(const fp_amx_operand *o, int64_t panel, fp_amx_chunk chunk, int64_t at, int64_t parts)
{
	enum { LINE = 32 }; /* entries */
	int64_t lines = chunk.steps * (2 * TILE / LINE), from = lines * at / parts, to = lines * (at + 1) / parts;
	int64_t start = fp_amx_offset(o, panel, chunk);
	for (int64_t i = from; i < to; i++)
		__builtin_prefetch(o->high + start + i * LINE, 0, 2);
	for (int64_t i = from; i < to && o->split; i++)
		__builtin_prefetch(o->low + start + i * LINE, 0, 2);
}

/* Asks for the lines of a square of C: writing to a line first reads it. */
static void fetch_square(const packed *t, int64_t i, int64_t j)
{
	int64_t rows = smaller(t->A.count - i * STEP, STEP), cols = t->B.count - j * STEP;
	const float *C = t->C + i * STEP * t->product->ldc + j * STEP;
	for (int64_t r = 0; r < rows; r++, C += t->product->ldc) {
		__builtin_prefetch(C, 1, 2);
		if (cols > SIDE)
			__builtin_prefetch(C + SIDE, 1, 2);
	}
}

/* One task: a part of C, t->rows × t->cols panels. */
static void multiply_task(const packed *t, int64_t row, int64_t col, float *sums)
{
	int64_t rows = smaller(t->rows, fp_amx_panels(t->A.count) - row),
			cols = smaller(t->cols, fp_amx_panels(t->B.count) - col);
	for (int64_t c = 0; c < fp_amx_chunks(t->A.k); c++) {
		fp_amx_chunk now = fp_amx_chunk_at(t->A.k, c), next = fp_amx_chunk_at(t->A.k, c + 1);
		for (int64_t j = 0; j < cols; j++)
			for (int64_t i = 0; i < rows; i++) {
				if (t->product->upper && (row + i) * STEP > (col + j) * STEP + STEP - 1 + t->skip)
					break;
				if (next.steps == 0)
					fetch_square(t, row + i, col + j);
				fetch_part(&t->A, row + i, next, j, cols);
				fetch_part(&t->B, col + j, next, i, rows);
				multiply_square(t, row + i, col + j, now, sums + (j * rows + i) * SQUARE);
			}
	}
}

static int64_t tasks_of(int64_t panels, int64_t size)
{
	return (panels + size - 1) / size;
}

/* Smaller tasks where there are few: which thread computes a square does not change its sums. */
static void choose_tasks(packed *t, int64_t left, int64_t right)
{
	int64_t wanted = t->product->threads > 1 ? TASKS * t->product->threads : 1;
	t->rows = TASK_ROWS;
	t->cols = TASK_COLS;
	while (t->rows > 1 && tasks_of(left, t->rows) * tasks_of(right, t->cols) < wanted) {
		if (t->rows > t->cols)
			t->rows /= 2;
		else
			t->cols /= 2;
	}
}

/* Packs what has to be packed, and multiplies. */
static void multiply_packed(packed *t, bool pack_left, bool pack_right)
{
	int64_t left = fp_amx_panels(t->A.count), right = fp_amx_panels(t->B.count);
	int64_t packing = (pack_left ? left : 0) + (pack_right ? right : 0);
	choose_tasks(t, left, right);
	int64_t down = tasks_of(left, t->rows), tasks = down * tasks_of(right, t->cols);
#pragma omp parallel num_threads(t->product->threads)
	{
#pragma omp for schedule(dynamic)
		for (int64_t panel = 0; panel < packing; panel++) {
			bool of_left = pack_left && panel < left;
			fp_amx_pack(of_left ? &t->A : &t->B, of_left || !pack_left ? panel : panel - left);
		}
		begin_tiles();
#pragma omp for schedule(dynamic)
		for (int64_t task = 0; task < tasks; task++)
			multiply_task(t, task % down * t->rows, task / down * t->cols,
						  t->sums + omp_get_thread_num() * (int64_t)TASK);
		end_tiles();
	}
}

/* --- a product in pieces ------------------------------------------------------------------------------------------ */

/* The number of rows, of `count`, that are packed at once with k entries each. */
static int64_t piece_of(int64_t count, int64_t k)
{
	int64_t size = BLOCK / k / (TASK_ROWS * STEP) * (TASK_ROWS * STEP);
	return smaller(size, count);
}

/* Room for an operand of count × k entries. */
static fp_status make_room(fp_context *ctx, uint16_t **out, int64_t *capacity, int64_t count, int64_t k,
						   fp_amx_operand *o)
{
	int64_t entries = fp_amx_panels(count) * fp_amx_steps(k) * 2 * TILE, size = o->split ? 2 * entries : entries;
	fp_status status = FP_OK;
	if (*capacity < size) {
		fp_free(*out);
		*capacity = 0;
		status = FP_NEW(ctx, out, size);
		*capacity = status == FP_OK ? size : 0;
	}
	o->high = *out;
	o->low = *out + entries;
	return status;
}

static fp_status make_sums(fp_context *ctx, amx *own, int threads)
{
	if (own->threads >= threads)
		return FP_OK;
	fp_free(own->sums);
	own->threads = 0;
	fp_status status = FP_NEW(ctx, &own->sums, threads * (int64_t)TASK);
	own->threads = status == FP_OK ? threads : 0;
	return status;
}

static fp_status amx_multiply(void *state, fp_context *ctx, const fp_cpu_product *p)
{
	amx *own = state;
	fp_status status = FP_OK;
	int64_t k = smaller(p->k, LONGEST), m = piece_of(p->m, k), n = piece_of(p->n, k);
	packed t = {.product = p,
				.A = {.stride = p->lda, .along = !p->ta, .split = p->split},
				.B = {.stride = p->ldb, .along = p->tb, .right = true, .split = p->split}};
	FP_TRY(make_room(ctx, &own->left, &own->left_size, m, k, &t.A));
	FP_TRY(make_room(ctx, &own->right, &own->right_size, n, k, &t.B));
	FP_TRY(make_sums(ctx, own, p->threads));
	t.sums = own->sums;
	for (int64_t at = 0; at < p->k; at += k) {
		t.A.k = t.B.k = smaller(k, p->k - at);
		t.beta = at > 0 ? 1.0f : p->beta;
		for (int64_t j = 0; j < p->n; j += n) {
			t.B.count = smaller(n, p->n - j);
			t.B.data = p->B + (p->tb ? j * p->ldb + at : at * p->ldb + j);
			for (int64_t i = 0; i < p->m; i += m) {
				t.A.count = smaller(m, p->m - i);
				t.A.data = p->A + (p->ta ? at * p->lda + i : i * p->lda + at);
				t.C = p->C + i * p->ldc + j;
				t.skip = j - i;
				multiply_packed(&t, m < p->m || j == 0, i == 0);
			}
		}
	}
cleanup:
	return status;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static bool has_amx(void)
{
	unsigned a, b, c, d, more;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !__get_cpuid_count(7, 1, &more, &b, &c, &a))
		return false;
	return d >> 22 & 1 && d >> 24 & 1 && more >> 5 & 1 && __builtin_cpu_supports("avx512bw") &&
		   __builtin_cpu_supports("avx512vl");
}

/* Linux gives a process the large registers when it asks for them. */
static bool may_use_tiles(void)
{
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
	return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static fp_status amx_open(void **out, fp_context *ctx)
{
	if (!has_amx())
		return fp_fail(ctx, FP_ERROR_DEVICE, "this processor has no AMX");
	if (!may_use_tiles())
		return fp_fail(ctx, FP_ERROR_DEVICE, "the system does not let this process use AMX");
	return fp_allocate(ctx, out, 1, sizeof(amx));
}

static void amx_close(void *state)
{
	amx *own = state;
	fp_free(own->left);
	fp_free(own->right);
	fp_free(own->sums);
	fp_free(own);
}

const fp_cpu_bf16_engine fp_cpu_amx = {
	.name = "AMX",
	.open = amx_open,
	.close = amx_close,
	.multiply = amx_multiply,
};

#endif
