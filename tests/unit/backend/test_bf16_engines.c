/* SPDX-License-Identifier: Apache-2.0 */
/* test_bf16_engines.c: products whose operands are rounded to BF16, against the same numbers in double; each engine of
 * the CPU backend is a part. */
#include "backend/cpu/cpu_bf16.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "support.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdlib.h>

enum { GAP = 5 }; /* columns of memory beside every matrix */
static const float untouched = -77;

typedef struct matrix {
	float *data;
	double *high, *low; /* its entries as the engine must see them: rounded, and what that drops, rounded */
	int64_t rows, cols, stride;
} matrix;

typedef struct fixture {
	fp_context *ctx;
	fp_cpu_bf16 opened;
	uint64_t seed;
} fixture;

static void open_engine(fixture *f, const char *name)
{
	*f = (fixture){.ctx = fp_context_new(), .seed = 7};
	for (int i = 0; fp_cpu_bf16_engines[i]; i++)
		if (strcmp(fp_cpu_bf16_engines[i]->name, name) == 0)
			f->opened.engine = fp_cpu_bf16_engines[i];
	const char *missing = f->opened.engine ? f->opened.engine->missing() : "this build does not have it";
	if (missing) {
		fp_context_free(f->ctx);
		skip_because("products in bf16 by %s: %s", name, missing);
	}
}

static void close_engine(fixture *f)
{
	fp_cpu_bf16_close(&f->opened);
	fp_context_free(f->ctx);
}

static double random_number(fixture *f)
{
	f->seed = f->seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (double)(f->seed >> 11) * 0x1p-52 - 1;
}

/* out ← x, rounded to BF16. */
static void round_all(double *out, const float *x, int64_t count)
{
	uint16_t *halves = malloc((size_t)count * sizeof *halves);
	float *back = malloc((size_t)count * sizeof *back);
	fp_from_float(halves, FP_BF16, x, count);
	fp_to_float(back, halves, FP_BF16, count);
	for (int64_t i = 0; i < count; i++)
		out[i] = back[i];
	free(halves);
	free(back);
}

static matrix new_matrix(fixture *f, int64_t rows, int64_t cols)
{
	matrix m = {.rows = rows, .cols = cols, .stride = cols + GAP};
	m.data = malloc((size_t)(rows * m.stride) * sizeof *m.data);
	m.high = malloc((size_t)(rows * cols) * sizeof *m.high);
	m.low = malloc((size_t)(rows * cols) * sizeof *m.low);
	for (int64_t i = 0; i < rows * m.stride; i++)
		m.data[i] = i % m.stride < cols ? (float)random_number(f) : untouched;
	float *rest = malloc((size_t)cols * sizeof *rest);
	for (int64_t i = 0; i < rows; i++) {
		round_all(m.high + i * cols, m.data + i * m.stride, cols);
		for (int64_t j = 0; j < cols; j++)
			rest[j] = (float)(m.data[i * m.stride + j] - m.high[i * cols + j]);
		round_all(m.low + i * cols, rest, cols);
	}
	free(rest);
	return m;
}

static void free_matrix(matrix *m)
{
	free(m->data);
	free(m->high);
	free(m->low);
}

static int64_t place(const matrix *m, bool turned, int64_t i, int64_t j)
{
	return turned ? j * m->cols + i : i * m->cols + j;
}

typedef struct shape {
	int64_t m, n, k;
	bool ta, tb, split, upper;
	float alpha, beta;
	int threads;
} shape;

/* Every entry, or with `upper` those on and above the diagonal, within the error of k sums in float. */
static void check_entries(const shape *s, const matrix *A, const matrix *B, const matrix *before, const matrix *C)
{
	for (int64_t i = 0; i < s->m; i++) {
		for (int64_t j = s->upper ? i : 0; j < s->n; j++) {
			double sum = 0, size = 0;
			for (int64_t p = 0; p < s->k; p++) {
				int64_t a = place(A, s->ta, i, p), b = place(B, s->tb, p, j);
				double term = A->high[a] * B->high[b];
				if (s->split)
					term += A->low[a] * B->high[b] + A->high[a] * B->low[b];
				sum += term;
				size += fabs(term);
			}
			double old = s->beta == 0 ? 0 : s->beta * before->data[i * before->stride + j];
			double want = s->alpha * sum + old, got = C->data[i * C->stride + j];
			double bound = 0x1p-24 * ((double)(s->k + 8) * fabs(s->alpha) * size + 2 * fabs(old));
			if (!(fabs(got - want) <= bound))
				fail_msg("%lld × %lld × %lld, entry %lld, %lld: %g, wanted %g", (long long)s->m, (long long)s->n,
						 (long long)s->k, (long long)i, (long long)j, got, want);
		}
		for (int64_t j = s->n; j < C->stride; j++)
			assert_true(C->data[i * C->stride + j] == untouched);
	}
}

