/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_decode: how fast the linear operators of a model are while it writes text, dense and compressed.
 *
 *     bench_decode [--device cpu] [--shape tinyllama-1.1b] [--type bf16] [--threads 0] [--layers 0] [--rounds 7]
 *                  [--bandwidth GB/S] [--clock wall]
 *
 * One token is one product with each operator of each layer and with the head (which is not pruned, so always dense).
 * Random weights; every layer has memory of its own, so that caches do not help. All patterns are held at once and
 * timed in turn, so that a busy machine slows all of them; the best of the rounds counts. Bytes are those that must be
 * read. The share is that of the read bandwidth measured before and after, or of --bandwidth. On a machine that is never
 * quiet, `--threads 1 --clock cpu` counts the processor time of one thread; shares then mean nothing. Nothing else of a token
 * (attention, norms) is measured here; `fistapruner bench MODEL` measures a model.
 */
#include "peak.h"

#include "base/memory.h"
#include "base/numbers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct shape {
	const char *name;
	int64_t hidden, keys, inner, layers, words;
} shape;

static const shape shapes[] = {
	{"tinyllama-1.1b", 2048, 256, 5632, 22, 32000},
	{"llama-2-7b", 4096, 4096, 11008, 32, 32000},
	{"llama-3.1-8b", 4096, 1024, 14336, 32, 128256},
	{"small", 512, 128, 1376, 4, 4000},
};

typedef struct pattern {
	const char *name;
	double zeros; /* a share of each matrix; 2:4 if 0 and not dense */
	fp_held_form form;
} pattern;

static const pattern patterns[] = {
	{"dense", 0, FP_HELD_DENSE},
	{"50%", 0.5, FP_HELD_MASK},
	{"2:4", 0, FP_HELD_TWO_OF_FOUR},
	{"70%", 0.7, FP_HELD_MASK},
};
static const int64_t batches[] = {1, 8};
enum { PATTERNS = 4, BATCHES = 2, OPERATORS = 7, MAX_LAYERS = 128 };

typedef enum operator_id { Q, K, V, O, GATE, UP, DOWN } operator_id;

/* Operators of one input, which are multiplied at once. */
typedef struct operator_group {
	const char *name;
	int first, count;
} operator_group;

static const operator_group groups[] = {{"q k v", Q, 3}, {"o", O, 1}, {"gate up", GATE, 2}, {"down", DOWN, 1}};
enum { GROUPS = 4, ALL_GROUPS = -1 };

typedef struct bench {
	fp_backend *be;
	bool processor_time;
	shape shape;
	fp_dtype type;
	fp_held held[PATTERNS][MAX_LAYERS][OPERATORS];
	fp_held head;
	fp_matrix x, inner; /* inputs of `hidden` and of `inner` features */
	fp_matrix y[3], logits;
	int64_t bytes[PATTERNS];                          /* of the layers */
	double layers[PATTERNS][BATCHES], heads[BATCHES]; /* the best seconds */
	double groups[PATTERNS][GROUPS];                  /* of all layers, batch 1 */
} bench;

/* --- weights ------------------------------------------------------------------------------------------------------ */

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525U + 1013904223U;
	return *state >> 8;
}

/* A random matrix with the pattern's zeros, in the type of the bench. */
static fp_status hold_random(bench *b, fp_held *out, int64_t rows, int64_t cols, const pattern *p, uint32_t seed)
{
	fp_status status;
	fp_matrix W = {0};
	uint16_t *host = NULL;
	float *row = NULL;
	int64_t size = fp_dtype_size(b->type);
	FP_TRY(FP_NEW(b->be->ctx, &host, rows * cols * size / 2));
	FP_TRY(FP_NEW(b->be->ctx, &row, cols));
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < cols; j++) {
			row[j] = (float)next_random(&seed) / 8388608.0F - 0.99F;
			if (p->zeros > 0 && next_random(&seed) < p->zeros * 16777216)
				row[j] = 0;
		}
		for (int64_t j = 0; p->form == FP_HELD_TWO_OF_FOUR && j < cols; j += 4) {
			uint32_t first = next_random(&seed) % 4, second = (first + 1 + next_random(&seed) % 3) % 4;
			row[j + first] = row[j + second] = 0;
		}
		fp_from_float((char *)host + i * cols * size, b->type, row, cols);
	}
	FP_TRY(fp_matrix_new(b->be, &W, rows, cols, b->type));
	FP_TRY(b->be->memory->upload(b->be, W, host, b->type, cols));
	FP_TRY(b->be->decode->hold(b->be, out, W, b->type, p->form));

