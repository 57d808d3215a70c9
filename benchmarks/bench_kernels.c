/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_kernels: compares each operation of a backend with a large matrix product.
 *
 *     bench_kernels [BACKEND [THREADS [FILTER [PRECISION]]]]     (cpu, all available, every operation, fp32)
 *
 * PRECISION is that of products, as in a forward pass; the peak is that of products in float.
 * Prints the best of several runs. Compute-bound operations: GFLOP/s and the fraction of the sgemm peak
 * measured in the same run. Memory-bound operations: GB/s of the bytes they must read and write; compare
 * with the row "copy".
 */
#include "peak.h"

#include "base/memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
	fp_backend *be;
	double peak;
	const char *filter;
	fp_matrix m[6]; /* operands, allocated by the case */
	fp_matrix mask;
	int32_t *targets;
} bench;

typedef struct shape {
	int64_t a, b, c, d, e;
} shape;

typedef struct kernel {
	const char *name;
	const char *form; /* printf format of the shape */
	fp_status (*prepare)(bench *b, shape s);
	fp_status (*run)(bench *b, shape s);
	double (*flops)(shape s); /* NULL: counts bytes */
	double (*bytes)(shape s);
	shape shapes[11]; /* ends with a == 0 */
} kernel;

static fp_status make(bench *b, int i, int64_t rows, int64_t cols)
{
	fp_status status = fp_matrix_new(b->be, &b->m[i], rows, cols, FP_F32);
	float *host = NULL;
	uint32_t state = (uint32_t)i + 1;
	FP_TRY(status);
	FP_TRY(FP_NEW(b->be->ctx, &host, rows * cols));
	for (int64_t k = 0; k < rows * cols; k++) {
		state = state * 1664525u + 1013904223u;
		host[k] = (float)(state >> 8) / 8388608.0F - 1;
	}
	FP_TRY(b->be->memory->upload(b->be, b->m[i], host, FP_F32, cols));

cleanup:
	fp_free(host);
	return status;
}

static fp_status make_same(bench *b, shape s, int count)
{
	fp_status status = FP_OK;
	for (int i = 0; i < count && status == FP_OK; i++)
		status = make(b, i, s.a, s.b);
	return status;
}

/* --- products: a × b × c -------------------------------------------------------------------------------------- */

static fp_status prepare_gemm(bench *b, shape s)
{
	fp_status status;
	FP_TRY(make(b, 0, s.a, s.c));
	FP_TRY(make(b, 1, s.b, s.c));
	FP_TRY(make(b, 2, s.a, s.b));
cleanup:
	return status;
}

static fp_status run_gemm(bench *b, shape s)
{
	(void)s;
	return b->be->linear->gemm(b->be, 1, b->m[0], FP_PLAIN, b->m[1], FP_TRANSPOSED, 0, b->m[2]);
}

static double flops_gemm(shape s)
{
	return 2.0 * (double)s.a * (double)s.b * (double)s.c;
}

static fp_status prepare_gram(bench *b, shape s)
{
	fp_status status;
	FP_TRY(make(b, 0, s.a, s.b));
	FP_TRY(make(b, 1, s.b, s.b));
cleanup:
	return status;
}

static fp_status run_gram(bench *b, shape s)
{
	(void)s;
	return b->be->linear->gram(b->be, b->m[0], 0, b->m[1]);
}

static double flops_gram(shape s)
{
	return (double)s.a * (double)s.b * (double)(s.b + 1);
}

/* --- attention: sequences, length, heads, kv heads, head size --------------------------------------------------- */

static fp_status prepare_attention(bench *b, shape s)
{
	fp_status status;
	FP_TRY(make(b, 0, s.a * s.b, s.c * s.e));
	FP_TRY(make(b, 1, s.a * s.b, s.d * s.e));
	FP_TRY(make(b, 2, s.a * s.b, s.d * s.e));
	FP_TRY(make(b, 3, s.a * s.b, s.c * s.e));
cleanup:
	return status;
}

static fp_status run_attention(bench *b, shape s)
{
	fp_attention_shape a = {
		.sequences = s.a, .length = s.b, .heads = s.c, .kv_heads = s.d, .head_dim = s.e, .scale = 0.125F};
	return b->be->transformer->attention(b->be, &a, b->m[0], b->m[1], b->m[2], b->m[3]);
}

static double flops_attention(shape s)
{
	return 2.0 * (double)s.a * (double)s.b * (double)(s.b + 1) * (double)(s.c * s.e);
}

/* --- rows and entries: a × b ------------------------------------------------------------------------------------ */

static fp_status prepare_entries(bench *b, shape s)
{
	fp_status status = make_same(b, s, 3);
	if (status == FP_OK)
		status = make(b, 3, 1, s.b);
	if (status == FP_OK)
		status = make(b, 4, s.a, s.b / 2);
	return status == FP_OK ? fp_matrix_new(b->be, &b->mask, s.a, s.b, FP_U8) : status;
}

