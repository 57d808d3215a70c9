/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/quantised_output.h"

#include "base/memory.h"
#include "checkpoint/integer_tensors.h"
#include "checkpoint/tensor_list.h"
#include <stdio.h>
#include <string.h>

/* The parts: values, scales, and then what the format has of shape and zero points. */
enum { VALUES, SCALES, SHAPE, ZEROS };
enum { AT_A_TIME = 256 };

static bool is_packed(const fp_grid_format *format)
{
	return strcmp(format->layout, "pack-quantized") == 0;
}

static void add_part(fp_quantised_tensor *out, int part, char **name, const char *ending, fp_dtype dtype, int64_t rows,
					 int64_t cols)
{
	fp_tensor_info *info = &out->parts[part];
	*info = (fp_tensor_info){.name = *name,
							 .dtype = dtype,
							 .dtype_name = fp_dtype_name(dtype),
							 .rank = cols > 0 ? 2 : 1,
							 .shape = {rows, cols}};
	fp_tensor_measure(info, 8 * fp_dtype_size(dtype)); /* smaller than the matrix */
	*name += sprintf(*name, "%s%s", out->matrix.name, ending) + 1;
	out->count++;
}

fp_status fp_quantised_tensor_new(fp_quantised_tensor *out, fp_context *ctx, const fp_tensor_info *tensor,
								  const fp_grid_format *format)
{
	const int64_t rows = tensor->shape[0], cols = tensor->shape[1], group = fp_grid_group(format, cols);
	const bool packed = is_packed(format);
	*out = (fp_quantised_tensor){.format = format, .matrix = *tensor};
	fp_status status = FP_NEW(ctx, &out->names, FP_QUANTISED_PARTS * ((int64_t)strlen(tensor->name) + 16));
	if (status != FP_OK)
		return status;
	char *name = out->names;
	if (packed)
		add_part(out, VALUES, &name, FP_PACKED_ENDING, FP_I32, rows, fp_code_words(cols, format->bits));
	else
		add_part(out, VALUES, &name, "", format->is_float ? FP_F8_E4M3 : FP_I8, rows, cols);
	add_part(out, SCALES, &name, FP_SCALE_ENDING, tensor->dtype, rows, cols / group);
	if (packed)
		add_part(out, SHAPE, &name, FP_SHAPE_ENDING, FP_I64, 2, 0);
	if (!format->symmetric)
		add_part(out, ZEROS, &name, FP_ZERO_POINT_ENDING, FP_I32, fp_code_words(rows, format->bits), cols / group);
	out->coding = (fp_tensor_coding){.kind = format->is_float ? FP_CODED_FP8
											 : packed         ? FP_CODED_WORDS
															  : FP_CODED_BYTES,
									 .values = &out->parts[VALUES],
									 .guide = &out->parts[SCALES],
									 .zeros = format->symmetric ? NULL : &out->parts[ZEROS],
									 .block = {1, group},
									 .bits = format->bits};
	out->matrix.coding = &out->coding;
	return FP_OK;
}

void fp_quantised_tensor_free(fp_quantised_tensor *tensor)
{
	fp_free(tensor->names);
	*tensor = (fp_quantised_tensor){0};
}

int64_t fp_quantised_tensor_bytes(const fp_quantised_tensor *tensor)
{
	int64_t bytes = 0;
	for (int i = 0; i < tensor->count; i++)
		bytes += tensor->parts[i].bytes;
	return bytes;
}

fp_status fp_quantised_parts_new(char *parts[FP_QUANTISED_PARTS], fp_context *ctx, const fp_quantised_tensor *tensor)
{
	fp_status status = FP_OK;
	for (int i = 0; i < FP_QUANTISED_PARTS; i++)
		parts[i] = NULL;
	for (int i = 0; status == FP_OK && i < tensor->count; i++)
		status = FP_NEW(ctx, &parts[i], tensor->parts[i].bytes);
	return status;
}

void fp_quantised_parts_free(char *parts[FP_QUANTISED_PARTS])
{
	for (int i = 0; i < FP_QUANTISED_PARTS; i++)
		fp_free(parts[i]);
}

/* Puts the codes of columns from `col` on into a row of zeros. */
static void put_codes(const fp_quantised_tensor *tensor, char *row, int64_t col, const float *codes, int64_t count)
{
	const int half = 1 << (tensor->format->bits - 1);
	int64_t i = 0;
	if (tensor->coding.kind == FP_CODED_WORDS) {
		for (; col % 2 == 0 && i + 1 < count; i += 2) /* two in a byte; words are little-endian */
			row[(col + i) / 2] = (char)(((int)codes[i] + half) | ((int)codes[i + 1] + half) << 4);
		for (; i < count; i++)
			fp_store_code(row, col + i, tensor->format->bits, 1, (int)codes[i]);
		return;
	}
	for (; i < count; i++)
		row[col + i] = (char)(tensor->format->is_float ? fp_grid_e4m3(codes[i]) : (uint8_t)(int)codes[i]);
}