cleanup:
	fp_matrix_free(b->be, &W);
	fp_free(host);
	fp_free(row);
	return status;
}

static fp_status copy_part(bench *b, fp_matrix *out, fp_matrix in)
{
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(in))
		return FP_OK;
	FP_TRY(fp_matrix_new(b->be, out, in.rows, in.cols, in.dtype));
	FP_TRY(b->be->memory->copy(b->be, *out, in));
cleanup:
	return status;
}

/* The same weights in other memory. */
static fp_status copy_held(bench *b, fp_held *out, const fp_held *in)
{
	fp_status status;
	*out = *in;
	out->values = out->positions = out->offsets = (fp_matrix){0};
	FP_TRY(copy_part(b, &out->values, in->values));
	FP_TRY(copy_part(b, &out->positions, in->positions));
	FP_TRY(copy_part(b, &out->offsets, in->offsets));
cleanup:
	return status;
}

static fp_status make_weights(bench *b)
{
	fp_status status;
	const shape *s = &b->shape;
	const int64_t rows[OPERATORS] = {s->hidden, s->keys, s->keys, s->hidden, s->inner, s->inner, s->hidden};
	FP_TRY(hold_random(b, &b->head, s->words, s->hidden, &patterns[0], 99));
	for (int p = 0; p < PATTERNS; p++)
		for (int i = 0; i < OPERATORS; i++) {
			FP_TRY(hold_random(b, &b->held[p][0][i], rows[i], i == DOWN ? s->inner : s->hidden, &patterns[p],
							   (uint32_t)(p * 10 + i)));
			for (int64_t l = 1; l < s->layers; l++)
				FP_TRY(copy_held(b, &b->held[p][l][i], &b->held[p][0][i]));
			b->bytes[p] += s->layers * b->held[p][0][i].bytes;
		}
cleanup:
	return status;
}

static fp_status make_vectors(bench *b)
{
	fp_status status;
	const shape *s = &b->shape;
	int64_t wide = fp_larger(s->inner, s->hidden);
	FP_TRY(fp_matrix_new(b->be, &b->x, 8, s->hidden, FP_F32));
	FP_TRY(fp_matrix_new(b->be, &b->inner, 8, s->inner, FP_F32));
	FP_TRY(fp_matrix_new(b->be, &b->logits, 8, s->words, FP_F32));
	for (int i = 0; i < 3; i++)
		FP_TRY(fp_matrix_new(b->be, &b->y[i], 8, wide, FP_F32));
	FP_TRY(b->be->memory->fill(b->be, b->x, 0.5F));
	FP_TRY(b->be->memory->fill(b->be, b->inner, 0.25F));
cleanup:
	return status;
}

