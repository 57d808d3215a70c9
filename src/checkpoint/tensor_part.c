/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/tensor_part.h"

#include <string.h>

enum { TILE = 32 }; /* rows and columns that are transposed at a time, to stay within the cache */

void fp_tensor_part(fp_tensor_info *out, const fp_tensor_info *whole, const char *name, const fp_part_place *place)
{
	const int64_t *stored = whole->shape + (whole->rank == 3); /* of the matrix that has the part */
	bool matrix = whole->rank >= 2;
	*out = *whole;
	out->name = name;
	out->whole = whole;
	out->rank = matrix ? 2 : 1;
	out->base = whole->rank == 3 ? place->matrix * stored[0] * stored[1] : 0;
	out->first = place->first;
	out->run = place->run;
	out->step = place->step;
	out->transposed = place->transposed && matrix;
	out->shape[1] = matrix ? stored[out->transposed ? 0 : 1] : out->shape[1];
	out->shape[0] = place->rows;
	out->elements = place->rows * (matrix ? out->shape[1] : 1);
	out->bytes = out->elements * fp_dtype_size(whole->dtype);
}

static int64_t row_bytes(const fp_tensor_info *part)
{
	return (part->rank == 2 ? part->shape[1] : 1) * fp_dtype_size(part->dtype);
}

static int64_t stored_row(const fp_tensor_info *part, int64_t row)
{
	return part->first + row / part->run * part->step + row % part->run;
}

int64_t fp_tensor_part_entry(const fp_tensor_info *part, int64_t i)
{
	int64_t columns = part->rank == 2 ? part->shape[1] : 1, line = stored_row(part, i / columns), column = i % columns;
	return part->base +
		   (part->transposed ? column * part->whole->shape[part->whole->rank - 1] + line : line * columns + column);
}

bool fp_tensor_part_is_contiguous(const fp_tensor_info *part, int64_t *offset)
{
	*offset = part->base * fp_dtype_size(part->dtype) + part->first * row_bytes(part);
	return !part->transposed && (part->run >= part->shape[0] || part->run == part->step);
}

/* Copies the entry of a row and column of the part out of or into `whole`, for a tile of them. */
static void copy_tile(const fp_tensor_info *part, char *whole, char *bytes, int64_t row, int64_t col, bool gather)
{
	int64_t size = fp_dtype_size(part->dtype), cols = part->shape[1],
			stride = part->whole->shape[part->whole->rank - 1];
	int64_t last_row = row + TILE < part->shape[0] ? row + TILE : part->shape[0];
	int64_t last_col = col + TILE < cols ? col + TILE : cols;
	for (int64_t r = row; r < last_row; r++) {
		int64_t at = stored_row(part, r);
		for (int64_t c = col; c < last_col; c++) {
			char *stored = whole + (c * stride + at) * size, *own = bytes + (r * cols + c) * size;
			memcpy(gather ? own : stored, gather ? stored : own, (size_t)size);
		}
	}
}

static void copy_all(const fp_tensor_info *part, char *whole, char *bytes, bool gather)
{
	int64_t rows = part->shape[0], size = row_bytes(part);
	whole += part->base * fp_dtype_size(part->dtype);
	if (part->transposed) {
		for (int64_t row = 0; row < rows; row += TILE)
			for (int64_t col = 0; col < part->shape[1]; col += TILE)
				copy_tile(part, whole, bytes, row, col, gather);
		return;
	}
	for (int64_t row = 0; row < rows; row += part->run) {
		int64_t count = rows - row < part->run ? rows - row : part->run;
		char *stored = whole + stored_row(part, row) * size, *own = bytes + row * size;
		memcpy(gather ? own : stored, gather ? stored : own, (size_t)(count * size));
	}
}

void fp_tensor_part_gather(const fp_tensor_info *part, const void *whole, void *bytes)
{
	copy_all(part, (char *)whole, bytes, true); /* reads `whole` only */
}

void fp_tensor_part_scatter(const fp_tensor_info *part, const void *bytes, void *whole)
{
	copy_all(part, whole, (char *)bytes, false); /* reads `bytes` only */
}
