/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/fp8_tensors.h"

#include "base/memory.h"
#include "checkpoint/tensor_coding.h"
#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 512, BYTE_VALUES = 256, ROWS_AT_A_TIME = 64 /* of a thread, if all rows share a scale */ };

/* The scale's name is the weight's and one of these. */
static const char *const endings[] = {"_scale_inv", "_scale"};
enum { ENDINGS = sizeof endings / sizeof endings[0] };

/* Scales of activations and of the cache of keys and values, which BF16 weights do not need. */
static const char *const unused[] = {".input_scale", ".activation_scale", ".output_scale",
									 ".k_scale",     ".v_scale",          ".kv_scale"};

static bool ends_with(const char *name, const char *ending)
{
	size_t length = strlen(name), tail = strlen(ending);
	return length > tail && strcmp(name + length - tail, ending) == 0;
}

static const fp_tensor_info *find_scale(const fp_tensor_list *stored, const fp_tensor_info *weight)
{
	for (int i = 0; i < ENDINGS; i++) {
		char name[NAME_SIZE];
		if (snprintf(name, sizeof name, "%s%s", weight->name, endings[i]) >= NAME_SIZE)
			continue;
		const fp_tensor_info *scale = fp_tensor_list_find(stored, name);
		if (scale)
			return scale;
	}
	return NULL;
}

/* The tensor whose scale this would be by its name, or NULL. */
static const fp_tensor_info *find_scaled(const fp_tensor_list *stored, const fp_tensor_info *tensor)
{
	for (int i = 0; i < ENDINGS; i++) {
		char name[NAME_SIZE];
		if (!ends_with(tensor->name, endings[i]) || strlen(tensor->name) >= NAME_SIZE)
			continue;
		snprintf(name, sizeof name, "%.*s", (int)(strlen(tensor->name) - strlen(endings[i])), tensor->name);
		return fp_tensor_list_find(stored, name);
	}
	return NULL;
}

static bool is_unused(const char *name)
{
	for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
		if (ends_with(name, unused[i]))
			return true;
	return false;
}

static int64_t blocks(int64_t size, int64_t block)
{
	return size / block + (size % block != 0);
}

static bool has_shape(const fp_tensor_info *tensor, int64_t rows, int64_t cols)
{
	return tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols;
}

/* block ← the rows and columns that share a scale, from the config and the scale's shape. */
static fp_status find_block(int64_t block[2], fp_context *ctx, const fp_tensor_info *weight,
							const fp_tensor_info *scale, const fp_quantisation *quantisation, const char *directory)
{
	int64_t rows = weight->shape[0], cols = weight->shape[1];
	const int64_t *given = quantisation->block;
	char rule[128] = "one entry";
	if (given[0] > 0) {
		snprintf(rule, sizeof rule, "shape [%lld, %lld] for blocks of %lld x %lld", (long long)blocks(rows, given[0]),
				 (long long)blocks(cols, given[1]), (long long)given[0], (long long)given[1]);
		if (has_shape(scale, blocks(rows, given[0]), blocks(cols, given[1]))) {
			memcpy(block, given, 2 * sizeof *block);
			return FP_OK;
		}
	}
	if (quantisation->scales_by_rows && given[0] == 0)
		snprintf(rule, sizeof rule, "shape [%lld, 1] or one entry", (long long)rows);
	bool by_rows = has_shape(scale, rows, 1) || (scale->rank == 1 && scale->shape[0] == rows);
	if (quantisation->scales_by_rows && by_rows && rows > 0) {
		block[0] = 1;
		block[1] = cols > 0 ? cols : 1;
		return FP_OK;
	}
	if (scale->elements == 1 && (given[0] == 0 || quantisation->scales_by_rows)) {
		block[0] = rows > 0 ? rows : 1;
		block[1] = cols > 0 ? cols : 1;
		return FP_OK;
	}
	return fp_fail(ctx, FP_ERROR_INPUT,
				   "%s: tensor '%s' of %lld entries does not fit the weight's %lld x %lld: %s is "
				   "needed",
				   directory, scale->name, (long long)scale->elements, (long long)rows, (long long)cols, rule);
}

static fp_dtype seen_type(const fp_tensor_info *scale, const fp_quantisation *quantisation)
{
	bool kept = scale->dtype == FP_F16 || (scale->dtype == FP_F32 && quantisation->wide);
	return quantisation->scales_by_rows && kept ? scale->dtype : FP_BF16;
}

