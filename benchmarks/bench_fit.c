/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_fit: times the parts of one step of the layer fit, and the whole fit of one layer.
 *
 *     bench_fit MODEL [DEVICE [LENGTH [WINDOWS [LAYER]]]]     (auto, 2048, 128, 0)
 *
 * The input is noise, the target is the layer's output for it, and the layer to fit is a copy with every
 * other weight zeroed. The whole fit is timed with the plain metric and with the gradient metric, whose
 * gradients are noise too. Rates count the necessary products and are compared with a large product of
 * the same precision.
 */
#include "peak.h"

#include "base/memory.h"
#include "base/mersenne.h"
#include "fitting/layer_fit.h"

#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 10 };

typedef struct bench {
	fp_context *ctx;
	fp_backend *be;
	fp_checkpoint *checkpoint;
	fp_model *model;
	fp_settings *settings;
	fp_layer *layer;
	fp_matrix input, target;
	int64_t length, windows, index;
	double peak; /* FLOP/s of a large product */
} bench;

/* Uniform noise, in each window a shifted copy, which is cheap to generate. */
static fp_status fill_noise(bench *b)
{
	fp_mersenne random;
	float *row = NULL;
	int64_t size = b->length * b->input.cols;
	fp_status status;
	fp_mersenne_seed(&random, 1);
	FP_TRY(FP_NEW(b->ctx, &row, size));
	for (int64_t i = 0; i < size; i++)
		row[i] = (float)fp_mersenne_between(&random, -1000, 1000) / 577.0F;
	for (int64_t w = 0; w < b->windows; w++) {
		fp_matrix part = fp_matrix_rows(b->input, w * b->length, b->length);
		FP_TRY(b->be->memory->upload(b->be, part, row, FP_F32, b->input.cols));
		for (int64_t i = 0; i < b->input.cols; i++)
			row[(w * 7919 + i) % size] = -row[(w * 104729 + i) % size];
	}
cleanup:
	fp_free(row);
	return status;
}

/* Zeroes every other weight. */
static fp_status thin_out(bench *b)
{
	fp_status status = FP_OK;
	fp_matrix mask = {0}, own = {0}, wide;
	fp_pattern pattern = {.kept = 2, .group = 4, .sparsity = 0.5};
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = b->layer->weight[role];
		if (fp_matrix_is_absent(weight))
			continue;
		FP_TRY(fp_matrix_new(b->be, &mask, weight.rows, weight.cols, FP_U8));
		FP_TRY(fp_matrix_widen(b->be, weight, &own, &wide));
		FP_TRY(b->be->pruning->mask_smallest(b->be, wide, &pattern, mask));
		FP_TRY(b->be->pruning->apply_mask(b->be, mask, wide));
		if (weight.dtype != FP_F32)
			FP_TRY(b->be->memory->copy(b->be, weight, wide));
		fp_matrix_free(b->be, &mask);
		fp_matrix_free(b->be, &own);
	}
cleanup:
	fp_matrix_free(b->be, &mask);
	fp_matrix_free(b->be, &own);
	return status;
}

static fp_status make_target(bench *b)
{
	fp_status status;
	fp_workspace *workspace = NULL;
	FP_PRODUCTS_FOR(b->be, FP_USE_ACTIVATION);
	FP_TRY(fp_workspace_new(&workspace, b->model, b->length));
	FP_TRY(b->be->memory->copy(b->be, b->target, b->input));
	for (int64_t w = 0; w < b->windows; w++) {
		fp_layer_state state = {
			.sequences = 1, .length = b->length, .hidden = fp_matrix_rows(b->target, w * b->length, b->length)};
		FP_TRY(fp_layer_forward(b->layer, &state, workspace));
	}
cleanup:
	fp_workspace_free(workspace);
	return status;
}

