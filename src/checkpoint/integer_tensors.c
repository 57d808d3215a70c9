/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/integer_tensors.h"

#include "base/memory.h"
#include "checkpoint/tensor_coding.h"
#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 512, AT_A_TIME = 256 };

/* Scales of activations and of the cache of keys and values, which weights do not need. */
static const char *const unused[] = {".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point",
									 ".k_scale",     ".v_scale",          ".k_zero_point", ".v_zero_point"};

static bool ends_with(const char *name, const char *ending)
{
	size_t length = strlen(name), tail = strlen(ending);
	return length > tail && strcmp(name + length - tail, ending) == 0;
}

int64_t fp_code_words(int64_t count, int bits)
{
	return count / (32 / bits) + (count % (32 / bits) != 0);
}

int fp_load_code(const void *words, int64_t index, int bits, int64_t stride)
{
	const int64_t in_word = 32 / bits;
	uint32_t word;
	memcpy(&word, (const char *)words + 4 * (index / in_word) * stride, sizeof word);
	uint32_t code = word >> (index % in_word * bits) & ((1U << bits) - 1);
	return (int)code - (1 << (bits - 1));
}

void fp_store_code(void *words, int64_t index, int bits, int64_t stride, int code)
{
	const int64_t in_word = 32 / bits;
	char *at = (char *)words + 4 * (index / in_word) * stride;
	uint32_t word;
	memcpy(&word, at, sizeof word);
	word |= (uint32_t)(code + (1 << (bits - 1))) << (index % in_word * bits);
	memcpy(at, &word, sizeof word);
}

/* A tensor whose name is base, which has `length` bytes, and an ending. */
static const fp_tensor_info *find(const fp_tensor_list *stored, const char *base, size_t length, const char *ending)
{
	char name[NAME_SIZE];
	int size = snprintf(name, sizeof name, "%.*s%s", (int)length, base, ending);
	return size < NAME_SIZE ? fp_tensor_list_find(stored, name) : NULL;
}

/* The tensors that make up one weight. */
typedef struct integer_parts {
	char name[NAME_SIZE]; /* that readers see */
	const fp_tensor_info *values, *scale, *shape, *zeros;
} integer_parts;

/* Whether a tensor is the values of a quantised weight; *out ← the others. */
static bool is_values(integer_parts *out, const fp_tensor_list *stored, const fp_tensor_info *tensor)
{
	bool packed = ends_with(tensor->name, ".weight" FP_PACKED_ENDING);
	size_t length = strlen(tensor->name) - (packed ? sizeof FP_PACKED_ENDING - 1 : 0);
	if ((!packed && (tensor->dtype != FP_I8 || !ends_with(tensor->name, ".weight"))) || length >= NAME_SIZE)
		return false;
	memcpy(out->name, tensor->name, length);
	out->name[length] = '\0';
	out->values = tensor;
	out->scale = find(stored, tensor->name, length, FP_SCALE_ENDING);
	out->shape = packed ? find(stored, tensor->name, length, FP_SHAPE_ENDING) : NULL;
	out->zeros = find(stored, tensor->name, length, FP_ZERO_POINT_ENDING);
	return true;
}

/* Whether a tensor belongs to a weight that is_values() finds, or is not needed. */
static bool is_hidden(const fp_tensor_list *stored, const fp_tensor_info *tensor)
{
	static const char *const endings[] = {FP_SCALE_ENDING, FP_SHAPE_ENDING, FP_ZERO_POINT_ENDING};
	for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
		if (ends_with(tensor->name, unused[i]))
			return true;
	for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
		integer_parts parts;
		if (!ends_with(tensor->name, endings[i]))
			continue;
		size_t length = strlen(tensor->name) - strlen(endings[i]);
		const fp_tensor_info *values = find(stored, tensor->name, length, FP_PACKED_ENDING);
		values = values ? values : find(stored, tensor->name, length, "");
		return values && is_values(&parts, stored, values);
	}
	return false;
}

