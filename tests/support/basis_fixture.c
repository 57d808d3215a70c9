/* SPDX-License-Identifier: Apache-2.0 */
#include "basis_fixture.h"

#include "checkpoint/checkpoint_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

float *matrix_floats(model_fixture *f, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_non_null(out);
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_F32, matrix.cols, matrix));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	return out;
}

void set_matrix(model_fixture *f, fp_matrix matrix, const float *values)
{
	assert_ok(f->ctx, f->be->memory->upload(f->be, matrix, values, FP_F32, matrix.cols));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
}

/* Rows of B ← an orthonormal basis, by Gram and Schmidt; with keep_ones the first is 1/√n. */
static void random_frame(double *B, int64_t n, bool keep_ones, uint64_t *seed)
{
	for (int64_t i = 0; i < n; i++) {
		double *row = B + i * n, size;
		do {
			for (int64_t j = 0; j < n; j++)
				row[j] = i == 0 && keep_ones ? 1 : (double)random_normal(seed);
			for (int pass = 0; pass < 2; pass++)
				for (int64_t k = 0; k < i; k++) {
					double dot = 0;
					for (int64_t j = 0; j < n; j++)
						dot += row[j] * B[k * n + j];
					for (int64_t j = 0; j < n; j++)
						row[j] -= dot * B[k * n + j];
				}
			size = 0;
			for (int64_t j = 0; j < n; j++)
				size += row[j] * row[j];
		} while (size < 1e-6);
		for (int64_t j = 0; j < n; j++)
			row[j] /= sqrt(size);
	}
}

void random_orthogonal(float *Q, int64_t n, bool keep_ones, uint64_t *seed)
{
	double *from = malloc((size_t)(n * n) * sizeof *from), *to = malloc((size_t)(n * n) * sizeof *to);
	random_frame(from, n, keep_ones, seed);
	random_frame(to, n, keep_ones, seed);
	for (int64_t i = 0; i < n; i++) /* Σ to_k from_kᵀ: the ones of one frame become those of the other */
		for (int64_t j = 0; j < n; j++) {
			double sum = 0;
			for (int64_t k = 0; k < n; k++)
				sum += to[k * n + i] * from[k * n + j];
			Q[i * n + j] = (float)sum;
		}
	free(from);
	free(to);
}

static void fill_blocks(model_fixture *f, fp_matrix M, bool keep_ones, uint64_t *seed)
{
	float *values = malloc((size_t)fp_matrix_size(M) * sizeof *values);
	for (int64_t first = 0; first < M.rows; first += M.cols) {
		float *block = values + first * M.cols;
		random_orthogonal(block, M.cols, keep_ones, seed);
	}
	set_matrix(f, M, values);
	free(values);
}

/* A random order of so many channels. */
static void shuffle(int32_t *order, int64_t channels, uint64_t *seed)
{
	for (int64_t k = 0; k < channels; k++) { /* channel k goes to a random place among the first k + 1 */
		int64_t place = (int64_t)((double)(k + 1) * ((double)random_uniform(seed) + 1) / 2);
		place = place > k ? k : place;
		order[k] = order[place];
		order[place] = (int32_t)k;
	}
}

fp_basis *random_basis(model_fixture *f, const fp_basis_freedom *freedom, uint64_t seed)
{
	const fp_model_config *c = fp_model_get_config(f->model);
	fp_basis *basis;
	assert_ok(f->ctx, fp_basis_new(&basis, f->model, freedom, !freedom->stream));
	basis->turned = !freedom->stream;
	if (!freedom->stream)
		fill_blocks(f, basis->R, c->norm == FP_LAYER_NORM, &seed);
	for (int64_t i = 0; i < c->layers; i++) {
		fp_layer_basis *own = &basis->layers[i];
		if (freedom->value)
			fill_blocks(f, own->value, false, &seed);
		if (freedom->query)
			fill_blocks(f, own->query, false, &seed);
		int64_t experts = fp_first_channel(f->model, i, 0), channels = fp_layer_channels(f->model, i);
		assert_ok(f->ctx, FP_NEW(f->ctx, &own->inner, channels));
		shuffle(own->inner, experts, &seed);
		for (int64_t first = experts; first < channels; first += c->experts.inner)
			shuffle(own->inner + first, c->experts.inner, &seed);
	}
	return basis;
}

