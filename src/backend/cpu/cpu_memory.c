/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_memory.c: buffers in host memory, and conversions between element types. */
#include "backend/cpu/cpu_backend.h"

#include "base/control_group.h"
#include "base/memory.h"
#include <stdio.h>
#include <string.h>

fp_status fp_cpu_allocate(fp_backend *be, fp_buffer **out, int64_t bytes)
{
	fp_status status;
	fp_buffer *buffer = NULL;
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &buffer, 1));
	FP_TRY(fp_allocate_undefined(be->ctx, &buffer->data, bytes));
	buffer->bytes = bytes;
	*out = buffer;
	return FP_OK;

cleanup:
	fp_free(buffer);
	return status;
}

void fp_cpu_release(fp_backend *be, fp_buffer *buffer)
{
	(void)be;
	if (buffer)
		fp_free(buffer->data);
	fp_free(buffer);
}

/* Converts a span from one type to another; between two 16-bit types by way of float. */
static void convert_span(char *out, fp_dtype to, const char *in, fp_dtype from, int64_t count)
{
	if (to == from) {
		memcpy(out, in, (size_t)(count * fp_dtype_size(to)));
	} else if (to == FP_F32) {
		fp_to_float((float *)(void *)out, in, from, count);
	} else if (from == FP_F32) {
		fp_from_float(out, to, (const float *)(const void *)in, count);
	} else {
		float piece[256];
		for (int64_t done = 0; done < count; done += 256) {
			int64_t size = count - done < 256 ? count - done : 256;
			fp_to_float(piece, in + done * fp_dtype_size(from), from, size);
			fp_from_float(out + done * fp_dtype_size(to), to, piece, size);
		}
	}
}

typedef struct raw_view {
	char *data;
	fp_dtype dtype;
	int64_t stride;
} raw_view;

static fp_status convert(fp_backend *be, raw_view out, raw_view in, int64_t rows, int64_t cols)
{
	bool known = out.dtype == in.dtype || (fp_dtype_is_weight(out.dtype) && fp_dtype_is_weight(in.dtype));
	FP_REQUIRE(be, known && fp_dtype_size(out.dtype) > 0);
	FP_REQUIRE(be, rows <= 1 || (out.stride >= cols && in.stride >= cols));
	bool contiguous = rows <= 1 || (out.stride == cols && in.stride == cols);
	fp_cpu_tiles tiles = fp_cpu_cut(rows, cols, contiguous);
	int64_t out_size = fp_dtype_size(out.dtype), in_size = fp_dtype_size(in.dtype);
#pragma omp parallel for num_threads(be->threads) if (rows * cols >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		convert_span(out.data + (tile.row * out.stride + tile.col) * out_size, out.dtype,
					 in.data + (tile.row * in.stride + tile.col) * in_size, in.dtype, tile.size);
	}
	return FP_OK;
}

void *fp_cpu_address(fp_matrix m)
{
	return (char *)m.buffer->data + m.offset * fp_dtype_size(m.dtype);
}

static raw_view view_of(fp_matrix m)
{
	return (raw_view){fp_cpu_address(m), m.dtype, m.stride};
}

fp_status fp_cpu_upload(fp_backend *be, fp_matrix out, const void *host, fp_dtype dtype, int64_t stride)
{
	FP_REQUIRE(be, fp_cpu_is_view(out, out.dtype));
	raw_view in = {(char *)(uintptr_t)host, dtype, stride}; /* only read */
	return convert(be, view_of(out), in, out.rows, out.cols);
}

fp_status fp_cpu_download(fp_backend *be, void *host, fp_dtype dtype, int64_t stride, fp_matrix in)
{
	FP_REQUIRE(be, fp_cpu_is_view(in, in.dtype));
	raw_view out = {host, dtype, stride};
	return convert(be, out, view_of(in), in.rows, in.cols);
}

fp_status fp_cpu_copy(fp_backend *be, fp_matrix out, fp_matrix in)
{
	FP_REQUIRE(be, fp_cpu_is_view(out, out.dtype) && fp_cpu_is_view(in, in.dtype));
	FP_REQUIRE(be, fp_cpu_same_shape(out, in));
	return convert(be, view_of(out), view_of(in), in.rows, in.cols);
}

fp_status fp_cpu_fill(fp_backend *be, fp_matrix out, float value)
{
	FP_REQUIRE(be, fp_cpu_is_f32(out) || fp_cpu_is_u8(out));
	FP_REQUIRE(be, out.dtype == FP_F32 || (value >= 0.0f && value <= 255.0f));
	fp_cpu_tiles tiles = fp_cpu_cut(out.rows, out.cols, fp_cpu_is_contiguous(out));
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(out) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		if (out.dtype == FP_U8) {
			memset(fp_cpu_bytes(out) + tile.row * out.stride + tile.col, (int)value, (size_t)tile.size);
		} else {
			float *span = fp_cpu_floats(out) + tile.row * out.stride + tile.col;
			for (int64_t i = 0; i < tile.size; i++)
				span[i] = value;
		}
	}
	return FP_OK;
}

/* The kernel's estimate of what can be allocated without swapping, limited by the control group. */
fp_status fp_cpu_memory(fp_backend *be, int64_t *available, int64_t *total)
{
	long long free_kib = -1, total_kib = -1;
	FILE *file = fopen("/proc/meminfo", "r");
	if (!file)
		return fp_fail(be->ctx, FP_ERROR_IO, "/proc/meminfo cannot be read, so the amount of free memory is unknown");
	char line[256];
	while (fgets(line, sizeof line, file)) {
		(void)sscanf(line, "MemTotal: %lld kB", &total_kib);
		(void)sscanf(line, "MemAvailable: %lld kB", &free_kib);
	}
	fclose(file);
	if (free_kib < 0 || total_kib < 0)
		return fp_fail(be->ctx, FP_ERROR_IO, "/proc/meminfo has no MemTotal and MemAvailable");
	*available = (int64_t)free_kib * 1024;
	*total = (int64_t)total_kib * 1024;
	int64_t limit, left;
	if (fp_control_group_memory("", &limit, &left) && limit < *total) {
		*total = limit;
		*available = left < *available ? left : *available;
	}
	return FP_OK;
}
