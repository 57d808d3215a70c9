/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_amx.c: products in BF16 by AMX (cpu_amx.h), in pieces and tasks of threads. The order of the sums depends on k only,
 * not on the number of threads.
 */
#include "backend/cpu/cpu_amx.h"

#include "base/memory.h"
#include "base/numbers.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	TASK_ROWS = 16, /* panels of a part of C that one thread computes: it stays in the L2 cache */
	TASK_COLS = 8,
	TASK = TASK_ROWS * TASK_COLS * FP_AMX_SQUARE, /* entries of its sums */
	TASKS = 4,                                    /* at least so many parts for each thread, if C has them */
	BLOCK = 16 << 20, /* entries of an operand that are packed at once; fp_packed_bytes() knows it */
	LONGEST = 16384,  /* entries of k that are packed at once */
};

typedef struct amx {
	uint16_t *left, *right; /* packed operands: high parts, and low ones behind them */
	int64_t left_size, right_size;
	float *sums; /* of a task, for each thread */
	int threads;
} amx;

static int64_t tasks_of(int64_t panels, int64_t size)
{
	return (panels + size - 1) / size;
}

/* Smaller tasks where there are few: which thread computes a square does not change its sums. */
static void choose_tasks(fp_amx_product *t, int64_t left, int64_t right)
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
static void multiply_packed(fp_amx_product *t, bool pack_left, bool pack_right)
{
	int64_t left = fp_amx_panels(t->A.count), right = fp_amx_panels(t->B.count);
	/* of a Gram matrix, both operands are the same columns */
	bool both = pack_left && pack_right && t->A.data == t->B.data && t->A.along == t->B.along &&
				t->A.stride == t->B.stride && t->A.count == t->B.count;
	int64_t packing = (pack_left ? left : 0) + (pack_right && !both ? right : 0);
	choose_tasks(t, left, right);
	int64_t down = tasks_of(left, t->rows), tasks = down * tasks_of(right, t->cols);
#pragma omp parallel num_threads(t->product->threads)
	{
#pragma omp for schedule(dynamic)
		for (int64_t panel = 0; panel < packing; panel++) {
			bool of_left = pack_left && panel < left;
			fp_amx_pack(of_left ? &t->A : &t->B, both ? &t->B : NULL, of_left || !pack_left ? panel : panel - left);
		}
		fp_amx_begin();
#pragma omp for schedule(dynamic)
		for (int64_t task = 0; task < tasks; task++)
			fp_amx_multiply(t, task % down * t->rows, task / down * t->cols,
							t->sums + omp_get_thread_num() * (int64_t)TASK);
		fp_amx_end();
	}
}

/* --- a product in pieces ------------------------------------------------------------------------------------------ */

/* The number of rows, of `count`, that are packed at once with k entries each. */
static int64_t piece_of(int64_t count, int64_t k)
{
	int64_t size = BLOCK / k / (TASK_ROWS * FP_AMX_STEP) * (TASK_ROWS * FP_AMX_STEP);
	return fp_smaller(size, count);
}

/* Room for an operand of count × k entries. */
static fp_status make_room(fp_context *ctx, uint16_t **out, int64_t *capacity, int64_t count, int64_t k,
						   fp_amx_operand *o)
{
	int64_t entries = fp_amx_panels(count) * fp_amx_steps(k) * 2 * FP_AMX_TILE, size = o->split ? 2 * entries : entries;
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
	int64_t k = fp_smaller(p->k, LONGEST), m = piece_of(p->m, k), n = piece_of(p->n, k);
	fp_amx_product t = {.product = p,
						.A = {.stride = p->lda, .along = !p->ta, .split = p->split},
						.B = {.stride = p->ldb, .along = p->tb, .right = true, .split = p->split}};
	FP_TRY(make_room(ctx, &own->left, &own->left_size, m, k, &t.A));
	FP_TRY(make_room(ctx, &own->right, &own->right_size, n, k, &t.B));
	FP_TRY(make_sums(ctx, own, p->threads));
	t.sums = own->sums;
	for (int64_t at = 0; at < p->k; at += k) {
		t.A.k = t.B.k = fp_smaller(k, p->k - at);
		t.beta = at > 0 ? 1.0f : p->beta;
		for (int64_t j = 0; j < p->n; j += n) {
			t.B.count = fp_smaller(n, p->n - j);
			t.B.data = p->B + (p->tb ? j * p->ldb + at : at * p->ldb + j);
			for (int64_t i = 0; i < p->m; i += m) {
				t.A.count = fp_smaller(m, p->m - i);
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

/* --- products of one thread --------------------------------------------------------------------------------------- */

static int64_t packed_entries(int64_t count, int64_t k, bool split)
{
	return (split ? 2 : 1) * fp_amx_panels(count) * fp_amx_steps(k) * 2 * FP_AMX_TILE;
}

static int64_t amx_space(const fp_cpu_product *p)
{
	int64_t squares = fp_amx_chunks(p->k) > 1 ? fp_amx_panels(p->m) * fp_amx_panels(p->n) : 1;
	int64_t entries = packed_entries(p->m, p->k, p->split) + packed_entries(p->n, p->k, p->split);
	return entries * (int64_t)sizeof(uint16_t) + squares * FP_AMX_SQUARE * (int64_t)sizeof(float);
}

/* The operand, packed into `space`. */
static fp_amx_operand packed_at(const float *data, int64_t stride, int64_t count, int64_t k, bool along, bool right,
								bool split, uint16_t *space)
{
	fp_amx_operand o = {.data = data, .stride = stride, .count = count, .k = k, .along = along, .right = right};
	o.split = split;
	o.high = space;
	o.low = space + packed_entries(count, k, false);
	for (int64_t panel = 0; panel < fp_amx_panels(count); panel++)
		fp_amx_pack(&o, NULL, panel);
	return o;
}

static void amx_multiply_alone(const fp_cpu_product *p, void *space)
{
	uint16_t *left = space, *right = left + packed_entries(p->m, p->k, p->split);
	fp_amx_product t = {.product = p,
						.A = packed_at(p->A, p->lda, p->m, p->k, !p->ta, false, p->split, left),
						.B = packed_at(p->B, p->ldb, p->n, p->k, p->tb, true, p->split, right),
						.C = p->C,
						.beta = p->beta,
						.rows = fp_amx_panels(p->m),
						.cols = fp_amx_panels(p->n)};
	fp_amx_begin();
	fp_amx_multiply(&t, 0, 0, (float *)(void *)(right + packed_entries(p->n, p->k, p->split)));
	fp_amx_end();
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
	.space = amx_space,
	.multiply_alone = amx_multiply_alone,
};

#endif