static double bytes_two(shape s)
{
	return 8.0 * (double)(s.a * s.b);
}

static double bytes_three(shape s)
{
	return 12.0 * (double)(s.a * s.b);
}

static double bytes_five(shape s)
{
	return 20.0 * (double)(s.a * s.b);
}

static double bytes_one(shape s)
{
	return 4.0 * (double)(s.a * s.b);
}

static fp_status run_copy(bench *b, shape s)
{
	(void)s;
	return b->be->memory->copy(b->be, b->m[1], b->m[0]);
}

static fp_status run_norm(bench *b, shape s)
{
	(void)s;
	return b->be->transformer->norm(b->be, FP_LAYER_NORM, b->m[0], b->m[3], b->m[3], 1e-5F, b->m[1]);
}

static fp_status run_relu(bench *b, shape s)
{
	(void)s;
	return b->be->transformer->activate(b->be, FP_RELU, b->m[0], b->m[1]);
}

static fp_status run_silu(bench *b, shape s)
{
	(void)s;
	return b->be->transformer->activate_gated(b->be, FP_SILU, b->m[0], b->m[1], b->m[2]);
}

static fp_status run_rotate(bench *b, shape s)
{
	fp_matrix angles = fp_matrix_reshape(b->m[4], s.a, 32);
	return b->be->transformer->rotate(b->be, FP_PAIR_HALVES, angles, angles, s.b / 64, b->m[0]);
}

static fp_status run_add_bias(bench *b, shape s)
{
	(void)s;
	return b->be->transformer->add_bias(b->be, b->m[3], b->m[0]);
}

static fp_status run_dot(bench *b, shape s)
{
	(void)s;
	double out;
	return b->be->linear->dot(b->be, b->m[0], b->m[1], &out);
}

static fp_status run_finite(bench *b, shape s)
{
	(void)s;
	int out;
	return b->be->linear->finite(b->be, b->m[0], &out);
}

static fp_status run_fista(bench *b, shape s)
{
	(void)s;
	double change;
	return b->be->pruning->fista_step(b->be, FP_MOMENTUM_STANDARD, 1e-3F, 1e-4F, 0.9F, b->m[0], b->m[1], b->m[2],
									  &change);
}

static fp_status run_mask(bench *b, shape s)
{
	(void)s;
	fp_pattern pattern = {.sparsity = 0.5};
	return b->be->pruning->mask_smallest(b->be, b->m[0], &pattern, b->mask);
}

static fp_status run_mask_rows(bench *b, shape s)
{
	(void)s;
	fp_pattern pattern = {.sparsity = 0.5};
	return b->be->pruning->mask_rows(b->be, b->m[0], &pattern, b->mask);
}

static fp_status run_mask_groups(bench *b, shape s)
{
	(void)s;
	fp_pattern pattern = {2, 4, 0.5};
	return b->be->pruning->mask_smallest(b->be, b->m[0], &pattern, b->mask);
}

static fp_status prepare_loss(bench *b, shape s)
{
	fp_status status = make_same(b, s, 1);
	if (status == FP_OK)
		status = make(b, 1, 1, s.a);
	return status == FP_OK ? FP_NEW(b->be->ctx, &b->targets, s.a) : status;
}

static fp_status run_loss(bench *b, shape s)
{
	(void)s;
	return b->be->transformer->cross_entropy(b->be, b->m[0], b->targets, b->m[1], NULL);
}

/* --- factors: n; the sweep: rows × n ---------------------------------------------------------------------------- */

/* m[1] ← a positive definite matrix that each run starts from. */
static fp_status prepare_factor(bench *b, shape s)
{
	fp_status status;
	FP_TRY(make(b, 0, s.a, s.a));
	FP_TRY(make(b, 1, s.a, s.a));
	FP_TRY(make(b, 2, s.a, s.a));
	FP_TRY(make(b, 3, 1, s.a));
	FP_TRY(b->be->memory->fill(b->be, b->m[3], (float)s.a));
	FP_TRY(b->be->linear->gram(b->be, b->m[0], 0, b->m[1]));
	FP_TRY(b->be->linear->mirror(b->be, b->m[1]));
	FP_TRY(b->be->linear->add_diagonal(b->be, b->m[1], b->m[3]));
cleanup:
	return status;
}

static fp_status run_factor(bench *b, shape s)
{
	(void)s;
	int64_t refused;
	fp_status status = b->be->memory->copy(b->be, b->m[2], b->m[1]);
	return status == FP_OK ? b->be->linear->inverse_factor(b->be, b->m[2], &refused) : status;
}