static fp_status measure_peak(bench *b)
{
	enum { SIZE = 8192 };
	fp_matrix M[3] = {{0}};
	fp_dtype dtype = fp_backend_rounds(b->be, FP_USE_ACTIVATION) ? FP_BF16 : FP_F32;
	int64_t size = b->be->asynchronous ? SIZE : SIZE / 8;
	fp_status status;
	for (int i = 0; i < 3; i++)
		FP_TRY(fp_matrix_new(b->be, &M[i], size, size, i < 2 ? dtype : FP_F32));
	/* Not constants: their products run faster. */
	fp_matrix noise = fp_matrix_reshape(b->input, size, size);
	for (int i = 0; i < 2; i++)
		FP_TRY(fp_matrix_size(b->input) >= size * size ? b->be->memory->copy(b->be, M[i], noise) : FP_OK);
	for (int i = 0; i < 2; i++) {
		double started = bench_now();
		for (int k = 0; k < REPEATS; k++)
			FP_TRY(b->be->linear->gemm(b->be, 1, M[0], FP_PLAIN, M[1], FP_TRANSPOSED, 0, M[2]));
		FP_TRY(b->be->memory->synchronize(b->be));
		b->peak = REPEATS * 2.0 * (double)size * (double)size * (double)size / (bench_now() - started);
	}
cleanup:
	for (int i = 0; i < 3; i++)
		fp_matrix_free(b->be, &M[i]);
	return status;
}

static void print_row(const bench *b, const char *what, double seconds, double flops)
{
	printf("%-24s %9.3f ms", what, seconds * 1e3);
	if (flops > 0)
		printf(" %9.1f TFLOP/s  %5.3f of a large product", flops / seconds * 1e-12, flops / seconds / b->peak);
	printf("\n");
}

/* FLOP of one forward pass; without attention's unless `attention`. */
static double pass_flops(const bench *b, double tokens, bool attention)
{
	const fp_model_config *c = fp_model_get_config(b->model);
	double flops = 0;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		flops += 2 * tokens * (double)fp_matrix_size(b->layer->weight[role]);
	return flops + (attention ? 2 * tokens * (double)(b->length + 1) * (double)(c->heads * c->head_dim) : 0);
}

/* The mean time of a few runs of `part`, after a warm-up. */
typedef fp_status (*part_function)(void *data);
static fp_status time_part(bench *b, part_function part, void *data, double *seconds)
{
	fp_status status = part(data);
	if (status == FP_OK)
		status = b->be->memory->synchronize(b->be);
	double started = bench_now();
	for (int i = 0; i < REPEATS && status == FP_OK; i++)
		status = part(data);
	if (status == FP_OK)
		status = b->be->memory->synchronize(b->be);
	*seconds = (bench_now() - started) / REPEATS;
	return status;
}

typedef struct step {
	bench *b;
	fp_tape *tape;
	int64_t sequences;
	fp_layer_matrices gradients, mean, square, weights;
	fp_attention_shape shape;
	fp_matrix Q, K, V, out, dout, dQ, dK, dV;
	fp_layer layer; /* weights have the type that products read */
} step;

static fp_status run_forward(void *data)
{
	step *s = data;
	fp_matrix output;
	return fp_layer_forward_taped(&s->layer, s->sequences, s->b->length,
								  fp_matrix_rows(s->b->input, 0, s->sequences * s->b->length), s->tape, &output);
}

static fp_status run_both(void *data)
{
	step *s = data;
	fp_status status = run_forward(data);
	return status == FP_OK ? fp_layer_backward(&s->layer, s->tape, false, &s->gradients) : status;
}

static fp_status run_update(void *data)
{
	step *s = data;
	fp_adam rule = {1e-9F, 0.9F, 0.999F, 1e-12F, 1, true, {0}};
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (s->layer.weight[role].dtype == FP_BF16)
			rule.narrow = s->layer.weight[role];
		if (!fp_matrix_is_absent(s->weights.weight[role]))
			FP_TRY(s->b->be->gradients->adam_step(s->b->be, &rule, s->gradients.weight[role], s->mean.weight[role],
												  s->square.weight[role], s->weights.weight[role]));
	}
cleanup:
	return status;
}

static fp_status run_attention(void *data)
{
	step *s = data;
	return s->b->be->transformer->attention(s->b->be, &s->shape, s->Q, s->K, s->V, s->out);
}

static fp_status run_attention_backward(void *data)
{
	step *s = data;
	return s->b->be->gradients->attention_backward(s->b->be, &s->shape, s->Q, s->K, s->V, s->out, s->dout, s->dQ, s->dK,
												   s->dV);
}