static fp_cpu_product product_of(const shape *s, const matrix *A, const matrix *B, const matrix *C)
{
	return (fp_cpu_product){.m = s->m,
							.n = s->n,
							.k = s->k,
							.A = A->data,
							.B = B->data,
							.C = C->data,
							.lda = A->stride,
							.ldb = B->stride,
							.ldc = C->stride,
							.ta = s->ta,
							.tb = s->tb,
							.alpha = s->alpha,
							.beta = s->beta,
							.split = s->split,
							.upper = s->upper};
}

static void multiply_alone(fixture *f, const fp_cpu_product *product)
{
	const fp_cpu_bf16_engine *engine = f->opened.engine;
	uint8_t *space = NULL;
	assert_ok(f->ctx, FP_NEW(f->ctx, &space, engine->space(engine, product)));
	engine->multiply_alone(engine, product, space);
	fp_free(space);
}

/* C ← the product of the shape, with so many threads; 0: by the calling thread alone. */
static void multiply(fixture *f, const shape *s, const matrix *A, const matrix *B, matrix *C, int threads)
{
	fp_cpu_product product = product_of(s, A, B, C);
	product.threads = threads;
	if (threads > 0)
		assert_ok(f->ctx, f->opened.engine->multiply(&f->opened, f->ctx, &product));
	else
		multiply_alone(f, &product);
}

static void check(fixture *f, shape s)
{
	if (s.split && !f->opened.engine->splits)
		return;
	matrix A = new_matrix(f, s.ta ? s.k : s.m, s.ta ? s.m : s.k);
	matrix B = new_matrix(f, s.tb ? s.n : s.k, s.tb ? s.k : s.n);
	matrix before = new_matrix(f, s.m, s.n), C[3];
	size_t bytes = (size_t)(s.m * before.stride) * sizeof *before.data;
	bool small = s.k <= 1024; /* sums of longer products are made piece by piece */
	for (int i = 0; i < 3; i++) {
		C[i] = before;
		C[i].data = malloc(bytes);
		memcpy(C[i].data, before.data, bytes);
		for (int64_t j = 0; s.beta == 0 && j < s.m * s.n; j++)
			C[i].data[j / s.n * C[i].stride + j % s.n] = NAN; /* must not be read */
		multiply(f, &s, &A, &B, &C[i], i == 0 ? s.threads : i == 1 || !small ? 1 : 0);
	}
	check_entries(&s, &A, &B, &before, &C[0]);
	for (int64_t i = 0; i < s.m; i++) { /* the number of threads changes nothing */
		int64_t from = i * before.stride + (s.upper ? i : 0);
		for (int j = 1; j < 3 && (!s.upper || i < s.n); j++)
			assert_memory_equal(C[0].data + from, C[j].data + from, (size_t)(s.n - (s.upper ? i : 0)) * sizeof(float));
	}
	for (int i = 0; i < 3; i++)
		free(C[i].data);
	free_matrix(&A);
	free_matrix(&B);
	free_matrix(&before);
}

/* From one entry to several tiles, whole and not. */
static void test_shapes(void **state)
{
	static const int64_t sides[][3] = {{1, 1, 1},    {16, 16, 32}, {17, 33, 31},   {32, 32, 64},
									   {100, 3, 77}, {5, 130, 65}, {97, 129, 640}, {300, 290, 70}};
	static const float factors[][2] = {{1, 0}, {1, 1}, {-0.5f, 1}, {3, -1}};
	fixture f;
	open_engine(&f, *state);
	for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
		for (int bits = 0; bits < 8; bits++) {
			for (size_t j = 0; j < sizeof factors / sizeof *factors; j++) {
				if (sanitized_build && i >= 6 && j != (size_t)bits / 2) /* of the largest, each factor twice */
					continue;
				check(&f, (shape){sides[i][0], sides[i][1], sides[i][2], bits & 1, bits & 2, bits & 4, false,
								  factors[j][0], factors[j][1], 3});
			}
		}
	}
	close_engine(&f);
}