static fp_status run_inverse(bench *b, shape s)
{
	(void)s;
	int64_t refused;
	fp_status status = b->be->memory->copy(b->be, b->m[2], b->m[1]);
	return status == FP_OK ? b->be->linear->inverse(b->be, b->m[2], &refused) : status;
}

static double flops_inverse(shape s)
{
	return (double)s.a * (double)s.a * (double)s.a;
}

static double flops_factor(shape s)
{
	double n = (double)s.a;
	return n * n * n / 3 + 2 * n * n * n / 3 + n * n * n / 3;
}

static fp_status run_eigen(bench *b, shape s)
{
	(void)s;
	fp_status status = b->be->memory->copy(b->be, b->m[2], b->m[1]);
	return status == FP_OK ? b->be->linear->eigen(b->be, b->m[2], b->m[3]) : status;
}

static double flops_eigen(shape s)
{
	double n = (double)s.a;
	return 9 * n * n * n;
}

static fp_status prepare_sweep(bench *b, shape s)
{
	fp_status status;
	int64_t refused;
	FP_TRY(prepare_factor(b, (shape){s.b, 0, 0, 0, 0}));
	FP_TRY(b->be->linear->inverse_factor(b->be, b->m[1], &refused));
	FP_TRY(make(b, 4, s.a, s.b));
	FP_TRY(make(b, 5, s.a, s.b));
	FP_TRY(fp_matrix_new(b->be, &b->mask, s.a, s.b, FP_U8));
cleanup:
	return status;
}

static fp_status run_sweep(bench *b, shape s)
{
	(void)s;
	fp_pattern pattern = {.sparsity = 0.5};
	fp_status status = b->be->memory->copy(b->be, b->m[5], b->m[4]);
	return status == FP_OK ? b->be->pruning->sparsegpt_sweep(b->be, b->m[1], &pattern, NULL, 128, b->m[5], b->mask)
						   : status;
}

static double flops_sweep(shape s)
{
	return (double)s.a * (double)s.b * (double)s.b;
}

static const kernel kernels[] = {
	{"gemm X·Wᵀ",
	 "%lld × %lld × %lld",
	 prepare_gemm,
	 run_gemm,
	 flops_gemm,
	 NULL,
	 {{2048, 768, 768, 0, 0},
	  {2048, 3072, 768, 0, 0},
	  {2048, 768, 3072, 0, 0},
	  {2048, 256, 2048, 0, 0},
	  {2048, 2048, 2048, 0, 0},
	  {2048, 5632, 2048, 0, 0},
	  {256, 288, 288, 0, 0},
	  {3072, 3072, 3072, 0, 0},
	  {8192, 768, 768, 0, 0},
	  {768, 3072, 3072, 0, 0}}},
	{"gram",
	 "%lld tokens × %lld",
	 prepare_gram,
	 run_gram,
	 flops_gram,
	 NULL,
	 {{2048, 768, 0, 0, 0}, {2048, 3072, 0, 0, 0}, {8192, 2048, 0, 0, 0}}},
	{"attention",
	 "%lld × %lld, %lld/%lld heads of %lld",
	 prepare_attention,
	 run_attention,
	 flops_attention,
	 NULL,
	 {{1, 2048, 12, 12, 64}, {1, 2048, 32, 4, 64}, {16, 256, 6, 6, 48}, {1, 8192, 8, 2, 128}, {1, 2048, 32, 32, 128}}},
	{"copy", "%lld × %lld", prepare_entries, run_copy, NULL, bytes_two, {{2048, 3072, 0, 0, 0}, {256, 768, 0, 0, 0}}},
	{"layer norm",
	 "%lld × %lld",
	 prepare_entries,
	 run_norm,
	 NULL,
	 bytes_two,
	 {{2048, 768, 0, 0, 0}, {2048, 2048, 0, 0, 0}}},
	{"add bias", "%lld × %lld", prepare_entries, run_add_bias, NULL, bytes_two, {{2048, 3072, 0, 0, 0}}},
	{"relu", "%lld × %lld", prepare_entries, run_relu, NULL, bytes_two, {{2048, 3072, 0, 0, 0}}},
	{"silu(g)·u", "%lld × %lld", prepare_entries, run_silu, NULL, bytes_three, {{2048, 5632, 0, 0, 0}}},
	{"rotate", "%lld × %lld", prepare_entries, run_rotate, NULL, bytes_two, {{2048, 2048, 0, 0, 0}}},
	{"cross entropy", "%lld × %lld", prepare_loss, run_loss, NULL, bytes_one, {{512, 50272, 0, 0, 0}}},
	{"dot", "%lld × %lld", prepare_entries, run_dot, NULL, bytes_two, {{3072, 768, 0, 0, 0}}},
	{"finite", "%lld × %lld", prepare_entries, run_finite, NULL, bytes_one, {{3072, 768, 0, 0, 0}}},
	{"fista step",
	 "%lld × %lld",
	 prepare_entries,
	 run_fista,
	 NULL,
	 bytes_five,
	 {{3072, 768, 0, 0, 0}, {5632, 2048, 0, 0, 0}}},
	{"mask 50%",
	 "%lld × %lld",
	 prepare_entries,
	 run_mask,
	 NULL,
	 bytes_one,
	 {{3072, 768, 0, 0, 0}, {5632, 2048, 0, 0, 0}}},
	{"mask 50% by rows",
	 "%lld × %lld",
	 prepare_entries,
	 run_mask_rows,
	 NULL,
	 bytes_one,
	 {{3072, 768, 0, 0, 0}, {5632, 2048, 0, 0, 0}}},
	{"mask 2:4", "%lld × %lld", prepare_entries, run_mask_groups, NULL, bytes_one, {{3072, 768, 0, 0, 0}}},
	{"inverse factor", "%lld", prepare_factor, run_factor, flops_factor, NULL, {{768, 0, 0, 0, 0}, {3072, 0, 0, 0, 0}}},
	{"inverse",
	 "%lld",
	 prepare_factor,
	 run_inverse,
	 flops_inverse,
	 NULL,
	 {{128, 0, 0, 0, 0}, {768, 0, 0, 0, 0}, {4096, 0, 0, 0, 0}, {11008, 0, 0, 0, 0}}},
	{"eigen", "%lld", prepare_factor, run_eigen, flops_eigen, NULL, {{768, 0, 0, 0, 0}, {2048, 0, 0, 0, 0}}},
	{"sparsegpt sweep",
	 "%lld × %lld",
	 prepare_sweep,
	 run_sweep,
	 flops_sweep,
	 NULL,
	 {{3072, 768, 0, 0, 0}, {2048, 2048, 0, 0, 0}}},
};

