/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_prune: the time of each stage of a prune, and the speed of its products.
 *
 *     bench_prune MODEL OUTPUT [LENGTH [WINDOWS [THREADS]]] [name=value …]     (2048, 128, all available)
 *
 * Prunes MODEL on random tokens into OUTPUT exactly as `prune` does, with any settings (preset=paper
 * pattern=2:4 layers=0-1). Wrappers around the backend's operations time the products of each stage: gemm,
 * Gram matrices, attention's two products and factorisations.
 */
#include "peak.h"

#include "base/memory.h"
#include "run/prune_model.h"
#include "text/windows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fp_backend real; /* the wrappers call its tables */
static double product_seconds[FP_STAGE_COUNT];
static double flops[FP_STAGE_COUNT];

/* A wrapper waits for the device, so that its time includes the work. */
#define TIMED(work, call)                                                                                              \
	do {                                                                                                               \
		fp_stage stage = be->ctx->stopwatch ? be->ctx->stopwatch->current : FP_STAGE_OTHER;                            \
		double start = bench_now();                                                                                    \
		fp_status status = (call);                                                                                     \
		if (status == FP_OK)                                                                                           \
			status = real.memory->synchronize(be);                                                                     \
		product_seconds[stage] += bench_now() - start;                                                                 \
		flops[stage] += (work);                                                                                        \
		return status;                                                                                                 \
	} while (0)

static fp_status timed_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							float beta, fp_matrix C)
{
	double work = 2.0 * (double)C.rows * (double)C.cols * (double)(ta == FP_PLAIN ? A.cols : A.rows);
	TIMED(work, real.linear->gemm(be, alpha, A, ta, B, tb, beta, C));
}

static fp_status timed_gram(fp_backend *be, fp_matrix X, float beta, fp_matrix A)
{
	double work = (double)X.rows * (double)X.cols * (double)(X.cols + 1); /* one triangle */
	TIMED(work, real.linear->gram(be, X, beta, A));
}

static fp_status timed_attention(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
								 fp_matrix out)
{
	/* Two products over the pairs of the causal mask. */
	double pairs = 0.5 * (double)shape->length * (double)(shape->length + 1);
	double work = 4.0 * pairs * (double)(shape->sequences * shape->heads * shape->head_dim);
	TIMED(work, real.transformer->attention(be, shape, Q, K, V, out));
}

static double cube(fp_matrix A)
{
	return (double)A.rows * (double)A.rows * (double)A.rows;
}

static fp_status timed_inverse_factor(fp_backend *be, fp_matrix A, int64_t *refused)
{
	TIMED(4.0 / 3.0 * cube(A), real.linear->inverse_factor(be, A, refused));
}

static fp_status timed_inverse(fp_backend *be, fp_matrix A, int64_t *refused)
{
	TIMED(cube(A), real.linear->inverse(be, A, refused));
}

static fp_status timed_eigen(fp_backend *be, fp_matrix A, fp_matrix values)
{
	TIMED(9.0 * cube(A), real.linear->eigen(be, A, values));
}

static fp_status timed_sweep(fp_backend *be, fp_matrix U, const fp_pattern *pattern, const fp_grid *grid, int64_t block,
							 fp_matrix W, fp_matrix mask)
{
	TIMED((double)W.rows * (double)W.cols * (double)W.cols,
		  real.pruning->sparsegpt_sweep(be, U, pattern, grid, block, W, mask));
}

static void print_figures(const fp_prune_task *task, const fp_prune_result *result, double peak, double wall,
						  double processor)
{
	double products = 0;
	double named = 0;
	printf("%s: %lld windows of %lld tokens, preset %s, pattern %s, precision %s, %s\n",
		   fp_checkpoint_directory(fp_model_checkpoint(task->model)), (long long)task->windows->count,
		   (long long)task->windows->length, task->settings->preset, task->settings->pattern,
		   fp_backend_precision_name(task->be), task->be->description);
	printf("%-14s %8.1f GFLOP/s\n\n%-14s %8s %6s %9s %10s %14s\n", "sgemm peak", peak * 1e-9, "stage", "seconds",
		   "share", "products", "GFLOP/s", "share of peak");
	for (int i = 0; i < FP_STAGE_COUNT; i++) {
		double seconds = result->stopwatch.seconds[i];
		named += seconds;
		products += product_seconds[i];
		if (seconds <= 0)
			continue;
		printf("%-14s %8.2f %5.1f%% %8.1f%%", fp_stage_name((fp_stage)i), seconds, 100 * seconds / wall,
			   100 * product_seconds[i] / seconds);
		if (flops[i] > 0)
			printf(" %10.1f %14.3f", flops[i] / seconds * 1e-9, flops[i] / seconds / peak);
		printf("\n");
	}
	printf("%-14s %8.2f %5.1f%%\n", "other", wall - named, 100 * (wall - named) / wall);
	printf("%-14s %8.2f, %.1f%% of it in products; %.2f processor seconds\n", "end to end", wall, 100 * products / wall,
		   processor);
	printf("%-14s %8.2f GiB on the host, pages of mapped files included", "peak memory",
		   (double)fp_peak_memory() / 1073741824.0);
	if (fp_model_backend(task->model)->peak_bytes > 0)
		printf("; %.2f GiB on the device", (double)fp_model_backend(task->model)->peak_bytes / 1073741824.0);
	printf("\n");
}