/* More than is packed at once, in each direction. */
static void test_pieces(void **state)
{
	fixture f;
	open_engine(&f, *state);
	for (int split = 0; split < 2; split++)
		check(&f, (shape){20, 18, 16384 + 40, false, true, split, false, 1, 0.5f, 2});
	const int64_t longer = sanitized_build ? 1030 : 2100,
				  shorter = sanitized_build ? 3 : 20; /* 1,024 are packed at once */
	check(&f, (shape){longer, shorter, 16384, false, false, false, false, 1, 1, 2});
	check(&f, (shape){shorter, longer, 16384, true, true, false, false, 1, 0, 2});
	close_engine(&f);
}

/* A Gram matrix: entries below the diagonal may have any value. */
static void test_upper(void **state)
{
	fixture f;
	open_engine(&f, *state);
	for (int split = 0; split < 2; split++) {
		check(&f, (shape){45, 45, 90, true, false, split, true, 1, 0, 2});
		check(&f, (shape){700, 700, 33, true, false, split, true, 1, 1, 3});
	}
	close_engine(&f);
}

/* Parts that a mask makes zero or unwanted may be left out, which changes nothing in the others. */
static void test_lower(void **state)
{
	static const int64_t reaches[] = {-40, -1, 0, 5, 64, 300};
	fixture f;
	open_engine(&f, *state);
	for (size_t r = 0; r < sizeof reaches / sizeof *reaches; r++) {
		shape s = {.m = 100, .n = 600, .k = 600, .alpha = 1};
		int64_t reach = reaches[r];
		matrix A = new_matrix(&f, s.m, s.k), B = new_matrix(&f, s.k, s.n), whole = new_matrix(&f, s.m, s.n);
		matrix part = new_matrix(&f, s.m, s.n);
		for (int64_t i = 0; i < s.m; i++)
			for (int64_t j = fp_larger(0, i + reach + 1); j < s.k; j++)
				A.data[i * A.stride + j] = 0;
		fp_cpu_product product = product_of(&s, &A, &B, &whole);
		multiply_alone(&f, &product);
		product.C = part.data;
		product.ldc = part.stride;
		product.lower_A = product.lower_C = true;
		product.reach = reach;
		multiply_alone(&f, &product);
		for (int64_t i = 0; i < s.m; i++)
			for (int64_t j = 0; j < s.n && j <= i + reach; j++)
				assert_true(part.data[i * part.stride + j] == whole.data[i * whole.stride + j]);
		free_matrix(&A);
		free_matrix(&B);
		free_matrix(&whole);
		free_matrix(&part);
	}
	close_engine(&f);
}

/* Infinity and NaN must not vanish. */
static void test_not_finite(void **state)
{
	fixture f;
	open_engine(&f, *state);
	const float special[] = {NAN, INFINITY, 3.4e38f}; /* the last rounds to infinity */
	for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
		for (int split = 0; split <= f.opened.engine->splits; split++) {
			matrix A = new_matrix(&f, 40, 50), B = new_matrix(&f, 50, 30), C = new_matrix(&f, 40, 30);
			A.data[7 * A.stride + 9] = special[i];
			multiply(&f, &(shape){40, 30, 50, false, false, split, false, 1, 0, 1}, &A, &B, &C, 1);
			for (int64_t row = 0; row < 40; row++)
				for (int64_t j = 0; j < 30; j++)
					assert_int_equal(isfinite(C.data[row * C.stride + j]) != 0, row != 7);
			free_matrix(&A);
			free_matrix(&B);
			free_matrix(&C);
		}
	}
	close_engine(&f);
}

/* What the processor lacks is no failure of the program. */
static void test_choice(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_cpu_bf16 bf16;
	fp_cpu_bf16_open(&bf16, ctx);
	assert_string_equal(fp_context_message(ctx), "");
	fp_cpu_bf16_close(&bf16);
	assert_null(bf16.engine);
	fp_context_free(ctx);
}

#define ENGINE_TESTS(name)                                                                                             \
	{                                                                                                                  \
		cmocka_unit_test_prestate(test_shapes, (void *)(name)),                                                        \
			cmocka_unit_test_prestate(test_pieces, (void *)(name)),                                                    \
			cmocka_unit_test_prestate(test_upper, (void *)(name)),                                                     \
			cmocka_unit_test_prestate(test_lower, (void *)(name)),                                                     \
			cmocka_unit_test_prestate(test_not_finite, (void *)(name)),                                                \
	}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice)};
	const struct CMUnitTest amx[] = ENGINE_TESTS("AMX");
	const struct CMUnitTest avx512[] = ENGINE_TESTS("AVX512-BF16");
	TEST_PART(amx);
	TEST_PART(avx512);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