static fp_status step_new(step *s)
{
	bench *b = s->b;
	const fp_model_config *c = fp_model_get_config(b->model);
	int64_t tokens = s->sequences * b->length, query = c->heads * c->head_dim, key = c->kv_heads * c->head_dim;
	fp_matrix *all[] = {&s->Q, &s->out, &s->dout, &s->dQ, &s->K, &s->V, &s->dK, &s->dV};
	fp_layer_matrices *sets[] = {&s->gradients, &s->square, &s->weights};
	bool rounds = fp_backend_rounds(b->be, FP_USE_ACTIVATION);
	fp_dtype type = rounds ? FP_BF16 : FP_F32; /* as in the tape and the optimiser */
	fp_status status;
	s->shape = fp_layer_attention_shape(b->layer, s->sequences, b->length);
	s->layer = *b->layer;
	FP_TRY(fp_tape_new(&s->tape, b->model, tokens));
	for (int i = 0; i < 8; i++) {
		FP_TRY(fp_matrix_new(b->be, all[i], tokens, i < 4 ? query : key, type));
		FP_TRY(b->be->memory->copy(b->be, *all[i], fp_matrix_reshape(b->input, tokens, all[i]->cols)));
	}
	for (int i = 0; i < 3; i++)
		FP_TRY(fp_layer_matrices_new(sets[i], b->layer));
	FP_TRY(fp_layer_matrices_empty(&s->mean, b->model));
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = b->layer->weight[role];
		if (fp_matrix_is_absent(weight))
			continue;
		FP_TRY(b->be->memory->copy(b->be, s->weights.weight[role], weight));
		FP_TRY(fp_matrix_new(b->be, &s->mean.weight[role], weight.rows, weight.cols, type));
		FP_TRY(b->be->memory->fill(b->be, s->mean.weight[role], 0));
		FP_TRY(b->be->memory->fill(b->be, s->square.weight[role], 0));
		if (!rounds)
			continue;
		FP_TRY(fp_matrix_new(b->be, &s->layer.weight[role], weight.rows, weight.cols, FP_BF16));
		FP_TRY(b->be->memory->copy(b->be, s->layer.weight[role], weight));
	}
cleanup:
	return status;
}

static void step_free(step *s)
{
	fp_matrix *all[] = {&s->Q, &s->out, &s->dout, &s->dQ, &s->K, &s->V, &s->dK, &s->dV};
	fp_layer_matrices *sets[] = {&s->gradients, &s->mean, &s->square, &s->weights};
	for (int i = 0; i < 8; i++)
		fp_matrix_free(s->b->be, all[i]);
	for (int i = 0; i < 4; i++)
		fp_layer_matrices_free(s->b->be, sets[i]);
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (s->layer.weight[role].buffer != s->b->layer->weight[role].buffer)
			fp_matrix_free(s->b->be, &s->layer.weight[role]);
	fp_tape_free(s->tape);
}

static fp_status time_attention(bench *b, step *s, double scores)
{
	double seconds;
	FP_PRODUCTS_FOR(b->be, FP_USE_ACTIVATION);
	fp_status status;
	FP_TRY(time_part(b, run_attention, s, &seconds));
	print_row(b, "attention", seconds, scores);
	FP_TRY(time_part(b, run_attention_backward, s, &seconds));
	print_row(b, "attention backward", seconds, 2.5 * scores);
cleanup:
	return status;
}

static fp_status time_step(bench *b)
{
	step s = {.b = b, .sequences = fp_fit_batch(b->settings, b->windows, b->length)};
	double tokens = (double)(s.sequences * b->length), forward, both, update;
	const fp_model_config *c = fp_model_get_config(b->model);
	double scores = pass_flops(b, tokens, true) - pass_flops(b, tokens, false);
	/* Without the gradient of the layer's input, q, k and v need two products each, not three. */
	double unwanted = 2 * tokens * (double)(c->heads + 2 * c->kv_heads) * (double)(c->head_dim * c->hidden);
	double backward = 2 * pass_flops(b, tokens, false) - unwanted + 2.5 * scores;
	fp_status status;
	FP_TRY(step_new(&s));
	FP_TRY(time_part(b, run_forward, &s, &forward));
	FP_TRY(time_part(b, run_both, &s, &both));
	FP_TRY(time_part(b, run_update, &s, &update));
	printf("one step: %lld windows of %lld tokens\n", (long long)s.sequences, (long long)b->length);
	print_row(b, "forward", forward, pass_flops(b, tokens, true));
	print_row(b, "backward", both - forward, backward);
	print_row(b, "Adam", update, 0);
	print_row(b, "all of it", both + update, pass_flops(b, tokens, true) + backward);
	FP_TRY(time_attention(b, &s, scores));
cleanup:
	step_free(&s);
	return status;
}

static fp_status read_window(void *data, int64_t window, fp_matrix input, fp_matrix target)
{
	const bench *b = data;
	int64_t row = window * b->length;
	fp_status status = b->be->memory->copy(b->be, input, fp_matrix_rows(b->input, row, b->length));
	return status == FP_OK ? b->be->memory->copy(b->be, target, fp_matrix_rows(b->target, row, b->length)) : status;
}

