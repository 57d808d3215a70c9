/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_bf16_multiply.c: products in BF16 by an engine, in pieces that are packed (cpu_bf16_tiles.h) and tasks of threads.
 * The order of the sums depends on k only, not on the number of threads.
 */
#include "backend/cpu/cpu_bf16_tiles.h"

#include "base/memory.h"
#include "base/numbers.h"

#if defined(__x86_64__) && defined(__linux__)

#include <omp.h>

enum {
	TASK_ROWS = 16, /* panels of a part of C that one thread computes: it stays in the L2 cache */
	TASK_COLS = 8,
	TASK = TASK_ROWS * TASK_COLS * FP_BF16_SQUARE, /* entries of its sums */
	BLOCK = 16 << 20, /* entries of an operand that are packed at once; fp_packed_bytes() knows it */
	LONGEST = 16384,  /* entries of k that are packed at once */
};

static int64_t tasks_of(int64_t panels, int64_t size)
{
	return (panels + size - 1) / size;
}

/* Smaller tasks where there are few: which thread computes a square does not change its sums. */
static void choose_tasks(fp_bf16_product *t, int64_t left, int64_t right)
{
	int64_t wanted = t->product->threads > 1 ? t->kernel->tasks * t->product->threads : 1;
	t->rows = TASK_ROWS;
	t->cols = TASK_COLS;
	while (t->rows > 1 && tasks_of(left, t->rows) * tasks_of(right, t->cols) < wanted) {
		if (t->rows > t->cols)
			t->rows /= 2;
		else
			t->cols /= 2;
	}
}

static void begin(const fp_bf16_kernel *kernel)
{
	if (kernel->begin)
		kernel->begin();
}

static void end(const fp_bf16_kernel *kernel)
{
	if (kernel->end)
		kernel->end();
}

/* Packs what has to be packed, and multiplies. */
static void multiply_packed(fp_bf16_product *t, bool pack_left, bool pack_right)
{
	int64_t left = fp_bf16_panels(t->A.count), right = fp_bf16_panels(t->B.count);
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
			fp_bf16_pack(of_left ? &t->A : &t->B, both ? &t->B : NULL, of_left || !pack_left ? panel : panel - left);
		}
		begin(t->kernel);
#pragma omp for schedule(dynamic)
		for (int64_t task = 0; task < tasks; task++)
			fp_bf16_multiply_task(t, task % down * t->rows, task / down * t->cols,
								  t->sums + omp_get_thread_num() * (int64_t)TASK);
		end(t->kernel);
	}
}

/* --- a product in pieces ------------------------------------------------------------------------------------------ */

/* The number of rows, of `count`, that are packed at once with k entries each. */
static int64_t piece_of(int64_t count, int64_t k)
{
	int64_t size = BLOCK / k / (TASK_ROWS * FP_BF16_STEP) * (TASK_ROWS * FP_BF16_STEP);
	return fp_smaller(size, count);
}

/* Room for an operand of count × k entries. */
static fp_status make_room(fp_context *ctx, uint16_t **out, int64_t *capacity, int64_t count, int64_t k,
						   fp_bf16_operand *o)
{
	int64_t entries = fp_bf16_panels(count) * fp_bf16_steps(k) * 2 * FP_BF16_TILE,
			size = o->split ? 2 * entries : entries;
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

static fp_status make_sums(fp_context *ctx, fp_cpu_bf16 *own, int threads)
{
	if (own->threads >= threads)
		return FP_OK;
	fp_free(own->sums);
	own->threads = 0;
	fp_status status = FP_NEW(ctx, &own->sums, threads * (int64_t)TASK);
	own->threads = status == FP_OK ? threads : 0;
	return status;
}

fp_status fp_bf16_multiply(fp_cpu_bf16 *opened, fp_context *ctx, const fp_cpu_product *p)
{
	fp_status status = FP_OK;
	int64_t k = fp_smaller(p->k, LONGEST), m = piece_of(p->m, k), n = piece_of(p->n, k);
	fp_bf16_product t = {.kernel = opened->engine->kernel,
						 .product = p,
						 .A = {.stride = p->lda, .along = !p->ta, .split = p->split},
						 .B = {.stride = p->ldb, .along = p->tb, .right = true, .split = p->split}};
	t.A.longest = t.B.longest = opened->engine->kernel->chunk;
	FP_TRY(make_room(ctx, &opened->left, &opened->left_size, m, k, &t.A));
	FP_TRY(make_room(ctx, &opened->right, &opened->right_size, n, k, &t.B));
	FP_TRY(make_sums(ctx, opened, p->threads));
	t.sums = opened->sums;
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
	return (split ? 2 : 1) * fp_bf16_panels(count) * fp_bf16_steps(k) * 2 * FP_BF16_TILE;
}

int64_t fp_bf16_space(const fp_cpu_bf16_engine *engine, const fp_cpu_product *p)
{
	int64_t squares = fp_bf16_chunks(p->k, engine->kernel->chunk) > 1 ? fp_bf16_panels(p->m) * fp_bf16_panels(p->n) : 1;
	int64_t entries = packed_entries(p->m, p->k, p->split) + packed_entries(p->n, p->k, p->split);
	return entries * (int64_t)sizeof(uint16_t) + squares * FP_BF16_SQUARE * (int64_t)sizeof(float);
}

static void pack_all(fp_bf16_operand *o, uint16_t *space)
{
	o->high = space;
	o->low = space + packed_entries(o->count, o->k, false);
	for (int64_t panel = 0; panel < fp_bf16_panels(o->count); panel++)
		fp_bf16_pack(o, NULL, panel);
}

void fp_bf16_multiply_alone(const fp_cpu_bf16_engine *engine, const fp_cpu_product *p, void *space)
{
	uint16_t *left = space, *right = left + packed_entries(p->m, p->k, p->split);
	fp_bf16_operand A = {.data = p->A, .stride = p->lda, .count = p->m, .k = p->k, .along = !p->ta, .split = p->split};
	fp_bf16_operand B = {.data = p->B, .stride = p->ldb, .count = p->n, .k = p->k, .along = p->tb, .split = p->split};
	B.right = true;
	A.longest = B.longest = engine->kernel->chunk;
	pack_all(&A, left);
	pack_all(&B, right);
	fp_bf16_product t = {.kernel = engine->kernel,
						 .product = p,
						 .A = A,
						 .B = B,
						 .C = p->C,
						 .beta = p->beta,
						 .rows = fp_bf16_panels(p->m),
						 .cols = fp_bf16_panels(p->n)};
	begin(engine->kernel);
	fp_bf16_multiply_task(&t, 0, 0, (float *)(void *)(right + packed_entries(p->n, p->k, p->split)));
	end(engine->kernel);
}

#endif
