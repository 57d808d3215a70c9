/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_forward: compares the speed of the forward pass with that of a large matrix product.
 *
 *     bench_forward MODEL [LENGTH [WINDOWS [THREADS [PRECISION]]]]     (2048, 4, all available, fp32)
 *
 * Evaluates random tokens exactly as `eval` does: reads and converts weights, runs the layers, computes
 * losses. Wrappers around the backend's operations time each of them.
 */
#include "peak.h"

#include "base/memory.h"
#include "evaluation/perplexity.h"
#include "model/layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

typedef enum stage { GEMM, ATTENTION, NORM, BIAS, ACTIVATION, ROTARY, LOSS, UPLOAD, FINITE, OTHER, STAGE_COUNT } stage;

static const char *const stage_names[STAGE_COUNT] = {
	[GEMM] = "linear operators and head",
	[ATTENTION] = "attention",
	[NORM] = "norms",
	[BIAS] = "biases",
	[ACTIVATION] = "activations",
	[ROTARY] = "rotary positions",
	[LOSS] = "cross-entropy",
	[UPLOAD] = "reading weights",
	[FINITE] = "finite checks",
	[OTHER] = "adding, downloading",
};

static fp_backend real; /* the wrappers call its tables */
static double seconds[STAGE_COUNT];
static double flops[STAGE_COUNT];

/* A wrapper waits for the device, so that its time includes the work. */
#define TIMED(stage_id, call)                                                                                          \
	do {                                                                                                               \
		double start = bench_now();                                                                                    \
		fp_status status = (call);                                                                                     \
		if (status == FP_OK)                                                                                           \
			status = real.memory->synchronize(be);                                                                     \
		seconds[stage_id] += bench_now() - start;                                                                      \
		return status;                                                                                                 \
	} while (0)

static fp_status timed_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							float beta, fp_matrix C)
{
	flops[GEMM] += 2.0 * (double)C.rows * (double)C.cols * (double)(ta == FP_PLAIN ? A.cols : A.rows);
	TIMED(GEMM, real.linear->gemm(be, alpha, A, ta, B, tb, beta, C));
}

static fp_status timed_attention(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
								 fp_matrix out)
{
	/* Two products over the pairs of the causal mask. */
	double pairs = 0.5 * (double)shape->length * (double)(shape->length + 1);
	flops[ATTENTION] += 4.0 * pairs * (double)(shape->sequences * shape->heads * shape->head_dim);
	TIMED(ATTENTION, real.transformer->attention(be, shape, Q, K, V, out));
}

static fp_status timed_norm(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, fp_matrix bias,
							float epsilon, fp_matrix Y)
{
	TIMED(NORM, real.transformer->norm(be, kind, X, weight, bias, epsilon, Y));
}

static fp_status timed_add_bias(fp_backend *be, fp_matrix bias, fp_matrix X)
{
	TIMED(BIAS, real.transformer->add_bias(be, bias, X));
}

static fp_status timed_activate(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix Y)
{
	TIMED(ACTIVATION, real.transformer->activate(be, kind, X, Y));
}

static fp_status timed_activate_gated(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y)
{
	TIMED(ACTIVATION, real.transformer->activate_gated(be, kind, G, U, Y));
}

static fp_status timed_rotate(fp_backend *be, fp_pairing pairing, fp_matrix cosine, fp_matrix sine, int64_t heads,
							  fp_matrix X)
{
	TIMED(ROTARY, real.transformer->rotate(be, pairing, cosine, sine, heads, X));
}

static fp_status timed_cross_entropy(fp_backend *be, fp_matrix logits, const int32_t *targets, fp_matrix out,
									 int32_t *argmax)
{
	TIMED(LOSS, real.transformer->cross_entropy(be, logits, targets, out, argmax));
}

static fp_status timed_upload(fp_backend *be, fp_matrix out, const void *host, fp_dtype dtype, int64_t stride)
{
	TIMED(UPLOAD, real.memory->upload(be, out, host, dtype, stride));
}

static fp_status timed_finite(fp_backend *be, fp_matrix X, int *out)
{
	TIMED(FINITE, real.linear->finite(be, X, out));
}

static fp_status timed_axpby(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y)
{
	TIMED(OTHER, real.linear->axpby(be, alpha, X, beta, Y));
}

static fp_status timed_download(fp_backend *be, void *host, fp_dtype dtype, int64_t stride, fp_matrix in)
{
	TIMED(OTHER, real.memory->download(be, host, dtype, stride, in));
}