/* Noise in place of gradients. */
static fp_status read_gradients(void *data, int64_t window, fp_matrix out)
{
	const bench *b = data;
	return b->be->memory->copy(b->be, out, fp_matrix_rows(b->input, window * b->length, b->length));
}

/* Fits a copy of the layer, with gradients for an eighth of the windows or with none. */
static fp_status time_fit(bench *b, bool gradients)
{
	fp_layer *layer = NULL;
	fp_fit_result result;
	fp_status status;
	fp_fit_task task = {.be = b->be,
						.ctx = b->ctx,
						.settings = b->settings,
						.read = read_window,
						.read_data = b,
						.windows = b->windows,
						.length = b->length,
						.batch = b->be->asynchronous && b->length < 16384 ? 16384 / b->length : 1};
	FP_TRY(fp_layer_copy(&layer, b->layer));
	task.layer = layer;
	if (gradients) {
		task.gradient_windows = b->windows > 8 ? b->windows / 8 : 1;
		task.read_gradients = read_gradients;
	}
	FP_TRY(b->be->memory->synchronize(b->be));
	FP_TRY(fp_fit_layer(&task, &result));
	printf("%-24s %9.3f s, loss %.6f to %.6f%s\n", "fit of a layer", result.seconds, result.loss_before,
		   result.loss_after, gradients ? ", by gradients" : "");
cleanup:
	fp_layer_free(layer);
	return status;
}

static fp_status run_bench(bench *b, const char *directory, const char *device)
{
	fp_status status;
	FP_TRY(fp_settings_new(&b->settings, b->ctx));
	FP_TRY(fp_settings_assign(b->settings, b->ctx, "preset=best"));
	FP_TRY(fp_settings_resolve(b->settings, b->ctx, "llama"));
	FP_TRY(fp_backend_open(&b->be, b->ctx, device, 0));
	FP_TRY(fp_checkpoint_open(&b->checkpoint, b->ctx, directory));
	FP_TRY(fp_model_open(&b->model, b->be, b->checkpoint));
	int64_t hidden = fp_model_get_config(b->model)->hidden;
	FP_TRY(fp_backend_set_precision(b->be, "auto", hidden));
	FP_TRY(fp_layer_load(&b->layer, b->model, b->index));
	FP_TRY(fp_matrix_new(b->be, &b->input, b->windows * b->length, hidden, FP_F32));
	FP_TRY(fp_matrix_new(b->be, &b->target, b->windows * b->length, hidden, FP_F32));
	FP_TRY(fill_noise(b));
	FP_TRY(make_target(b));
	FP_TRY(thin_out(b));
	FP_TRY(measure_peak(b));
	printf("%s\n%-24s %9.1f TFLOP/s\n", b->be->description, "a large product", b->peak * 1e-12);
	FP_TRY(time_step(b));
	for (int turn = 0; turn < 2; turn++)
		FP_TRY(time_fit(b, turn > 0));
	printf("%-24s %9.2f GiB\n", "peak device memory", (double)b->be->peak_bytes / 1073741824.0);
cleanup:
	return status;
}

int main(int argc, char **argv)
{
	long long numbers[3] = {2048, 128, 0};
	for (int i = 3; i < argc && i < 6; i++)
		numbers[i - 3] = atoll(argv[i]);
	if (argc < 2 || argc > 6 || numbers[0] < 1 || numbers[1] < 2 || numbers[2] < 0) {
		fprintf(stderr, "usage: bench_fit MODEL [DEVICE [LENGTH [WINDOWS [LAYER]]]]\n");
		return 2;
	}
	bench b = {.ctx = fp_context_new(), .length = numbers[0], .windows = numbers[1], .index = numbers[2]};
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!b.ctx)
		return 4;
	fp_status status = run_bench(&b, argv[1], argc > 2 ? argv[2] : "auto");
	if (status != FP_OK)
		fprintf(stderr, "bench_fit: %s\n", fp_context_message(b.ctx));
	if (b.be) {
		fp_matrix_free(b.be, &b.input);
		fp_matrix_free(b.be, &b.target);
	}
	fp_layer_free(b.layer);
	fp_model_close(b.model);
	fp_checkpoint_close(b.checkpoint);
	fp_backend_close(b.be);
	fp_settings_free(b.settings);
	fp_context_free(b.ctx);
	return fp_status_exit_code(status);
}