/* *rows, *cols ← of the weight. */
static fp_status find_shape(const integer_parts *parts, fp_context *ctx, const fp_mapping *files, const char *directory,
							int64_t *rows, int64_t *cols)
{
	const fp_tensor_info *values = parts->values, *shape = parts->shape;
	int64_t sizes[2];
	if (values->rank != 2)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has %d dimensions; quantised matrices are supported",
					   directory, values->name, values->rank);
	*rows = values->shape[0];
	*cols = values->shape[1];
	if (values->dtype == FP_I8)
		return FP_OK;
	if (values->dtype != FP_I32)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has type %s; packed weights must be I32", directory,
					   values->name, values->dtype_name);
	if (!shape || shape->elements != 2 || (shape->dtype != FP_I64 && shape->dtype != FP_I32))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' needs its shape, '%s%s': two whole numbers", directory,
					   values->name, parts->name, FP_SHAPE_ENDING);
	const unsigned char *bytes = files[shape->shard].bytes + shape->offset;
	for (int i = 0; i < 2; i++) {
		int32_t narrow;
		if (shape->dtype == FP_I64) {
			memcpy(&sizes[i], bytes + 8 * i, sizeof sizes[i]);
		} else {
			memcpy(&narrow, bytes + 4 * i, sizeof narrow);
			sizes[i] = narrow;
		}
	}
	*cols = sizes[1];
	if (sizes[0] != *rows || sizes[1] < 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' says %lld x %lld, but '%s' has %lld rows", directory,
					   shape->name, (long long)sizes[0], (long long)sizes[1], values->name, (long long)*rows);
	return FP_OK;
}

/* coding->bits ← the width of the config that fits the words. */
static fp_status find_bits(fp_tensor_coding *coding, fp_context *ctx, const fp_quantisation *quantisation, int64_t cols,
						   const char *directory)
{
	static const int widths[] = {4, 8};
	const fp_tensor_info *values = coding->values;
	coding->bits = 0;
	if (values->dtype == FP_I8) {
		coding->bits = 8;
		return FP_OK;
	}
	for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
		if ((quantisation->widths >> widths[i] & 1) && fp_code_words(cols, widths[i]) == values->shape[1])
			coding->bits = coding->bits ? -1 : widths[i];
	if (coding->bits <= 0)
		return fp_fail(
			ctx, FP_ERROR_INPUT,
			"%s: tensor '%s' has %lld words in a row for %lld entries, which is %s of config.json's num_bits",
			directory, values->name, (long long)values->shape[1], (long long)cols,
			coding->bits < 0 ? "more than one" : "none");
	return FP_OK;
}

static bool has_shape(const fp_tensor_info *tensor, int64_t rows, int64_t cols)
{
	return tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols;
}

/* coding->block ← the entries that share a scale, by the scale's shape; the zero points must fit. */
static fp_status find_block(fp_tensor_coding *coding, fp_context *ctx, int64_t rows, int64_t cols,
							const char *directory)
{
	const fp_tensor_info *scale = coding->guide, *zeros = coding->zeros;
	int64_t groups = scale->rank == 2 ? scale->shape[1] : 1;
	bool by_rows = (scale->rank == 2 || scale->rank == 1) && scale->shape[0] == rows && rows > 0;
	if (by_rows && groups > 0 && cols > 0 && cols % groups == 0) {
		coding->block[0] = 1;
		coding->block[1] = cols / groups;
	} else if (scale->elements == 1) {
		groups = 1;
		coding->block[0] = rows > 0 ? rows : 1;
		coding->block[1] = cols > 0 ? cols : 1;
	} else {
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: tensor '%s' of %lld entries does not fit the weight's %lld x %lld: a scale for each group, "
					   "for each row or one entry is needed",
					   directory, scale->name, (long long)scale->elements, (long long)rows, (long long)cols);
	}
	if (!zeros)
		return FP_OK;
	bool good = coding->kind == FP_CODED_WORDS ? zeros->dtype == FP_I32 && coding->block[0] == 1 &&
													 has_shape(zeros, fp_code_words(rows, coding->bits), groups)
											   : zeros->dtype == FP_I8 && zeros->elements == scale->elements;
	if (!good)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' does not have the type and shape of zero points for '%s'",
					   directory, zeros->name, scale->name);
	return FP_OK;
}