static void print_figures(const fp_model *model, const fp_windows *windows, double peak, double wall, double processor)
{
	struct rusage usage;
	double timed = 0;
	getrusage(RUSAGE_SELF, &usage);
	printf("%s: %s, %lld windows of %lld tokens, precision %s, %s\n",
		   fp_checkpoint_directory(fp_model_checkpoint(model)), fp_model_architecture(model), (long long)windows->count,
		   (long long)windows->length, fp_backend_precision_name(fp_model_backend(model)),
		   fp_model_backend(model)->description);
	printf("%-28s %8.1f GFLOP/s\n\n%-28s %8s %6s %10s %14s\n", "sgemm peak", peak * 1e-9, "stage", "seconds", "share",
		   "GFLOP/s", "share of peak");
	for (int i = 0; i < STAGE_COUNT; i++) {
		timed += seconds[i];
		printf("%-28s %8.2f %5.1f%%", stage_names[i], seconds[i], 100 * seconds[i] / wall);
		if (flops[i] > 0)
			printf(" %10.1f %14.3f", flops[i] / seconds[i] * 1e-9, flops[i] / seconds[i] / peak);
		printf("\n");
	}
	double all = flops[GEMM] + flops[ATTENTION];
	printf("%-28s %8.2f %5.1f%%\n", "everything else", wall - timed, 100 * (wall - timed) / wall);
	printf("%-28s %8.2f        %10.1f %14.3f\n", "end to end", wall, all / wall * 1e-9, all / wall / peak);
	printf("%-28s %8.0f tokens/s\n", "", (double)(windows->count * windows->length) / wall);
	printf("%-28s %8.2f\n", "processor seconds", processor);
	printf("%-28s %8.2f GiB, file pages included\n", "peak resident memory", (double)usage.ru_maxrss / 1048576.0);
}

static fp_status run(fp_context *ctx, const char *directory, int64_t length, int64_t count, int threads,
					 const char *precision)
{
	fp_status status;
	fp_backend *be = NULL;
	fp_checkpoint *checkpoint = NULL;
	fp_model *model = NULL;
	fp_windows windows = {.count = count, .length = length};
	fp_perplexity_result result;
	double peak = 0;
	FP_TRY(fp_backend_open(&be, ctx, "cpu", threads));
	FP_TRY(bench_measure_peak(be, &peak));
	FP_TRY(fp_checkpoint_open(&checkpoint, ctx, directory));
	FP_TRY(fp_model_open(&model, be, checkpoint));
	FP_TRY(fp_backend_set_precision(be, precision, fp_model_get_config(model)->hidden));
	FP_TRY(FP_NEW(ctx, &windows.ids, count * length));
	uint64_t random = 1;
	for (int64_t i = 0; i < count * length; i++) {
		random = random * 6364136223846793005ULL + 1442695040888963407ULL;
		windows.ids[i] = (int32_t)((int64_t)(random >> 33) % fp_model_get_config(model)->vocabulary);
	}

	real = *be;
	fp_memory_operations memory = *be->memory;
	memory.upload = timed_upload;
	memory.download = timed_download;
	fp_linear_operations linear = *be->linear;
	linear.gemm = timed_gemm;
	linear.finite = timed_finite;
	linear.axpby = timed_axpby;
	fp_transformer_operations transformer = *be->transformer;
	transformer.attention = timed_attention;
	transformer.norm = timed_norm;
	transformer.add_bias = timed_add_bias;
	transformer.activate = timed_activate;
	transformer.activate_gated = timed_activate_gated;
	transformer.rotate = timed_rotate;
	transformer.cross_entropy = timed_cross_entropy;
	be->memory = &memory;
	be->linear = &linear;
	be->transformer = &transformer;
	double start = bench_now();
	double processor = bench_processor_now();
	status = fp_perplexity(&result, model, &windows, 0);
	double wall = bench_now() - start;
	processor = bench_processor_now() - processor;
	be->memory = real.memory;
	be->linear = real.linear;
	be->transformer = real.transformer;
	if (status != FP_OK)
		goto cleanup;
	FP_TRY(bench_measure_peak(be, &peak)); /* again: the machine may have been busy the first time */
	print_figures(model, &windows, peak, wall, processor);
cleanup:
	fp_free(windows.ids);
	fp_model_close(model);
	fp_checkpoint_close(checkpoint);
	fp_backend_close(be);
	return status;
}

int main(int argc, char **argv)
{
	long long numbers[3] = {2048, 4, 0}; /* length, windows, threads */
	for (int i = 2; i < argc && i < 5; i++)
		numbers[i - 2] = atoll(argv[i]);
	if (argc < 2 || argc > 6 || numbers[0] < 2 || numbers[1] < 1 || numbers[2] < 0) {
		fprintf(stderr, "usage: bench_forward MODEL [LENGTH [WINDOWS [THREADS [PRECISION]]]]\n");
		return 2;
	}
	fp_context *ctx = fp_context_new();
	if (!ctx)
		return 4;
	fp_status status = run(ctx, argv[1], numbers[0], numbers[1], (int)numbers[2], argc > 5 ? argv[5] : "fp32");
	if (status != FP_OK)
		fprintf(stderr, "bench_forward: %s\n", fp_context_message(ctx));
	fp_context_free(ctx);
	return fp_status_exit_code(status);
}