static void clear(bench *b)
{
	for (int p = 0; p < PATTERNS; p++)
		for (int l = 0; l < MAX_LAYERS; l++)
			for (int i = 0; i < OPERATORS; i++)
				fp_held_free(b->be, &b->held[p][l][i]);
	fp_held_free(b->be, &b->head);
	for (int i = 0; i < 3; i++)
		fp_matrix_free(b->be, &b->y[i]);
	fp_matrix_free(b->be, &b->x);
	fp_matrix_free(b->be, &b->inner);
	fp_matrix_free(b->be, &b->logits);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

static fp_status multiply(bench *b, const fp_held *layer, const operator_group *group, int64_t batch)
{
	const fp_held *W[3] = {NULL, NULL, NULL};
	fp_matrix Y[3] = {{0}, {0}, {0}};
	for (int i = 0; i < group->count; i++) {
		W[i] = &layer[group->first + i];
		Y[i] = fp_matrix_cols(fp_matrix_rows(b->y[i], 0, batch), 0, W[i]->rows);
	}
	fp_matrix x = fp_matrix_rows(group->first == DOWN ? b->inner : b->x, 0, batch);
	return b->be->decode->multiply(b->be, x, group->count, W, false, Y);
}

static fp_status run_layers(bench *b, int p, int only, int64_t batch)
{
	fp_status status = FP_OK;
	for (int64_t l = 0; l < b->shape.layers; l++)
		for (int g = 0; g < GROUPS; g++)
			if (only == ALL_GROUPS || only == g)
				FP_TRY(multiply(b, b->held[p][l], &groups[g], batch));
cleanup:
	return status;
}

static fp_status run_head(bench *b, int64_t batch)
{
	const fp_held *W[1] = {&b->head};
	fp_matrix Y[1] = {fp_matrix_rows(b->logits, 0, batch)};
	return b->be->decode->multiply(b->be, fp_matrix_rows(b->x, 0, batch), 1, W, false, Y);
}

static double now(const bench *b)
{
	struct timespec t;
	if (!b->processor_time)
		return bench_now();
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* *best ← the smaller of *best and the seconds of one token. p < 0: the head. */
static fp_status measure(bench *b, int p, int group, int64_t batch, double *best)
{
	fp_status status;
	int tokens = b->be->asynchronous ? 10 : 1;
	FP_TRY(b->be->memory->synchronize(b->be));
	double started = now(b);
	for (int t = 0; t < tokens; t++)
		FP_TRY(p < 0 ? run_head(b, batch) : run_layers(b, p, group, batch));
	FP_TRY(b->be->memory->synchronize(b->be));
	double took = (now(b) - started) / tokens;
	*best = *best > 0 && *best < took ? *best : took;
cleanup:
	return status;
}

static fp_status measure_all(bench *b, int rounds)
{
	fp_status status = FP_OK;
	for (int i = 0; i < BATCHES; i++)
		for (int p = 0; p < PATTERNS; p++) { /* not counted: the first touch of the memory */
			double warm = 0;
			FP_TRY(measure(b, p, ALL_GROUPS, batches[i], &warm));
		}
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < BATCHES; i++) {
			for (int p = 0; p < PATTERNS; p++)
				FP_TRY(measure(b, p, ALL_GROUPS, batches[i], &b->layers[p][i]));
			FP_TRY(measure(b, -1, ALL_GROUPS, batches[i], &b->heads[i]));
		}
	for (int r = 0; r < rounds; r++)
		for (int p = 0; p < PATTERNS; p++)
			for (int g = 0; g < GROUPS; g++)
				FP_TRY(measure(b, p, g, 1, &b->groups[p][g]));
cleanup:
	return status;
}

/* GB/s of reading; the larger of what it was and what it is now. */
static fp_status measure_bandwidth(bench *b, double *best)
{
	int64_t bytes = b->be->asynchronous ? (int64_t)8 << 30 : (int64_t)1 << 30;
	double seconds = 0;
	fp_status status = b->be->decode->read_time(b->be, bytes, &seconds);
	if (status == FP_OK && 1e-9 * (double)bytes / seconds > *best)
		*best = 1e-9 * (double)bytes / seconds;
	return status;
}

static void print_results(const bench *b, double bandwidth)
{
	for (int i = 0; i < BATCHES; i++) {
		printf("\nbatch %lld\n%-7s %9s %9s %7s %8s %8s %10s %9s %8s\n", (long long)batches[i], "", "MB/layer",
			   "layers ms", "GB/s", "share", "x dense", "head ms", "tokens/s", "x dense");
		for (int p = 0; p < PATTERNS; p++) {
			double s = b->layers[p][i], total = s + b->heads[i];
			printf("%-7s %9.1f %9.3f %7.1f %8.2f %8.2f %10.3f %9.2f %8.2f\n", patterns[p].name,
				   1e-6 * (double)b->bytes[p] / (double)b->shape.layers, 1e3 * s, 1e-9 * (double)b->bytes[p] / s,
				   1e-9 * (double)b->bytes[p] / s / bandwidth, b->layers[0][i] / s, 1e3 * b->heads[i],
				   (double)batches[i] / total, (b->layers[0][i] + b->heads[i]) / total);
		}
	}
}

static void print_groups(const bench *b)
{
	printf("\nbatch 1, one layer: microseconds and GB/s of each product\n%-7s", "");
	for (int g = 0; g < GROUPS; g++)
		printf(" %16s", groups[g].name);
	for (int p = 0; p < PATTERNS; p++) {
		printf("\n%-7s", patterns[p].name);
		for (int g = 0; g < GROUPS; g++) {
			int64_t bytes = 0;
			double seconds = b->groups[p][g] / (double)b->shape.layers;
			for (int i = 0; i < groups[g].count; i++)
				bytes += b->held[p][0][groups[g].first + i].bytes;
			printf(" %8.1f %7.1f", 1e6 * seconds, 1e-9 * (double)bytes / seconds);
		}
	}
	printf("\n");
}

/* --- arguments ---------------------------------------------------------------------------------------------------- */

typedef struct options {
	const char *device, *shape, *type, *clock;
	int threads, layers, rounds;
	double bandwidth;
} options;

static bool read_options(options *o, int argc, char **argv)
{
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;
		if (!value)
			return false;
		if (!strcmp(argv[i], "--device"))
			o->device = value;
		else if (!strcmp(argv[i], "--shape"))
			o->shape = value;
		else if (!strcmp(argv[i], "--type"))
			o->type = value;
		else if (!strcmp(argv[i], "--clock"))
			o->clock = value;
		else if (!strcmp(argv[i], "--threads"))
			o->threads = atoi(value);
		else if (!strcmp(argv[i], "--layers"))
			o->layers = atoi(value);
		else if (!strcmp(argv[i], "--rounds"))
			o->rounds = atoi(value);
		else if (!strcmp(argv[i], "--bandwidth"))
			o->bandwidth = atof(value);
		else
			return false;
	}
	return true;
}