static fp_status add_weight(fp_tensor_list *out, fp_tensor_coding *coding, fp_context *ctx,
							const fp_tensor_list *stored, const fp_tensor_info *weight,
							const fp_quantisation *quantisation, const char *directory)
{
	fp_tensor_info seen = *weight;
	const fp_tensor_info *scale = find_scale(stored, weight);
	if (weight->rank != 2)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' is %s with %d dimensions; matrices are supported",
					   directory, weight->name, weight->dtype_name, weight->rank);
	if (!scale)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' is %s, but its scale '%s%s' is missing", directory,
					   weight->name, weight->dtype_name, weight->name, endings[quantisation->scales_by_rows]);
	if (!fp_dtype_is_weight(scale->dtype))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has type %s; scales must be F32, F16 or BF16", directory,
					   scale->name, scale->dtype_name);
	*coding = (fp_tensor_coding){.kind = FP_CODED_FP8, .values = weight, .guide = scale};
	fp_status status = find_block(coding->block, ctx, weight, scale, quantisation, directory);
	if (status != FP_OK)
		return status;
	seen.coding = coding;
	seen.dtype = seen_type(scale, quantisation);
	seen.dtype_name = fp_dtype_name(seen.dtype);
	if (!fp_tensor_measure(&seen, 8 * fp_dtype_size(seen.dtype)))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' is too large", directory, weight->name);
	return fp_tensor_list_add(out, ctx, &seen, weight->name, (int64_t)strlen(weight->name));
}

fp_status fp_fp8_present(fp_tensor_list *out, fp_tensor_coding *codings, fp_context *ctx, const fp_tensor_list *stored,
						 const fp_quantisation *quantisation, const char *directory)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < stored->count; i++) {
		const fp_tensor_info *tensor = &stored->items[i];
		const fp_tensor_info *scaled = find_scaled(stored, tensor);
		if (fp_dtype_is_fp8(tensor->dtype)) {
			FP_TRY(add_weight(out, codings++, ctx, stored, tensor, quantisation, directory));
			continue;
		}
		if (scaled && !fp_dtype_is_fp8(scaled->dtype)) {
			status = fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' has a scale, '%s', but type %s in place of FP8",
							 directory, scaled->name, tensor->name, scaled->dtype_name);
			goto cleanup;
		}
		if (!scaled && !is_unused(tensor->name))
			FP_TRY(fp_tensor_list_add(out, ctx, tensor, tensor->name, (int64_t)strlen(tensor->name)));
	}
cleanup:
	return status;
}

/* Decodes the rows that share a row of scales. A block has many more entries than a byte has values, so that each value
 * is multiplied once. */
static void decode_rows(void *out, fp_dtype dtype, const unsigned char *in, const float meaning[BYTE_VALUES],
						const float *scales, const int64_t block[2], int64_t rows, int64_t cols)
{
	for (int64_t first = 0; first < cols; first += block[1]) {
		int64_t last = first + block[1] < cols ? first + block[1] : cols;
		float scaled[BYTE_VALUES], scale = scales[first / block[1]];
		uint16_t rounded[BYTE_VALUES];
		for (int i = 0; i < BYTE_VALUES; i++)
			scaled[i] = meaning[i] * scale;
		if (dtype != FP_F32)
			fp_from_float(rounded, dtype, scaled, BYTE_VALUES);
		for (int64_t row = 0; row < rows; row++)
			for (int64_t i = row * cols + first; i < row * cols + last; i++)
				if (dtype == FP_F32)
					((float *)out)[i] = scaled[in[i]];
				else
					((uint16_t *)out)[i] = rounded[in[i]];
	}
}

fp_status fp_fp8_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
						const void *scales)
{
	const fp_tensor_coding *coding = tensor->coding;
	const fp_tensor_info *guide = coding->guide;
	const int64_t *block = coding->block, rows = tensor->shape[0], cols = tensor->shape[1];
	unsigned char all[BYTE_VALUES];
	float meaning[BYTE_VALUES], *factors = NULL;
	fp_status status;
	if (tensor->elements == 0) /* which may still have any number of rows */
		return FP_OK;
	for (int i = 0; i < BYTE_VALUES; i++)
		all[i] = (unsigned char)i;
	fp_to_float(meaning, all, coding->values->dtype, BYTE_VALUES);
	FP_TRY(fp_coding_scales(&factors, ctx, guide, scales));
	const int64_t across = blocks(cols, block[1]), step = block[0] < rows ? block[0] : ROWS_AT_A_TIME;
#pragma omp parallel for schedule(static)
	for (int64_t first = 0; first < rows; first += step)
		decode_rows((char *)bytes + first * cols * fp_dtype_size(tensor->dtype), tensor->dtype,
					(const unsigned char *)values + first * cols, meaning, factors + first / block[0] * across, block,
					rows - first < step ? rows - first : step, cols);
cleanup:
	fp_free(factors);
	return status;
}
