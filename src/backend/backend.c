/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: which backends there are, and conveniences over their table that need no device. */
#include "backend/backend.h"

#include "backend/cpu/cpu_backend.h"
#include <math.h>
#include <string.h>

/* One row per backend. `device` is what stands after the colon of "name:device", or NULL. */
typedef struct registry_row {
	const char *name;
	fp_status (*open)(fp_backend **out, fp_context *ctx, const char *device, int threads);
} registry_row;

static fp_status open_cpu(fp_backend **out, fp_context *ctx, const char *device, int threads)
{
	if (device)
		return fp_fail(ctx, FP_ERROR_USAGE, "device 'cpu:%s': the CPU has no numbers; use --device cpu", device);
	return fp_cpu_open(out, ctx, threads);
}

/* A CUDA backend is a module of its own that is loaded here with dlopen(), so that one program runs with and without a
 * GPU. None is built yet; asking for it must never fall back silently. */
static fp_status open_cuda(fp_backend **out, fp_context *ctx, const char *device, int threads)
{
	(void)out;
	(void)threads;
	return fp_fail(ctx, FP_ERROR_DEVICE, "device 'cuda%s%s': this build has no CUDA backend; use --device cpu",
				   device ? ":" : "", device ? device : "");
}

static const registry_row registry[] = {
	{"cpu", open_cpu},
	{"cuda", open_cuda},
};

static fp_status open_auto(fp_backend **out, fp_context *ctx, int threads)
{
	fp_status status = fp_cpu_open(out, ctx, threads);
	if (status == FP_OK)
		fp_log(ctx, FP_LOG_INFO, "device auto: chose %s", (*out)->description);
	return status;
}

fp_status fp_backend_open(fp_backend **out, fp_context *ctx, const char *name, int threads)
{
	*out = NULL;
	if (threads < 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "%d threads are not possible; use 1 or more, or 0 for all", threads);
	if (strcmp(name, "auto") == 0)
		return open_auto(out, ctx, threads);
	const char *colon = strchr(name, ':');
	size_t length = colon ? (size_t)(colon - name) : strlen(name);
	for (size_t i = 0; i < sizeof registry / sizeof *registry; i++) {
		if (strlen(registry[i].name) == length && strncmp(registry[i].name, name, length) == 0)
			return registry[i].open(out, ctx, colon ? colon + 1 : NULL, threads);
	}
	return fp_fail(ctx, FP_ERROR_USAGE, "no device is called '%s'; there are: auto, cpu, cuda, cuda:NUMBER", name);
}

void fp_backend_close(fp_backend *be)
{
	if (be)
		be->ops->close(be);
}

int64_t fp_pattern_zeros(const fp_pattern *pattern, int64_t entries)
{
	double zeros = floor(pattern->sparsity * (double)entries);
	if (!(zeros > 0))
		return 0;
	return zeros >= (double)entries ? entries : (int64_t)zeros;
}

fp_status fp_matrix_new(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype dtype)
{
	memset(out, 0, sizeof *out);
	int64_t size = fp_dtype_size(dtype);
	FP_REQUIRE(be, rows >= 0 && cols >= 0 && size > 0);
	int64_t limit = INT64_MAX / size;
	if (rows > 0 && cols > limit / rows)
		return fp_fail(be->ctx, FP_ERROR_MEMORY, "a matrix of %lld × %lld %s is out of range", (long long)rows,
					   (long long)cols, fp_dtype_name(dtype));
	fp_buffer *buffer;
	fp_status status = be->ops->allocate(be, &buffer, rows * cols * size);
	if (status == FP_OK)
		*out = (fp_matrix){.buffer = buffer, .rows = rows, .cols = cols, .stride = cols, .dtype = dtype};
	return status;
}

void fp_matrix_free(fp_backend *be, fp_matrix *matrix)
{
	if (matrix->buffer)
		be->ops->release(be, matrix->buffer);
	memset(matrix, 0, sizeof *matrix);
}

fp_matrix fp_matrix_rows(fp_matrix m, int64_t first, int64_t rows)
{
	m.offset += first * m.stride;
	m.rows = rows;
	return m;
}

fp_matrix fp_matrix_cols(fp_matrix m, int64_t first, int64_t cols)
{
	m.offset += first;
	m.cols = cols;
	return m;
}

fp_matrix fp_matrix_reshape(fp_matrix m, int64_t rows, int64_t cols)
{
	m.rows = rows;
	m.cols = cols;
	m.stride = cols;
	return m;
}

bool fp_backend_has_gradients(const fp_backend *be)
{
	const fp_backend_operations *ops = be->ops;
	return ops->norm_backward && ops->activate_backward && ops->activate_gated_backward && ops->attention_backward &&
		   ops->column_sums && ops->difference && ops->adam_step;
}