static bool choose(bench *b, const options *o)
{
	const shape *found = NULL;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		if (!strcmp(shapes[i].name, o->shape))
			found = &shapes[i];
	if (!found)
		return false;
	b->shape = *found;
	if (o->layers > 0)
		b->shape.layers = fp_smaller(o->layers, MAX_LAYERS);
	b->processor_time = !strcmp(o->clock, "cpu");
	b->type = !strcmp(o->type, "f32") ? FP_F32 : !strcmp(o->type, "f16") ? FP_F16 : FP_BF16;
	return true;
}

int main(int argc, char **argv)
{
	static bench b;
	options o = {"cpu", "tinyllama-1.1b", "bf16", "wall", 0, 0, 7, 0};
	fp_status status;
	double bandwidth = 0;
	fp_context *ctx = fp_context_new();
	if (!ctx || !read_options(&o, argc, argv) || !choose(&b, &o)) {
		fprintf(
			stderr,
			"usage: bench_decode [--device cpu|cuda] [--shape tinyllama-1.1b|llama-2-7b|llama-3.1-8b|small] "
			"[--type bf16|f16|f32] [--threads N] [--layers N] [--rounds N] [--bandwidth GB/S] [--clock wall|cpu]\n");
		return 2;
	}
	FP_TRY(fp_backend_open(&b.be, ctx, o.device, o.threads));
	FP_TRY(measure_bandwidth(&b, &bandwidth));
	FP_TRY(make_weights(&b));
	FP_TRY(make_vectors(&b));
	FP_TRY(measure_all(&b, o.rounds));
	FP_TRY(measure_bandwidth(&b, &bandwidth));
	printf("%s\n%s, %lld layers, %s, best of %d rounds%s\nread bandwidth: %.1f GB/s", b.be->description, b.shape.name,
		   (long long)b.shape.layers, fp_dtype_name(b.type), o.rounds, b.processor_time ? ", processor time" : "",
		   bandwidth);
	if (o.bandwidth > 0)
		printf("; shares are of %.1f GB/s", o.bandwidth);
	printf("\n");
	print_results(&b, o.bandwidth > 0 ? o.bandwidth : bandwidth);
	print_groups(&b);

cleanup:
	if (status != FP_OK)
		fprintf(stderr, "bench_decode: %s\n", fp_context_message(ctx));
	if (b.be)
		clear(&b);
	fp_backend_close(b.be);
	fp_context_free(ctx);
	return fp_status_exit_code(status);
}