static void clear(bench *b)
{
	for (int i = 0; i < 6; i++)
		fp_matrix_free(b->be, &b->m[i]);
	fp_matrix_free(b->be, &b->mask);
	fp_free(b->targets);
	b->targets = NULL;
}

/* Seconds of the fastest of at least three runs, about a second in total. */
static fp_status best_time(bench *b, const kernel *k, shape s, double *best)
{
	fp_status status = FP_OK;
	double begin = bench_now();
	*best = 1e30;
	for (int i = 0; i < 1000 && (i < 4 || bench_now() - begin < 1.0); i++) {
		double start = bench_now();
		FP_TRY(k->run(b, s));
		FP_TRY(b->be->memory->synchronize(b->be));
		double took = bench_now() - start;
		*best = i > 0 && took < *best ? took : *best;
	}
cleanup:
	return status;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static fp_status run_case(bench *b, const kernel *k, shape s)
{
	double best = 0;
	char text[96];
	snprintf(text, sizeof text, k->form, (long long)s.a, (long long)s.b, (long long)s.c, (long long)s.d,
			 (long long)s.e);
	fp_status status = k->prepare(b, s);
	if (status == FP_OK)
		status = best_time(b, k, s, &best);
	clear(b);
	if (status != FP_OK)
		return status;
	if (k->flops)
		printf("%-18s %-36s %10.3f ms %8.1f GFLOP/s %6.2f of peak\n", k->name, text, 1e3 * best,
			   1e-9 * k->flops(s) / best, k->flops(s) / best / b->peak);
	else
		printf("%-18s %-36s %10.3f ms %8.1f GB/s\n", k->name, text, 1e3 * best, 1e-9 * k->bytes(s) / best);
	fflush(stdout);
	return FP_OK;
}
#pragma GCC diagnostic pop

int main(int argc, char **argv)
{
	fp_status status;
	fp_context *ctx = fp_context_new();
	bench b = {.filter = argc > 3 ? argv[3] : ""};
	if (!ctx)
		return 1;
	FP_TRY(fp_backend_open(&b.be, ctx, argc > 1 ? argv[1] : "cpu", argc > 2 ? atoi(argv[2]) : 0));
	FP_TRY(bench_measure_peak(b.be, &b.peak));
	printf("%s\nsgemm peak: %.1f GFLOP/s\n\n", b.be->description, 1e-9 * b.peak);
	FP_TRY(fp_backend_set_precision(b.be, argc > 4 ? argv[4] : "fp32", INT32_MAX));
	b.be->use = FP_USE_ACTIVATION;
	for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
		if (!strstr(kernels[k].name, b.filter))
			continue;
		for (const shape *s = kernels[k].shapes; s < kernels[k].shapes + 11 && s->a > 0; s++)
			FP_TRY(run_case(&b, &kernels[k], *s));
	}

cleanup:
	if (status != FP_OK)
		fprintf(stderr, "bench_kernels: %s\n", fp_context_message(ctx));
	clear(&b);
	fp_backend_close(b.be);
	fp_context_free(ctx);
	return fp_status_exit_code(status);
}