static void fill_windows(fp_windows *windows, int64_t vocabulary)
{
	uint64_t random = 1;
	for (int64_t i = 0; i < windows->count * windows->length; i++) {
		random = random * 6364136223846793005ULL + 1442695040888963407ULL;
		windows->ids[i] = (int32_t)((int64_t)(random >> 33) % vocabulary);
	}
}

/* The tables whose products are timed. */
typedef struct timed_tables {
	fp_linear_operations linear;
	fp_transformer_operations transformer;
	fp_pruning_operations pruning;
} timed_tables;

static void wrap(timed_tables *timed, fp_backend *be)
{
	real = *be;
	*timed = (timed_tables){*be->linear, *be->transformer, *be->pruning};
	timed->linear.gemm = timed_gemm;
	timed->linear.gram = timed_gram;
	timed->linear.inverse_factor = timed_inverse_factor;
	timed->linear.inverse = timed_inverse;
	timed->linear.eigen = timed_eigen;
	timed->transformer.attention = timed_attention;
	timed->pruning.sparsegpt_sweep = timed_sweep;
	be->linear = &timed->linear;
	be->transformer = &timed->transformer;
	be->pruning = &timed->pruning;
}

static void unwrap(fp_backend *be)
{
	be->linear = real.linear;
	be->transformer = real.transformer;
	be->pruning = real.pruning;
}

static fp_status run(fp_context *ctx, fp_settings *settings, const char *directory, const char *output,
					 fp_windows *windows)
{
	fp_status status;
	fp_backend *be = NULL;
	fp_checkpoint *checkpoint = NULL;
	fp_model *model = NULL;
	fp_writer *writer = NULL;
	fp_prune_result result = {0};
	timed_tables timed;
	double peak = 0;
	FP_TRY(fp_checkpoint_open(&checkpoint, ctx, directory));
	const char *family = json_string_value(json_object_get(fp_checkpoint_config(checkpoint), "model_type"));
	FP_TRY(fp_settings_resolve(settings, ctx, family ? family : ""));
	FP_TRY(fp_backend_open(&be, ctx, settings->device, (int)settings->threads));
	FP_TRY(bench_measure_peak(be, &peak));
	FP_TRY(fp_model_open(&model, be, checkpoint));
	FP_TRY(fp_backend_set_precision(be, settings->precision, fp_model_get_config(model)->hidden));
	FP_TRY(FP_NEW(ctx, &windows->ids, windows->count * windows->length));
	fill_windows(windows, fp_model_get_config(model)->vocabulary);
	FP_TRY(fp_writer_open(&writer, ctx, checkpoint, output, NULL));
	fp_prune_task task = {
		.be = be, .ctx = ctx, .model = model, .settings = settings, .windows = windows, .writer = writer};
	wrap(&timed, be);
	double start = bench_now();
	double processor = bench_processor_now();
	status = fp_prune_model(&result, &task);
	if (status == FP_OK)
		status = fp_writer_commit(writer);
	double wall = bench_now() - start;
	processor = bench_processor_now() - processor;
	unwrap(be);
	if (status != FP_OK)
		goto cleanup;
	FP_TRY(bench_measure_peak(be, &peak)); /* again: the machine may have been busy the first time */
	print_figures(&task, &result, peak, wall, processor);
cleanup:
	fp_prune_result_free(&result);
	fp_writer_close(writer);
	fp_free(windows->ids);
	fp_model_close(model);
	fp_checkpoint_close(checkpoint);
	fp_backend_close(be);
	return status;
}

static fp_status read_arguments(fp_context *ctx, fp_settings *settings, fp_windows *windows, int argc, char **argv)
{
	long long numbers[3] = {2048, 128, 0}; /* length, windows, threads */
	int given = 0;
	fp_status status = fp_settings_set(settings, ctx, "device", "cpu");
	for (int i = 3; i < argc && status == FP_OK; i++) {
		if (strchr(argv[i], '='))
			status = fp_settings_assign(settings, ctx, argv[i]);
		else if (given < 3)
			numbers[given++] = atoll(argv[i]);
	}
	windows->length = numbers[0];
	windows->count = numbers[1];
	settings->threads = numbers[2];
	return status;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: bench_prune MODEL OUTPUT [LENGTH [WINDOWS [THREADS]]] [name=value …]\n");
		return 2;
	}
	fp_context *ctx = fp_context_new();
	fp_settings *settings = NULL;
	fp_windows windows = {0};
	if (!ctx)
		return 4;
	fp_status status = fp_settings_new(&settings, ctx);
	if (status == FP_OK)
		status = read_arguments(ctx, settings, &windows, argc, argv);
	if (status == FP_OK)
		status = run(ctx, settings, argv[1], argv[2], &windows);
	if (status != FP_OK)
		fprintf(stderr, "bench_prune: %s\n", fp_context_message(ctx));
	fp_settings_free(settings);
	fp_context_free(ctx);
	return fp_status_exit_code(status);
}