/* The codes of `count` weights of a group, from column `col` on; false if one of them is not on the grid. */
static bool encode_entries(const fp_quantised_tensor *tensor, char *out, const char *bytes, int64_t col, int64_t count,
						   float scale, float zero)
{
	const fp_dtype dtype = tensor->matrix.dtype;
	const int64_t size = fp_dtype_size(dtype);
	float weights[AT_A_TIME], codes[AT_A_TIME];
	char back[AT_A_TIME * sizeof(float)];
	fp_to_float(weights, bytes + col * size, dtype, count);
	fp_grid_codes(tensor->format, scale, zero, weights, codes, count);
	for (int64_t i = 0; i < count; i++)
		weights[i] = (codes[i] - zero) * scale + 0.0F; /* never −0.0 */
	fp_from_float(back, dtype, weights, count);
	put_codes(tensor, out, col, codes, count);
	return memcmp(back, bytes + col * size, (size_t)(count * size)) == 0;
}

static bool encode_row(const fp_quantised_tensor *tensor, char *out, const char *bytes, const float *scales,
					   const float *zeros)
{
	const int64_t cols = tensor->matrix.shape[1], group = tensor->coding.block[1];
	bool good = true;
	for (int64_t first = 0; first < cols; first += group)
		for (int64_t done = 0; done < group; done += AT_A_TIME) {
			int64_t count = group - done < AT_A_TIME ? group - done : AT_A_TIME;
			good &= encode_entries(tensor, out, bytes, first + done, count, scales[first / group],
								   zeros ? zeros[first / group] : 0.0F);
		}
	return good;
}

static fp_status encode_values(char *values, fp_context *ctx, const fp_quantised_tensor *tensor, const char *bytes,
							   fp_grid_numbers numbers)
{
	const fp_tensor_info *matrix = &tensor->matrix;
	const int64_t rows = matrix->shape[0], groups = tensor->parts[SCALES].elements / rows;
	const int64_t row_bytes = tensor->parts[VALUES].bytes / rows, in_bytes = matrix->bytes / rows;
	int64_t wrong = rows;
	memset(values, 0, (size_t)tensor->parts[VALUES].bytes);
#pragma omp parallel for schedule(static) reduction(min : wrong)
	for (int64_t row = 0; row < rows; row++)
		if (!encode_row(tensor, values + row * row_bytes, bytes + row * in_bytes, numbers.scales + row * groups,
						numbers.zeros ? numbers.zeros + row * groups : NULL))
			wrong = row < wrong ? row : wrong;
	if (wrong < rows)
		return fp_fail(ctx, FP_ERROR_INTERNAL, "tensor '%s': row %lld is not on its grid", matrix->name,
					   (long long)wrong);
	return FP_OK;
}

fp_status fp_quantised_encode(char *const *parts, fp_context *ctx, const fp_quantised_tensor *tensor, const void *bytes,
							  fp_grid_numbers numbers)
{
	const fp_tensor_info *scales = &tensor->parts[SCALES];
	const int64_t rows = tensor->matrix.shape[0], groups = scales->elements / rows;
	fp_status status = encode_values(parts[VALUES], ctx, tensor, bytes, numbers);
	if (status != FP_OK)
		return status;
	fp_from_float(parts[SCALES], scales->dtype, numbers.scales, scales->elements);
	if (tensor->count > SHAPE)
		memcpy(parts[SHAPE], tensor->matrix.shape, 2 * sizeof(int64_t));
	if (tensor->count > ZEROS) {
		memset(parts[ZEROS], 0, (size_t)tensor->parts[ZEROS].bytes);
		for (int64_t i = 0; i < scales->elements; i++)
			fp_store_code(parts[ZEROS] + 4 * (i % groups), i / groups, tensor->format->bits, groups,
						  (int)numbers.zeros[i]);
	}
	return FP_OK;
}

fp_status fp_quantised_decode(void *bytes, fp_context *ctx, const fp_quantised_tensor *tensor, char *const *parts)
{
	return fp_tensor_decode(bytes, ctx, &tensor->matrix, parts[VALUES], parts[SCALES],
							tensor->coding.zeros ? parts[ZEROS] : NULL);
}