/* Unlike fmax(), NaN is the largest of all. */
static double larger(double a, double b)
{
	return a >= b || isnan(a) ? a : b;
}

double orthogonality_error(model_fixture *f, fp_matrix M)
{
	float *values = matrix_floats(f, M);
	int64_t n = M.cols;
	double worst = 0;
	for (int64_t first = 0; first < M.rows; first += n)
		for (int64_t i = 0; i < n; i++)
			for (int64_t j = 0; j < n; j++) {
				double sum = i == j ? -1 : 0;
				for (int64_t k = first; k < first + n; k++)
					sum += (double)values[k * n + i] * (double)values[k * n + j];
				worst = larger(worst, fabs(sum));
			}
	free(values);
	return worst;
}

double ones_error(model_fixture *f, fp_matrix R)
{
	float *values = matrix_floats(f, R);
	double worst = 0;
	for (int64_t i = 0; i < R.rows; i++) {
		double sum = -1;
		for (int64_t j = 0; j < R.cols; j++)
			sum += (double)values[i * R.cols + j];
		worst = larger(worst, fabs(sum));
	}
	free(values);
	return worst;
}

float *all_losses(model_fixture *f, const fp_windows *windows)
{
	int64_t rows = windows->count * windows->length, vocabulary = fp_model_get_config(f->model)->vocabulary;
	float *out = malloc((size_t)(rows * vocabulary) * sizeof *out);
	int32_t *targets = malloc((size_t)rows * sizeof *targets);
	fp_matrix hidden;
	run_model(f, windows->ids, windows->count, windows->length, &hidden);
	for (int64_t target = 0; target < vocabulary; target++) {
		for (int64_t i = 0; i < rows; i++)
			targets[i] = (int32_t)target;
		assert_ok(f->ctx, fp_model_loss(f->model, hidden, targets, out + target * rows, NULL));
	}
	fp_matrix_free(f->be, &hidden);
	free(targets);
	return out;
}

double largest_difference(const float *a, const float *b, int64_t count)
{
	double worst = 0;
	for (int64_t i = 0; i < count; i++)
		worst = larger(worst, fabs((double)a[i] - (double)b[i]));
	return worst;
}

void spoil_tensor(const char *folder, const char *tensor, int64_t index, bool nan)
{
	fp_context *ctx = fp_context_new();
	fp_checkpoint *checkpoint;
	char path[8192];
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, folder));
	const fp_tensor_info *info = fp_checkpoint_find(checkpoint, tensor);
	if (!info)
		fail_msg("%s has no tensor %s", folder, tensor);
	int64_t size = fp_dtype_size(info->dtype), offset = info->offset + index * size;
	unsigned char bytes[4];
	memset(bytes, nan ? 0x7F : 0, sizeof bytes);
	bytes[0] = nan ? 0xFF : 0; /* little-endian: 0x7FFF and 0x7F7F7FFF; the last would be finite */
	if (nan && size == 4)
		bytes[2] = 0xFF;
	snprintf(path, sizeof path, "%s/%s", folder, checkpoint->shards[info->shard]);
	fp_checkpoint_close(checkpoint);
	fp_context_free(ctx);
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
	assert_int_equal(fwrite(bytes, 1, (size_t)size, file), (size_t)size);
	assert_int_equal(fclose(file), 0);
}

fp_basis_task basis_task(model_fixture *f, const fp_settings *settings, const fp_windows *windows, bool stream)
{
	fp_basis_task task = {.be = f->be,
						  .ctx = f->ctx,
						  .model = f->model,
						  .settings = settings,
						  .windows = windows,
						  .stream = stream,
						  .memory = (int64_t)1 << 40};
	assert_ok(f->ctx, fp_basis_freedom_of(&task.freedom, f->model));
	assert_ok(f->ctx, fp_parse_sparsity(f->ctx, settings->pattern, &task.pattern.sparsity, &task.pattern.kept,
										&task.pattern.group));
	return task;
}