static fp_status add_weight(fp_tensor_list *out, fp_tensor_coding *coding, fp_context *ctx, const integer_parts *parts,
							const fp_mapping *files, const fp_quantisation *quantisation, const char *directory)
{
	fp_tensor_info seen = *parts->values;
	const fp_tensor_info *scale = parts->scale;
	fp_status status;
	if (!scale)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has no scale: '%s%s' is missing", directory, seen.name,
					   parts->name, FP_SCALE_ENDING);
	if (!fp_dtype_is_weight(scale->dtype))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has type %s; scales must be F32, F16 or BF16", directory,
					   scale->name, scale->dtype_name);
	*coding = (fp_tensor_coding){.kind = parts->values->dtype == FP_I8 ? FP_CODED_BYTES : FP_CODED_WORDS,
								 .values = parts->values,
								 .guide = scale,
								 .zeros = parts->zeros};
	FP_TRY(find_shape(parts, ctx, files, directory, &seen.shape[0], &seen.shape[1]));
	FP_TRY(find_bits(coding, ctx, quantisation, seen.shape[1], directory));
	FP_TRY(find_block(coding, ctx, seen.shape[0], seen.shape[1], directory));
	seen.coding = coding;
	seen.dtype = scale->dtype;
	seen.dtype_name = fp_dtype_name(seen.dtype);
	if (!fp_tensor_measure(&seen, 8 * fp_dtype_size(seen.dtype)))
		FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' is too large", directory, parts->name));
	FP_TRY(fp_tensor_list_add(out, ctx, &seen, parts->name, (int64_t)strlen(parts->name)));
cleanup:
	return status;
}

fp_status fp_integer_present(fp_tensor_list *out, fp_tensor_coding *codings, fp_context *ctx,
							 const fp_tensor_list *stored, const fp_mapping *files, const fp_quantisation *quantisation,
							 const char *directory)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < stored->count; i++) {
		const fp_tensor_info *tensor = &stored->items[i];
		integer_parts parts;
		if (ends_with(tensor->name, ".weight_g_idx"))
			FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': groups in the order of activations are not supported",
						   directory, tensor->name));
		if (is_values(&parts, stored, tensor))
			FP_TRY(add_weight(out, codings++, ctx, &parts, files, quantisation, directory));
		else if (!is_hidden(stored, tensor))
			FP_TRY(fp_tensor_list_add(out, ctx, tensor, tensor->name, (int64_t)strlen(tensor->name)));
	}
cleanup:
	return status;
}

/* out ← the codes [first, first + count) of a row. */
static void load_codes(float *out, const fp_tensor_coding *coding, const char *row, int64_t first, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = (float)(coding->kind == FP_CODED_BYTES ? ((const signed char *)row)[first + i]
														: fp_load_code(row, first + i, coding->bits, 1));
}

static float zero_point(const fp_tensor_coding *coding, const void *zeros, int64_t row, int64_t group, int64_t groups)
{
	if (!zeros)
		return 0.0F;
	if (coding->kind == FP_CODED_BYTES)
		return (float)((const signed char *)zeros)[row * groups + group];
	return (float)fp_load_code((const char *)zeros + 4 * group, row, coding->bits, groups);
}

static void decode_row(char *out, const fp_tensor_info *tensor, const char *codes, const float *scales,
					   const void *zeros, int64_t row)
{
	const fp_tensor_coding *coding = tensor->coding;
	const int64_t cols = tensor->shape[1], size = coding->block[1], groups = cols / size;
	const int64_t place = row / coding->block[0];
	for (int64_t group = 0; group < groups; group++) {
		float scale = scales[place * groups + group], zero = zero_point(coding, zeros, place, group, groups);
		for (int64_t done = 0; done < size; done += AT_A_TIME) {
			float values[AT_A_TIME];
			int64_t first = group * size + done, count = size - done < AT_A_TIME ? size - done : AT_A_TIME;
			load_codes(values, coding, codes, first, count);
			for (int64_t i = 0; i < count; i++)
				values[i] = (values[i] - zero) * scale + 0.0F; /* never −0.0 */
			fp_from_float(out + first * fp_dtype_size(tensor->dtype), tensor->dtype, values, count);
		}
	}
}

fp_status fp_integer_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
							const void *scales, const void *zeros)
{
	const fp_tensor_info *guide = tensor->coding->guide;
	const int64_t rows = tensor->shape[0], stride = tensor->elements * fp_dtype_size(tensor->dtype);
	float *factors = NULL;
	fp_status status;
	if (tensor->elements == 0) /* which may still have any number of rows */
		return FP_OK;
	const int64_t row_bytes = stride / rows, code_bytes = tensor->coding->values->bytes / rows;
	FP_TRY(fp_coding_scales(&factors, ctx, guide, scales));
#pragma omp parallel for schedule(static)
	for (int64_t row = 0; row < rows; row++)
		decode_row((char *)bytes + row * row_bytes, tensor, (const char *)values + row * code_bytes, factors, zeros,
				   row);
cleanup:
	fp_free(factors);
	return status;
}
